"""A packed file shown as a folder: small files in full, of weights a name and their first bytes.

Readers find what they look for by name. Weights that they open are read where they lie, or are unpacked then, by way of
`formats.files.sources.mount`, as those of a remote model are fetched.
"""

from __future__ import annotations

import atexit
import os
import threading
from functools import cache

from ggferry.formats.checkpoint_folder.sidecars import sidecar_names, vocabulary_names
from ggferry.formats.errors import RefusedError
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.files.opened_files import Stamp, note
from ggferry.formats.files.sources import LocalFile, Source, Window, mount, open_source, unmount
from ggferry.formats.packed.holding import held, hold, is_held
from ggferry.formats.packed.kinds import COMMANDS, archive_of, kind_of_packing, stream_of, unpacked_name
from ggferry.formats.packed.members import Member, members_of, open_member, start_bytes, stored, whole_bytes
from ggferry.formats.packed.scratch import Scratch, sweep
from ggferry.formats.packed.streams import expanded
from ggferry.formats.packed.unpacking import around, unpack
from ggferry.formats.reader import HEAD_BYTES, files_beside
from ggferry.support.progress import Phase

SMALL, TOTAL = 64 << 20, 1 << 30
"""Bytes of a small file that is put in place, and of all of them together."""
TINY = 1 << 20
"""Bytes below which a file of any name is small."""
SMALL_ENDINGS = (".json", ".jsonl", ".model", ".txt", ".jinja", ".md", ".vocab", ".tiktoken", ".yaml", ".yml")
MOST = 4096
"""Files of an archive of models."""
_GGUF = b"GGUF"


class Shown(Window):
    """The bytes of a file in a packed one; while readers open it, it has the path under which it is shown."""

    def __init__(self, whole: Window, path: str, packed: PackedFolder) -> None:
        super().__init__(whole.whole, whole.offset, whole.size)
        self.path, self.inner, self.packed, self.counted = path, whole, packed, True

    def over(self, whole: Source) -> Shown:
        """Return the same bytes, of which `whole` is what is packed."""
        view = Shown(self.inner.over(whole), self.path, self.packed)
        view.counted = False
        return view

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises as the file it shows."""
        return self.inner.read(offset, size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises as `read`."""
        self.inner.read_into(offset, buffer)

    def close(self) -> None:
        """Leave it open for others who read what is packed; doing so twice is allowed."""
        if self.counted:
            self.counted = False
            self.packed.release()


