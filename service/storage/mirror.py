"""A local folder that stands for files of a store: small files in full, of weights their first bytes.

Readers look for sidecar files by name (tokenizer, configuration, shards, parts) and find the same names here. Opening
weights goes through `formats.files.sources.mount` to the broker, and so to ranges in the store.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from ggferry.formats.errors import RefusedError
from ggferry.formats.reader import HEAD_BYTES
from ggferry.service.storage.broker import Broker
from ggferry.service.storage.ranged_file import HEADER_BLOCK, RangedFile
from ggferry.service.storage.safe_names import mark_of, safe_name
from ggferry.service.storage.stores import Found, check_unchanged, whole

SMALL = (".json", ".jsonl", ".model", ".txt", ".jinja", ".md", ".vocab", ".tiktoken", ".yaml", ".yml")
RANGED = (".safetensors", ".bin", ".gguf", ".dat")
"""Names of files beside a model that their readers read by ranges, where they are large: adapters, matrices."""
SMALL_CAP = 64 << 20  # bytes of one such file; the largest tokenizer.json known has 33 MB
TOTAL_CAP = 1 << 30  # bytes of all of them in one mirror


@dataclass
class Mirror:
    """Files of stores, mirrored below `folder`.

    Attributes:
        numbers: Mirrored path → number and size, for files that are read by ranges.
        urls: Mirrored path → URL of the file.
        paths: URL of a file → mirrored path.
        folders: Mirrored path of a folder → URL.
        homes: URL of a folder → mirrored path.
    """

    folder: str
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    ranged: list[RangedFile] = field(default_factory=list)
    small: list[Found] = field(default_factory=list)
    broker: Broker | None = None
    staged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def name(self, urls: Iterable[str]) -> None:
        """Give each of these files a path of its own.

        To be called with a whole listing at once: only then is it known which names are both a file and a folder (`a`
        and `a/b`), so that the file can get another path.
        """
        new = [url for url in dict.fromkeys(urls) if url not in self.paths]
        above = {url[: slash.start()] for url in new for slash in re.finditer("/", url)}
        for url in sorted(new, key=lambda each: (each in above, each)):
            self._name(url, aside=url in above)

    def _name(self, url: str, aside: bool) -> None:
        """Name one file.

        The whole path is kept where a file system allows it, because models are named after their folders.
        """
        scheme, _, rest = url.partition("://")
        *parents, name = rest.split("/")
        folder, outside = os.path.join(self.folder, scheme), f"{scheme}:/"
        for parent in parents:
            folder, outside = os.path.join(folder, safe_name(parent)), f"{outside}/{parent}"
            self.folders.setdefault(folder, outside)
            self.homes.setdefault(outside, folder)
        path = os.path.join(folder, safe_name(name))
        if aside or path in self.urls or path in self.folders:
            path = os.path.join(folder, mark_of(url), safe_name(name))
        self.paths[url], self.urls[path] = path, url

    def path_of(self, url: str) -> str:
        """Return the mirrored path of `url`, a file or a folder of files."""
        if url in self.homes and url not in self.paths:
            return self.homes[url]
        self.name([url])
        return self.paths[url]

    def stage(
        self,
        files: Iterable[Found],
        *,
        block: int = HEADER_BLOCK,
        room: int = SMALL_CAP,
        transport: bool = False,
        beside: bool = False,
    ) -> None:
        """Put `files` in place; `transport` as in `RangedFile`.

        `beside`: they are no weights of the model's, and small ones are put there whole whatever they are called.
        Raises RefusedError when the small ones together exceed TOTAL_CAP, and for a large one that is not read by
        ranges.
        """
        files = tuple(files)
        self.name(found.path for found in files)
        for found in files:
            path = self.path_of(found.path)
            if os.path.lexists(path):
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            name = found.path.lower()
            if beside and found.bytes > SMALL_CAP and not name.endswith(RANGED):
                raise RefusedError("too large for a file beside a model", path=found.path, expected=f"≤ {SMALL_CAP}")
            if (beside or name.endswith(SMALL)) and found.bytes <= SMALL_CAP:
                self.staged += found.bytes
                if self.staged > TOTAL_CAP:
                    raise RefusedError("the sidecar files together are too large", path=found.path)
                data = whole(found, transport)
                self.small.append(found)
            else:
                source = RangedFile(found, self.folder, block=block, room=room, transport=transport)
                data = source.read(0, min(HEAD_BYTES, source.size))
                with self.lock:
                    self.numbers[path] = (len(self.ranged), source.size)
                    self.ranged.append(source)
            with open(path, "wb") as file:
                file.write(data)

    def serve(self) -> dict[str, object]:
        """Start the broker; return what a worker needs to mount this folder."""
        if not self.ranged:
            return {}
        if self.broker is None:
            self.broker = Broker(self.ranged)
        return {
            "folder": self.folder,
            "address": self.broker.address,
            "key": self.broker.key.hex(),
            "files": self.numbers,
        }

    def check(self) -> None:
        """Raise ChangedError when a file is not, or no longer, what was read of it."""
        for found in self.small:
            check_unchanged(found)
        for source in self.ranged:
            source.check()

    def transport(self, paths: Iterable[str]) -> list[str | None]:
        """Return how the transport of each mirrored path was checked (`RangedFile.transport`); None for other files."""
        numbers = [self.numbers.get(path) for path in paths]
        return [None if number is None else self.ranged[number[0]].transport() for number in numbers]

    def url_of(self, path: str) -> str:
        """Return the URL a mirrored path stands for; other paths as they are."""
        if path in self.urls:
            return self.urls[path]
        folder, rest = path, ""
        while folder.startswith(os.path.join(self.folder, "")):
            if folder in self.folders:
                return self.folders[folder] + rest
            folder, name = os.path.split(folder)
            rest = f"/{name}{rest}"
        return path

    def close(self) -> None:
        if self.broker is not None:
            self.broker.close()
        for source in self.ranged:
            source.close()
        shutil.rmtree(self.folder, ignore_errors=True)
