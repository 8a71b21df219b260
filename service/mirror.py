"""A local folder that stands for files of a store: small ones whole, of weights their first bytes.

Readers look beside a model by name (tokenizer, configuration, shards, parts): they find the same names here. Opening
weights leads through `formats.sources.mount` to the broker, and so to ranges of the store.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from ggferry.formats.errors import OutOfRangeError, RefusedError
from ggferry.formats.reader import HEAD_BYTES
from ggferry.service.broker import Broker
from ggferry.service.ranged import HEADER_BLOCK, RangedFile
from ggferry.service.stores import Found, read_whole

SMALL = (".json", ".jsonl", ".model", ".txt", ".jinja", ".md", ".vocab", ".tiktoken", ".yaml", ".yml")
SMALL_CAP = 64 << 20  # bytes of one such file; the largest tokenizer.json known has 33 MB
TOTAL_CAP = 1 << 30  # bytes of all of them in one mirror


@dataclass
class Mirror:
    """Files of stores below `folder`; `sizes` and `numbers` of those that are read by ranges, by mirrored path."""

    folder: str
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    ranged: list[RangedFile] = field(default_factory=list)
    broker: Broker | None = None
    staged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def path_of(self, url: str) -> str:
        """Where `url` stands here. The whole path is kept: models are named after their folders."""
        parts = [part for part in url.replace("://", "/").split("/") if part]
        if any(part in (".", "..") or "\0" in part for part in parts):
            raise OutOfRangeError("a name that leads elsewhere", path=url)
        return os.path.join(self.folder, *parts)

    def stage(self, files: Iterable[Found], *, block: int = HEADER_BLOCK, room: int = SMALL_CAP) -> None:
        """Put `files` in place. Raises RefusedError when the small ones exceed TOTAL_CAP together."""
        for found in files:
            path = self.path_of(found.path)
            if path in self.urls:
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if found.path.lower().endswith(SMALL) and found.bytes <= SMALL_CAP:
                self.staged += found.bytes
                if self.staged > TOTAL_CAP:
                    raise RefusedError("the files beside the weights are too large together", path=found.path)
                data = read_whole(found.path, SMALL_CAP)
            else:
                source = RangedFile(found, self.folder, block=block, room=room)
                data = source.read(0, min(HEAD_BYTES, source.size))
                with self.lock:
                    self.numbers[path] = (len(self.ranged), source.size)
                    self.ranged.append(source)
            self.urls[path] = found.path
            with open(path, "wb") as file:
                file.write(data)

    def serve(self) -> dict[str, object]:
        """Start the broker: what a worker needs to mount this folder."""
        if not self.ranged:
            return {}
        if self.broker is None:
            self.broker = Broker(self.ranged)
        return {
            "folder": self.folder, "address": self.broker.address, "key": self.broker.key.hex(), "files": self.numbers,
        }  # fmt: skip

    def check_unchanged(self) -> None:
        """Raises ChangedError when a file has changed since it was listed."""
        for source in self.ranged:
            source.check()

    def url_of(self, path: str) -> str:
        """The URL a mirrored path stands for; other paths as they are."""
        if path in self.urls:
            return self.urls[path]
        prefix = os.path.join(self.folder, "")
        if path.startswith(prefix):
            scheme, _, rest = path[len(prefix) :].partition("/")
            return f"{scheme.rstrip(':')}://{rest}"
        return path

    def close(self) -> None:
        if self.broker is not None:
            self.broker.close()
        for source in self.ranged:
            source.close()
        shutil.rmtree(self.folder, ignore_errors=True)
