"""A folder that is written whole or not at all: it grows under a private name beside its target.

The names are those of `partial_files`, and so are the locks: a folder that a killed run left is free and swept by the
next run, one whose writer lives is not touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ggferry.formats.errors import BusyError, NotFoundError, RefusedError, UsageError, of_os
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.files.partial_files import exists_already, rename_new, sync_folder
from ggferry.formats.files.partial_names import Leftovers, leftovers, new_token, partial_path
from ggferry.support.interrupts import interrupts_wait
from ggferry.support.platform import here

_OLDER = ".older"
"""Ends the target in the name under which an older folder waits, where two folders cannot change names in one step."""
Ours = Callable[[str], bool]


class OutputFolder:
    """A new folder beside `target`, locked until it gets that name or is removed.

    Attributes:
        target: The name it will have.
        path: Where it grows.
    """

    def __init__(
        self,
        target: str,
        *,
        overwrite: bool = False,
        ours: Ours = lambda path: False,
        sources: Mapping[Identity, str] | None = None,
    ) -> None:
        """Remember what is asked for; nothing is written before the context is entered.

        Args:
            target: The folder to be.
            overwrite: Whether an existing folder may be replaced.
            ours: Says whether an existing folder is one that we wrote and nobody changed: no other is replaced.
            sources: Files that must not be replaced.
        """
        self.target = os.path.normpath(target)
        self.path = ""
        self._overwrite, self._ours, self._sources = overwrite, ours, sources or {}
        self._lock = -1

    def __enter__(self) -> OutputFolder:
        self._check_name()
        left = leftovers(os.path.dirname(self.target))
        if not left.of(self.target):
            self._check_free()  # before anything is made
        try:
            with interrupts_wait():
                self.path = partial_path(self.target, new_token())
                os.mkdir(self.path)
                self._lock = here.lock_folder(self.path)
        except OSError as error:
            raise of_os(error, "cannot be written", self.target) from None
        try:
            self._resume()
            self._check_free()
        except BaseException:
            self.discard()
            raise
        return self

    def _check_name(self) -> None:
        """Raise UsageError or NotFoundError where no folder can have this name."""
        parent, name = os.path.split(self.target)
        if not name or name in (os.curdir, os.pardir):
            raise UsageError("not the name of a folder to write", found=self.target)
        if not os.path.isdir(parent or os.curdir):
            raise NotFoundError("its folder does not exist", path=self.target)

    def _check_free(self) -> None:
        """Raise RefusedError where something has the name that may not be replaced."""
        if not os.path.lexists(self.target):
            return
        if os.path.islink(self.target) or not os.path.isdir(self.target):
            raise RefusedError("exists and is not a folder", path=self.target, hint="write to another name")
        if not self._overwrite:
            raise exists_already(self.target)
        if not self._ours(self.target):
            raise RefusedError(
                "exists, and is not an unchanged folder of ggferry's",
                path=self.target,
                hint="move it away, or write to another name",
            )
        self._refuse_sources()

    def _refuse_sources(self) -> None:
        for name in os.listdir(self.target):
            status = os.lstat(os.path.join(self.target, name))
            if (status.st_dev, status.st_ino) in self._sources:
                raise RefusedError(
                    "the output would replace its own source",
                    path=self.target,
                    found=name,
                    hint="write to another name",
                )

    def _resume(self) -> None:
        """Put an older folder back that a killed run had moved away, and remove what else killed runs left.

        Raises BusyError while another writer is at work on it.
        """
        left = leftovers(os.path.dirname(self.target))
        dead, live = _dead_and_live(path for path in left.of(self.target) if path != self.path)
        if live:
            raise BusyError("another writer is at work on this folder", path=self.target)
        older = left.of(self.target + _OLDER)
        with suppress(OSError):
            if dead and not os.listdir(self.target):
                os.rmdir(self.target)  # a killed run had claimed the name (`_name_new`)
        with suppress(OSError):
            if older and not os.path.lexists(self.target):
                os.rename(older.pop(), self.target)
        for path in (*dead, *older):
            shutil.rmtree(path, ignore_errors=True)

    def file(self, name: str) -> str:
        """Return the path of a file in it."""
        return os.path.join(self.path, name)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file; it is on disk when this returns."""
        try:
            with open(self.file(name), "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise of_os(error, "cannot be written", os.path.join(self.target, name)) from None

    def publish(self) -> None:
        """Give the folder its name, in one step. Raises RefusedError when the name has been taken meanwhile."""
        sync_folder(os.path.join(self.path, ""))
        try:
            with interrupts_wait():
                if self._overwrite and os.path.lexists(self.target):
                    self._exchange()
                else:
                    _name_new(self.path, self.target)
                    self.path = ""
        except FileExistsError:
            raise exists_already(self.target) from None
        except OSError as error:
            raise of_os(error, "cannot be written", self.target) from None
        sync_folder(self.target)

    def _exchange(self) -> None:
        """Take the place of an older folder, which is removed."""
        if not here.exchange(self.path, self.target):
            older = partial_path(self.target + _OLDER, new_token())
            os.rename(self.target, older)
            try:
                os.rename(self.path, self.target)
            except OSError as error:
                self._put_back(older, error)
                raise
            self.path = older

    def _put_back(self, older: str, error: OSError) -> None:
        """Give the older folder its name again. Raises what `of_os` makes of `error` where that fails, too."""
        try:
            os.rename(older, self.target)
        except OSError:
            failure = of_os(error, "cannot be replaced, and the older folder has a private name now", self.target)
            failure.found, failure.hint = os.path.basename(older), "the next run that writes this folder puts it back"
            raise failure from None

    def discard(self) -> None:
        """Remove what has no name yet, or what was replaced."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            with suppress(OSError):
                here.unlock_folder(self._lock)
        self.path, self._lock = "", -1

    def __exit__(self, *_: object) -> None:
        self.discard()


def _dead_and_live(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return those of unfinished folders whose writer is gone, and those whose writer lives."""
    dead, live = list[str](), list[str]()
    for path in paths:
        if os.path.islink(path) or not os.path.isdir(path):
            continue
        try:
            here.unlock_folder(here.lock_folder(path))
        except BlockingIOError:
            live.append(path)
        except OSError:
            continue
        else:
            dead.append(path)
    return dead, live


def sweep_folders(targets: Iterable[str]) -> list[str]:
    """Remove what killed writers left of these folders, and return what stays, because its writer lives.

    An older folder that waits to be replaced is left to the next writer, who puts it back.
    """
    stays = list[str]()
    for target in targets:
        with suppress(OSError):
            dead, live = _dead_and_live(Leftovers(os.path.dirname(target)).of(target))
            stays += live
            for path in dead:
                shutil.rmtree(path, ignore_errors=True)
    return stays


def _name_new(path: str, target: str) -> None:
    """Give a folder a name that must be free. Raises FileExistsError or another OSError."""
    if rename_new(path, target):
        return
    os.mkdir(target)  # without a rename that replaces nothing: rename(2) replaces an empty folder, and no other
    try:
        os.rename(path, target)
    except OSError:
        os.rmdir(target)
        raise
