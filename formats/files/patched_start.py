"""Replace the first bytes of a file in place, so that a kill at any instant can be finished, and is noticed.

What is to happen is first written down whole: a journal beside the file holds the old bytes and the new ones, and gets
its name when it is complete and on disk. Then the file's first four bytes become `MARK`, by which no program takes it
for a model; the rest is written; and the new first four bytes come last. So at every instant the file is the old one,
the new one, or one that everybody refuses and that `recover` finishes from the journal.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Literal

from ggferry.formats.errors import ChangedError, CorruptError, NotFoundError, RefusedError, of_os
from ggferry.formats.files.local_files import Named, read_bytes
from ggferry.formats.files.partial_files import Partial, claim, sync_folder, write_file
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.platform import here
from ggferry.support.records import dataclass

SUFFIX = ".ggferry-journal"
MARK = b"gguf"
"""The first bytes of a file that is being patched: no magic of any container."""
_MAGIC = b"ggferry journal 1\n"
_DIGEST = 32
MOST = 3 << 28
"""Bytes of the largest journal: two headers and a receipt."""


@dataclass(frozen=True, slots=True)
class Patch:
    """What is to happen to a file.

    Attributes:
        path: The file.
        size: Its bytes, which do not change.
        old: Its first bytes.
        new: What takes their place, as many bytes.
        beside: (suffix, old bytes, new bytes) of a small file beside it that changes with it; None where none does.
    """

    path: str
    size: int
    old: bytes
    new: bytes
    beside: tuple[str, bytes, bytes] | None = None

    def packed(self) -> bytes:
        """Return the journal: what is to happen, and the digest of it."""
        from blake3 import blake3

        suffix, *texts = self.beside or ("", b"", b"")
        head = {"size": self.size, "bytes": len(self.old), "suffix": suffix, "beside": [len(text) for text in texts]}
        body = b"".join((_MAGIC, json.dumps(head).encode(), b"\n", self.old, self.new, *texts))
        return body + bytes(blake3(body).digest())


def journal_of(path: str) -> str:
    """Return the name of the journal of a file."""
    return path + SUFFIX


def is_unfinished(path: str, head: bytes) -> bool:
    """Return whether a file that begins with `head` is one whose patch was not finished."""
    return head[: len(MARK)] == MARK and os.path.lexists(journal_of(path))


def load(path: str) -> Patch | None:
    """Return what the journal of the file at `path` says; None where there is none.

    Raises CorruptError for a journal that is not whole or was written by something else.
    """
    from blake3 import blake3

    if not os.path.lexists(journal_of(path)):
        return None
    raw = read_bytes(journal_of(path), MOST)
    body, digest = raw[:-_DIGEST], raw[-_DIGEST:]
    if not raw.startswith(_MAGIC) or blake3(body).digest() != digest:
        hint = "if the file itself is whole, remove the journal"
        raise CorruptError("journal of ggferry edit is incomplete", path=journal_of(path), hint=hint)
    line, _, rest = body.removeprefix(_MAGIC).partition(b"\n")
    try:
        return _patch_of(path, json.loads(line), rest)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptError("journal was not written by ggferry edit", path=journal_of(path)) from None


def _patch_of(path: str, head: Mapping[str, Any], rest: bytes) -> Patch:
    parts = []
    for size in (head["bytes"], head["bytes"], *head["beside"]):
        parts.append(rest[:size])
        rest = rest[size:]
    old, new, before, after = parts
    return Patch(path, head["size"], old, new, (head["suffix"], before, after) if head["suffix"] else None)


def patch(what: Patch) -> None:
    """Replace the first bytes of a file; the caller holds it (`hold`).

    Raises:
        ChangedError: The file is no longer what the patch was made for.
        GgferryError: What else keeps it from being written. The file is as it was, or `recover` finishes it.
    """
    with interrupts_wait():
        fd = _opened(what)
        try:
            if here.pread(fd, len(what.old), 0) != what.old:
                raise ChangedError("changed since it was read", path=what.path)
            write_file(journal_of(what.path), lambda file: file.write(what.packed()), private=_is_private(fd))
            _carry_out(what, fd)
        finally:
            os.close(fd)


def hold(path: str) -> list[Partial]:
    """Keep other writers away from a file, and remove what killed ones left. Raises BusyError where one is at work."""
    held = claim([path])
    for partial in held:
        partial.sweep()
    return held


def recover(path: str) -> Literal["finished", "undone"] | None:
    """Finish a patch that was not finished, or remove the journal of one that had not begun.

    Returns:
        What was done; None where there is no journal.

    Raises:
        BusyError: The one who patches is still at work.
        CorruptError: The journal is not whole.
        RefusedError: The journal is not of this file.
    """
    if not os.path.lexists(journal_of(path)):
        return None
    with ExitStack() as stack:
        for partial in hold(path):
            stack.enter_context(partial)
        what = load(path)
        if what is None:
            return None
        with interrupts_wait():
            fd = _opened(what)
            try:
                found = here.pread(fd, len(what.old), 0)
                if found == what.old:
                    _remove_journal(what)
                    return "undone"
                _check_torn(what, found)
                _carry_out(what, fd)
            finally:
                os.close(fd)
        return "finished"


def _opened(what: Patch) -> int:
    try:
        fd = here.open_file(what.path, os.O_RDWR | here.NOFOLLOW | here.CLOEXEC | here.NONBLOCK)
    except OSError as error:
        raise of_os(error, "cannot be written", what.path) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != what.size:
        os.close(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotFoundError("not a file", path=what.path)
        raise RefusedError(
            "not the file of its journal",
            path=what.path,
            found=f"{status.st_size} bytes",
            expected=f"{what.size} bytes",
            hint=f"remove {journal_of(what.path)}",
        )
    return fd


def _check_torn(what: Patch, found: bytes) -> None:
    """Check that every byte is the old one, the new one, or of the mark. Raises RefusedError."""
    step, mark = 4096, len(MARK)
    marks = (MARK, what.old[:mark], what.new[:mark])
    places = [slice(max(at, mark), at + step) for at in range(0, len(found), step)]
    torn = (place for place in places if found[place] not in (what.old[place], what.new[place]))
    whole = all(
        here in (old, new)
        for place in torn
        for here, old, new in zip(found[place], what.old[place], what.new[place], strict=True)
    )
    if found[:mark] not in marks or not whole:
        hint = f"remove {journal_of(what.path)} if it is of another file"
        raise RefusedError("not the file of its journal", path=what.path, hint=hint)


def _carry_out(what: Patch, fd: int) -> None:
    mark = len(MARK)
    try:
        _write(fd, MARK, 0)
        os.fsync(fd)
        _write(fd, what.new[mark:], mark)
        os.fsync(fd)
        _write(fd, what.new[:mark], 0)
        os.fsync(fd)
    except OSError as error:
        raise of_os(error, "cannot be written", what.path) from None
    if what.beside:
        suffix, old, new = what.beside
        if read_bytes(Named(what.path + suffix), MOST) == old:
            write_file(what.path + suffix, lambda file: file.write(new), overwrite=True)
    _remove_journal(what)


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = here.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def _remove_journal(what: Patch) -> None:
    with suppress(FileNotFoundError):
        os.unlink(journal_of(what.path))
    sync_folder(what.path)


def _is_private(fd: int) -> bool:
    return not os.fstat(fd).st_mode & 0o077
