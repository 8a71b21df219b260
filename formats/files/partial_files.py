"""Unfinished files: written by one writer under a private name next to the target, and published together.

The bytes of OUT grow under `.OUT.ggferry-<16 hex digits>.partial`. That name is new, so nobody's file is ever opened,
truncated or removed. The file is locked (flock) as long as its writer lives. A process that begins to write OUT looks
at every other such name of OUT: a locked one belongs to another writer at work, a free one was left by a run that was
killed. docs/decisions/partials.md says why, and what risks remain.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, TypeVar

from ggferry.formats.errors import BusyError, GgferryError, NotFoundError, RefusedError, UsageError, of_os
from ggferry.formats.files.opened_files import Identity, refuse_sources
from ggferry.formats.files.partial_names import (
    PARTIAL,
    Leftovers,
    leftovers,
    longest_name,
    new_token,
    partial_path,
)
from ggferry.formats.files.publication_record import kept_for
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.platform import here

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
ATTEMPTS, PAUSE = 4, 0.05  # two that begin at once may each see the other; then each looks again within PAUSE seconds

T = TypeVar("T")


def check_target(path: str, *, overwrite: bool = False, sources: Mapping[Identity, str] | None = None) -> None:
    """Check what can be known before anything is written: that `path` can become a file.

    It must be a valid name, must be none of the `sources`, and must be free unless it may be overwritten. Where it is
    not free, the private name goes that a run left which was killed as soon as its file had this one. Raises
    UsageError, NotFoundError, RefusedError.
    """
    folder, name = os.path.split(path)
    if not name or name in (os.curdir, os.pardir) or os.path.isdir(path):
        raise UsageError("not the name of a file to write", path=path or None, found=path)
    if not os.path.isdir(folder or os.curdir):
        raise NotFoundError("its folder does not exist", path=path)
    longest = longest_name(folder)
    if len(os.fsencode(name)) > longest:
        raise UsageError(
            "file name is too long for its folder",
            path=path,
            found=f"{len(os.fsencode(name))} bytes",
            expected=f"at most {longest}",
            hint="choose a shorter name",
        )
    if reason := here.unusable_name(name):
        raise UsageError(f"not a name of a file of {here.NAME}: {reason}", path=path, hint="choose another name")
    refuse_sources([path], sources or {})
    if not overwrite and os.path.lexists(path):
        sweep([path], beside="")
        raise exists_already(path)


def exists_already(path: str) -> RefusedError:
    """Return the error for a target whose name is taken."""
    return RefusedError("exists already", path=path, hint="--force replaces it")


# --- one file ------------------------------------------------------------------------------------------------------


class Partial:
    """A new empty file next to `target`, open and locked until it is given that name or discarded.

    `stale` lists the unfinished files that killed runs left of the same target.
    """

    def __init__(self, target: str, token: str) -> None:
        self.target, self.path = target, partial_path(target, token)
        self.published = False
        self.stale: list[str] = []
        flags = os.O_CREAT | os.O_EXCL | here.NOFOLLOW | os.O_RDWR | here.CLOEXEC
        self.fd = -1
        self.fd = self.attempt(here.open_file, self.path, flags, 0o666)
        if _lock(self.fd) is False or not self.is_at(self.path):
            self.discard()  # another writer took it for a dead one in the instant before it was locked
            raise BusyError("another writer is at work on this file", path=target)

    def write(self, data: bytes) -> None:
        """Write all of a small file; it is on disk when this returns."""
        self.append(memoryview(data))
        self.attempt(os.fsync, self.fd)

    def append(self, view: memoryview) -> None:
        """Write bytes behind those that are written."""
        while view:
            view = view[self.attempt(os.write, self.fd, view) :]

    def give_name(self, *, overwrite: bool = False) -> None:
        """Give the file its target's name. Raises RefusedError when the name is taken, unless `overwrite`."""
        if overwrite:
            self.attempt(os.replace, self.path, self.target)
        else:
            try:
                name_new(self.path, self.target)
            except FileExistsError:
                if not self.is_at(self.target):  # NFS may say so when its own first answer was lost
                    raise exists_already(self.target) from None
            except OSError as error:
                raise self._failure(error) from None
        self.published = True

    def take_back(self) -> None:
        """Undo a `give_name` that replaced nothing."""
        if self.is_at(self.target):
            self.attempt(os.unlink, self.target)
        self.published = False

    def discard(self) -> None:
        """Remove the private name; the bytes go with it, unless the file has another name.

        On a disk that has become read-only the name stays, and the next writer of the target sweeps it: why this run
        ends is more worth saying than that.
        """
        if self.fd >= 0:
            remove(self.path)
            self.keep()

    def keep(self) -> None:
        """Let go of the file and leave its private name: whoever resolves the publication needs it."""
        fd, self.fd = self.fd, -1
        with suppress(OSError):  # written and flushed, or not wanted
            os.close(fd)

    def sweep(self) -> None:
        """Remove what killed runs left of the same target, and an empty file by which one of them claimed the name."""
        if self.stale and claimed_only(self.target):
            with suppress(OSError):
                os.unlink(self.target)
        for path in self.stale:
            remove(path)

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def is_at(self, path: str) -> bool:
        try:
            return os.path.samestat(os.lstat(path), os.fstat(self.fd))
        except OSError:
            return False

    def attempt(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return what a system call on this file returns.

        Raises what `of_os` makes of its failure, naming the target.
        """
        try:
            return call(*arguments)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> GgferryError:
        return of_os(error, "cannot be written", self.target)


def remove(path: str) -> None:
    """Remove a private name, if that can be done.

    A second try follows a failure that may be gone by then: no later run looks for what was left beside a model that is
    done.
    """
    for _ in range(2):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError:
            continue
        return


def name_new(path: str, target: str) -> None:
    """Give the file at `path` the name `target`, which must be free.

    rename(2) replaces its target whatever an earlier check said; link(2) fails when the name exists, so two publishers
    cannot both win. Between link(2) and the removal of `path`, both names lead to the same complete file. Raises
    FileExistsError or another OSError.
    """
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not rename_new(path, target):
            _rename_to_claimed(path, target)


def rename_new(path: str, target: str) -> bool:
    """Use a rename that replaces nothing, for file systems without links (FAT, network); False where there is none."""
    return here.rename_new(path, target)


def _rename_to_claimed(path: str, target: str) -> None:
    """Claim the name by an exclusive create, so that the rename replaces nothing but our own empty file."""
    os.close(here.open_file(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | here.CLOEXEC))
    try:
        os.replace(path, target)
    except OSError:
        os.unlink(target)
        raise


def claimed_only(path: str) -> bool:
    """Return whether a name leads to an empty file: what `_rename_to_claimed` leaves when it is killed."""
    with suppress(OSError):
        status = os.lstat(path)
        return stat.S_ISREG(status.st_mode) and status.st_size == 0
    return False


def sync_folder(path: str) -> None:
    """Flush the names in the folder of `path` to disk."""
    here.sync_folder(os.path.dirname(path) or os.curdir)


# --- one writer ----------------------------------------------------------------------------------------------------


def claim(targets: Sequence[str], sources: Mapping[Identity, str] | None = None) -> list[Partial]:
    """Create a partial for each of `targets`: all of them or none.

    Raises BusyError when another writer is working on one of them, RefusedError when a leftover of a killed run is
    among the `sources`.
    """
    for attempt in range(ATTEMPTS):
        try:
            return _claim(targets, sources or {})
        except BusyError:
            if attempt == ATTEMPTS - 1:
                raise
        import random

        time.sleep(random.uniform(0, PAUSE))
    raise AssertionError("unreachable")


def _claim(targets: Sequence[str], sources: Mapping[Identity, str]) -> list[Partial]:
    token = new_token()
    with ExitStack() as undo:
        made = [undo.enter_context(Partial(target, token)) for target in targets]
        # Listed only after our own exist and are locked: of two writers that begin at once at least one sees the other.
        left = {folder: leftovers(folder) for folder in {os.path.dirname(target) for target in targets}}
        kept = {path for each in left.values() for path in kept_for(each)}
        for partial in made:
            others = left[os.path.dirname(partial.target)].of(partial.target)
            others = [path for path in others if path != partial.path and path not in kept]
            partial.stale = [path for path in others if is_dead(path, partial.target)]
            refuse_sources(partial.stale, sources)
        undo.pop_all()
    return made


def sweep(targets: Iterable[str], beside: str) -> list[str]:
    """Remove what killed writers left of `targets` and of the files claimed with them.

    A target that got its name while the file claimed with it has not yet got its own is left as it is: the next writer
    finishes that (`recovery`), and without the latter could not.

    Args:
        targets: Paths of outputs.
        beside: Suffix that names the file claimed with each output, such as its receipt; '' where there is none.

    Returns:
        The paths that stay, because their writer lives or because that cannot be known.
    """
    stays = []
    folders: dict[str, list[str]] = defaultdict(list)
    for target in targets:
        folders[os.path.dirname(target)].append(target)
    for folder, names in folders.items():
        with suppress(OSError):
            left = Leftovers(folder)
            kept = kept_for(left)
            for target in names:
                for path in left.of(target):
                    if path not in kept and not _swept(path, target, beside):
                        stays.append(path)
    return stays


def _swept(path: str, target: str, beside: str) -> bool:
    match = PARTIAL.fullmatch(os.path.basename(path))
    try:
        if match is None or not is_dead(path, target):
            return True  # gone by now, or nothing of ours
    except GgferryError:
        return False
    claimed = partial_path(target + beside, match["token"])
    if os.path.lexists(target) and os.path.lexists(claimed) and not os.path.lexists(target + beside):
        return False
    for each in (path, claimed):
        remove(each)
    return not os.path.lexists(path)


def is_dead(path: str, target: str) -> bool:
    """Return whether the writer of this partial is gone; False for a file that is no partial.

    Raises BusyError while the writer lives, RefusedError where that cannot be known.
    """
    try:
        fd = _opened(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return False
        raise _unknown(path, target) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        free = _lock(fd)
    finally:
        os.close(fd)
    if free is None:
        raise _unknown(path, target)
    if not free:
        raise BusyError("another writer is at work on this file", path=target)
    return True


def _opened(path: str) -> int:
    """Open a file for locking; one that nobody may write to (the older file of a publication) for reading only."""
    flags = here.NOFOLLOW | here.NONBLOCK | here.CLOEXEC
    try:
        return here.open_file(path, os.O_RDWR | flags)
    except PermissionError:
        return here.open_file(path, os.O_RDONLY | flags)


def _unknown(path: str, target: str) -> RefusedError:
    return RefusedError(
        "another writer may be at work on this file",
        path=target,
        found=path,
        hint="its folder cannot tell whether that one lives; if no ggferry does, remove the file",
    )


def _lock(fd: int) -> bool | None:
    """Lock an open file until it is closed; False when another process holds it, None where locks are not supported."""
    try:
        here.lock(fd)
    except OSError as error:
        return False if error.errno in here.HELD else None
    return True


# --- all names together --------------------------------------------------------------------------------------------


def name_together(partials: Sequence[Partial], *, overwrite: bool = False) -> None:
    """Give complete files of one folder their names, in this order: one that may replace another file, or new ones.

    Of new ones either all get their names or none. `publication.publish` replaces several.
    """
    try:
        for partial in partials:
            partial.give_name(overwrite=overwrite)
        sync_folder(partials[0].target)
    except BaseException:
        if not overwrite:
            _take_back(partials)
        raise
    for partial in partials:
        partial.discard()


def _take_back(partials: Sequence[Partial]) -> None:
    """Take the names back; where that fails, leave the private ones, with which the next run goes on."""
    try:
        for partial in reversed(partials):
            if partial.published:
                partial.take_back()
    except GgferryError:
        for partial in partials:
            partial.keep()


def begin_file(path: str, *, overwrite: bool = False, sources: Mapping[Identity, str] | None = None) -> Partial:
    """Create the partial of a single target. Raises as `check_target` and `claim`."""
    check_target(path, overwrite=True, sources=sources)
    [partial] = claim([path], sources)
    partial.sweep()
    if not overwrite and os.path.lexists(path):
        partial.discard()
        raise exists_already(path)
    return partial


def write_file(
    path: str,
    write: Callable[[BinaryIO], object],
    *,
    overwrite: bool = False,
    sources: Mapping[Identity, str] | None = None,
    private: bool = False,
) -> None:
    """Write a file whole or not at all.

    Args:
        path: The file.
        write: Called with the file, open and empty.
        overwrite: Whether an existing file may be replaced.
        sources: Files that must not be replaced.
        private: Whether only its owner may read it.

    Raises:
        GgferryError: As `begin_file`, and what `of_os` makes of a failed write.
    """
    with ExitStack() as stack:
        with interrupts_wait():
            partial = stack.enter_context(begin_file(path, overwrite=overwrite, sources=sources))
        try:
            if private:
                here.make_private(partial.fd)
            with os.fdopen(partial.fd, "wb", closefd=False) as file:
                write(file)
            os.fsync(partial.fd)
        except OSError as error:
            raise of_os(error, "cannot be written", path) from None
        with interrupts_wait():
            name_together([partial], overwrite=overwrite)


def write_text(
    path: str,
    lines: Iterable[str],
    *,
    overwrite: bool = False,
    sources: Mapping[Identity, str] | None = None,
    private: bool = False,
) -> None:
    """Write lines of text, each with a line break, whole or not at all.

    The encoding is UTF-8; code points that UTF-8 cannot encode are escaped as in Python. The arguments and errors are
    those of `write_file`.
    """

    def write(file: BinaryIO) -> None:
        for line in lines:
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))

    write_file(path, write, overwrite=overwrite, sources=sources, private=private)