class PackedFolder:
    """A packed file, opened.

    Attributes:
        path: Its path.
        folder: The folder that shows what it holds.
        stream: What it is compressed with as a whole; '' for an archive that is not.
        kind: What archive it is, or its content; '' for one compressed file.
        members: Path below `folder` → the file of the archive.
        size: Bytes of what it holds, of one compressed file.
    """

    def __init__(self, path: str) -> None:
        self.path, self.kind, self.size = path, "", 0
        self.members: dict[str, Member] = {}
        self._copies: dict[str, str] = {}
        self._inner: dict[str, Window] = {}
        self._uses, self._lock = 0, threading.Lock()
        _sweep_once()
        self._scratch = Scratch()
        self.folder = os.path.join(os.path.realpath(self._scratch.path), "in")
        self.source = open_source(path)
        atexit.register(self.close)
        mount(self.folder, self._open)
        try:
            self._show()
        except BaseException:
            self.close()
            raise

    def _show(self) -> None:
        head = self.source.read(0, min(HEAD_BYTES, self.source.size))
        os.mkdir(self.folder)
        self.stream = stream_of(head)
        self._content: Source = self._expanded() if self.stream else self.source
        start = self._content.read(0, min(HEAD_BYTES, self._content.size))
        name = unpacked_name(self.path) if self.stream else self.path
        within = kind_of_packing(start, name)
        self.kind = within if archive_of(start) and within else ""
        if self.kind:
            self._show_members()
            return
        self.size = self._content.size
        self._place(os.path.join(self.folder, name), start)
        if not start.startswith(_GGUF):
            self._copy_beside(start, name)

    def _expanded(self) -> Window:
        with around().stage(Phase.UNPACKING, self.source.size) as progress:
            pieces = expanded(self.source, self.stream, progress)
            return unpack(self.source, pieces, self.source.size, COMMANDS[self.stream])

    # --- what is shown ---

    def _show_members(self) -> None:
        found = {name: one for one in members_of(self._content, self.kind) if (name := _plain(one.name))}
        if len(found) > MOST:
            hint = f"unpack it: {COMMANDS[self.kind]}"
            raise RefusedError(f"a {self.kind} of {len(found)} files", path=self.path, expected=f"≤ {MOST}", hint=hint)
        held = 0
        for name, member in found.items():
            path = os.path.join(self.folder, *name.split("/"))
            is_small = member.size <= (SMALL if name.lower().endswith(SMALL_ENDINGS) else TINY)
            held += member.size if is_small else 0
            if held > TOTAL:
                raise RefusedError("the small files together are too large", path=self.path)
            take = whole_bytes if is_small else _start
            self._place(path, take(self._content, member, self.kind, self.path))
            self.members[path] = member

    def _place(self, path: str, data: bytes) -> None:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
        except OSError as error:  # a name that is a file and a folder, or that no file system takes
            hint = f"unpack it: {COMMANDS[self.kind or self.stream]}"
            message = f"{os.path.relpath(path, self.folder)!r} cannot be shown: {error.strerror}"
            raise RefusedError(message, path=self.path, hint=hint) from None

    def _copy_beside(self, start: bytes, name: str) -> None:
        """Put the small files in place that stand beside one compressed file and may belong to it."""
        folder = os.path.dirname(self.path)
        names = {*sidecar_names(), *vocabulary_names(), *files_beside(start, name, self.size)}
        for each in sorted(names):
            path = os.path.join(folder, each)
            if os.path.isfile(path) and os.stat(path).st_size <= SMALL:
                copy = os.path.join(self.folder, each)
                self._place(copy, read_bytes(path, SMALL))
                self._copies[copy] = path

    # --- what is read ---

    def _open(self, path: str) -> Source | None:
        with self._lock:
            inner = self._inner.get(path)
            if inner is None and path in self.members:
                inner = open_member(self._content, self.members[path], self.kind, self.path)
            elif inner is None and path == self.only and isinstance(self._content, Window):
                inner = self._content
            if inner is None:
                return None
            self._inner[path] = inner
            self._uses += 1
        return Shown(inner, path, self)

    @property
    def only(self) -> str:
        """The path that shows the content of one compressed file; '' of an archive."""
        return "" if self.kind else os.path.join(self.folder, unpacked_name(self.path))

    def known_by(self, path: str | None) -> str | None:
        """Return what to call a path below the folder: that of the packed file, with the name within."""
        if path is None or not path.startswith(self.folder):
            return path
        within = os.path.relpath(path, self.folder)
        if path in self._copies:
            return self._copies[path]
        return self.path if within == "." or not self.kind else os.path.join(self.path, within)

    def place_of(self, member: Member) -> int:
        """Return where the bytes of a stored file begin in the archive."""
        return stored(self._content, member, self.kind).offset

    def origin(self, path: str) -> str:
        """Return where a small file stands: beside the packed file, or in the folder."""
        return self._copies.get(path, path)

    # --- its end ---

    def retain(self) -> None:
        """Keep it open until `release`."""
        with self._lock:
            self._uses += 1

    def release(self) -> None:
        """Close it when nobody reads it any more, unless it is held."""
        with self._lock:
            self._uses -= 1
            done = self._uses <= 0
        if done and not is_held(self):
            self.close()

    def close(self) -> None:
        """Remove what was unpacked."""
        unmount(self.folder)
        atexit.unregister(self.close)
        self.source.close()
        self._scratch.close()


@cache
def _sweep_once() -> None:
    """Remove, once a process, what processes left that were killed."""
    sweep()


def _start(source: Source, member: Member, kind: str, path: str) -> bytes:
    return start_bytes(source, member, kind, path, HEAD_BYTES)


def _plain(name: str) -> str:
    """Return the name of a file as it may be shown; '' for one that leads elsewhere, which no archive of models has."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    odd = name.startswith("/") or ".." in parts or "\0" in name or any(len(part) > 200 or ":" in part for part in parts)
    return "" if odd or len(parts) > 16 else "/".join(parts)


# --- from one opening to the next ----------------------------------------------------------------------------------


def packed_folder(path: str) -> PackedFolder:
    """Return a packed file as a folder: within `holding` the one that was made before. Raises as its readers do."""
    source = open_source(path)
    try:
        stamp: object = source.size
        if isinstance(source, LocalFile):
            note(path, source.fileno())
            stamp = Stamp.of(os.fstat(source.fileno()))
        key = (os.path.abspath(path), stamp)
        known = held(key)
    finally:
        source.close()
    if isinstance(known, PackedFolder):
        return known
    made = PackedFolder(path)
    hold(key, made)
    return made
