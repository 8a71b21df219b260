"""Several names change together: all of them, or none.

Each rename is one step, and no file system makes one of several. So what is to happen is written down first
(`publication_record`). What stood under a name is kept under a private one until all names have changed: an error puts
everything back, and after a kill `resolve` does, or goes on where new bytes have a name already.

The file by which loaders open a model, and every receipt, are moved away before any other name changes, and come last:
in between, no set of shards can be opened, and no receipt stands beside bytes that it does not describe. Only rename(2)
is needed. Where there is link(2), a file that is alone never lacks its name.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from ggferry.formats.errors import GgferryError, RefusedError, of_os
from ggferry.formats.files.partial_files import (
    NO_LINKS,
    Partial,
    claim,
    exists_already,
    is_dead,
    name_new,
    name_together,
    sync_folder,
)
from ggferry.formats.files.partial_names import Leftovers, leftovers, new_token, partial_path
from ggferry.formats.files.publication_record import SUFFIX, Change, load, packed, records_in, state_of

Outcome = Literal["finished", "undone"]
_EMPTY = 0
"""Bytes of a file that only claims a name, where neither link(2) nor a rename that replaces nothing is known."""


@dataclass(frozen=True, slots=True)
class NewFiles:
    """A complete output whose files are on disk under private names.

    Attributes:
        outputs: Its files in the order in which they get their names: the one that is opened comes last.
        receipt: Its receipt; None where it has none.
        receipt_path: The receipt's name. No older receipt stays there.
        overwrite: Whether files may be replaced.
    """

    outputs: Sequence[Partial]
    receipt: Partial | None
    receipt_path: str
    overwrite: bool = False


def publish(sets: Sequence[NewFiles]) -> None:
    """Give complete outputs their names, all or none.

    Raises RefusedError where a name that may not be replaced has been taken meanwhile, and what `of_os` makes of a
    failure. After either, all names are as they were.
    """
    steps = [step for each in sets for step in _steps(each)]
    for folder in {os.path.dirname(step.change.target) for step in steps}:
        sync_folder(os.path.join(folder, ""))  # after a power cut between the renames, the partials must still be there
    if len(steps) == 1 or (len(sets) == 1 and sets[0].receipt and not any(step.change.old for step in steps)):
        partials = [step.partial for step in steps if step.partial is not None]
        name_together(partials, overwrite=sets[0].overwrite)  # one rename, or a receipt by which `recovery` goes on
    else:
        _Publication(sets, steps).run()


def _steps(new: NewFiles) -> list[_Step]:
    several, last = len(new.outputs) > 1, new.outputs[-1]
    found = [_step(file.target, file, several and file is last) for file in new.outputs]
    taken = next((step.change.target for step in found if step.change.old), None)
    if taken is not None and not new.overwrite:
        raise exists_already(taken)
    receipt = _step(new.receipt_path, new.receipt, True)
    return [*found, receipt] if new.receipt or receipt.change.old else found


def _step(target: str, partial: Partial | None, first: bool) -> _Step:
    old = state_of(target)
    aside = None if old is None else partial_path(target, new_token())
    path, new = (partial.path, state_of(partial.path)) if partial else (None, None)
    return _Step(Change(target, path, aside, first, new, old), partial)


@dataclass(slots=True)
class _Step:
    """A change of one name, and how far it has come."""

    change: Change
    partial: Partial | None
    moved: bool = False
    named: bool = False

    def make_way(self) -> None:
        """Keep what has the name under another one."""
        change = self.change
        if change.aside is None:
            return
        try:
            if change.first or not _linked(change.target, change.aside):
                os.rename(change.target, change.aside)
        except OSError as error:
            raise of_os(error, "cannot be replaced", change.target) from None
        self.moved = True

    def name(self) -> None:
        """Give the new bytes their name."""
        if self.partial is not None:
            self.partial.give_name(overwrite=self.moved and not self.change.first)
            self.named = True

    def take_back(self) -> None:
        """Take the name from the new bytes, which keep their private one. Raises OSError."""
        change, partial = self.change, self.partial
        if partial is None or not self.named or not partial.is_at(change.target):
            return
        if not os.path.lexists(partial.path) and not _linked(change.target, partial.path):
            os.rename(change.target, partial.path)
        if change.aside is not None and not change.first:
            os.replace(change.aside, change.target)
            self.moved = False
        else:
            with suppress(FileNotFoundError):
                os.unlink(change.target)
        self.named = partial.published = False

    def restore(self) -> None:
        """Give the old bytes their name back, once no new ones have one. Raises OSError."""
        change = self.change
        if not self.moved or change.aside is None:
            return
        if os.path.lexists(change.target):
            os.unlink(change.aside)  # a second name
        else:
            os.rename(change.aside, change.target)
        self.moved = False


def _linked(path: str, other: str) -> bool:
    """Give a file a second name; False where the file system has no such names."""
    try:
        os.link(path, other)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return False
    return True


class _Publication:
    """Changes of names, carried out together."""

    def __init__(self, sets: Sequence[NewFiles], steps: Sequence[_Step]) -> None:
        self._steps = steps
        self._opened = {os.path.dirname(each.receipt_path): each.outputs[-1].target for each in sets}
        self._records: list[Partial] = []

    def run(self) -> None:
        """Change all names, or none."""
        try:
            self._write_down()
            for step in sorted(self._steps, key=lambda step: not step.change.first):
                step.make_way()
            for step in self._steps:
                step.name()
            for record in self._records:
                sync_folder(record.path)
        except BaseException as error:
            self._put_back(error)
            raise
        for step in self._steps:
            if step.moved and step.change.aside is not None:
                with suppress(OSError):  # the next writer of the same target sweeps it
                    os.unlink(step.change.aside)
            if step.partial is not None:
                step.partial.discard()
        self._forget()

    def _write_down(self) -> None:
        """Write a record into every folder, to disk, before anything changes."""
        folders: dict[str, list[_Step]] = defaultdict(list)
        for step in self._steps:
            folders[os.path.dirname(step.change.target)].append(step)
        for folder, steps in folders.items():
            record = Partial(self._opened[folder] + SUFFIX, new_token())
            self._records.append(record)
            record.write(packed([step.change for step in steps]))
            sync_folder(record.path)

    def _put_back(self, error: BaseException) -> None:
        """Undo what was done; where that fails too, leave all that `resolve` needs to go on."""
        try:
            for step in reversed(self._steps):
                step.take_back()
            for step in sorted(self._steps, key=lambda step: step.change.first):
                step.restore()
            self._forget()
        except OSError:
            for partial in (*self._records, *(step.partial for step in self._steps)):
                if partial is not None:
                    partial.keep()
            if isinstance(error, GgferryError):
                error.hint = "the same command, run again, finishes what was begun"

    def _forget(self) -> None:
        for record in self._records:
            record.discard()


# --- after a kill --------------------------------------------------------------------------------------------------


def resolve(target: str, left: Leftovers | None = None) -> Outcome | None:
    """Bring a publication to its end that was to change the name `target` and was interrupted.

    Where new bytes have a name already, the others get theirs; where none has, all is put back.

    Args:
        target: The name.
        left: The unfinished files in its folder; None where they are not listed yet.

    Returns:
        What was done; None where there is nothing to do.

    Raises:
        BusyError: Its writer is still at work.
        RefusedError: Somebody has put another file in the place of one of its files.
    """
    left, outcome = left or leftovers(os.path.dirname(target)), None
    for path, changes in records_in(left).items():
        if changes is None:
            if path in left.of(target + SUFFIX):
                _remove_unfinished(path, target)
        elif any(change.target == target for change in changes) and is_dead(path, target):
            outcome = _resolved(path, changes) or outcome
    return outcome


def _remove_unfinished(record: str, target: str) -> None:
    """Remove a record that was not written whole: nothing had changed."""
    if is_dead(record, target):
        with suppress(OSError):
            os.unlink(record)


def _resolved(record: str, changes: Sequence[Change]) -> Outcome | None:
    with ExitStack() as stack:
        for partial in claim([change.target for change in changes]):
            stack.enter_context(partial)
        if load(record) != tuple(changes):
            return None  # somebody else has resolved it meanwhile
        now = {change.target: state_of(change.target) for change in changes}
        for change in changes:
            _check_ours(change, now[change.target])
        forward = any(change.new is not None and now[change.target] == change.new for change in changes)
        try:
            for change in changes if forward else sorted(changes, key=lambda change: change.first):
                _go_on(change, now[change.target]) if forward else _go_back(change)
            sync_folder(record)
            for change in changes:
                for path in (change.partial, change.aside):
                    if path is not None:
                        _remove(path)
            _remove(record)
        except OSError as error:
            raise of_os(error, "cannot be put in place", changes[0].target) from None
    return "finished" if forward else "undone"


def _check_ours(change: Change, now: tuple[int, int] | None) -> None:
    """Raise RefusedError where the name holds neither old nor new bytes while some of them wait for it."""
    if now is None or now[0] == _EMPTY or now in (change.old, change.new):
        return
    if any(path and os.path.lexists(path) for path in (change.partial, change.aside)):
        raise RefusedError(
            "another file has taken this name since a run was interrupted that was to replace it",
            path=change.target,
            found=f"{now[0]:,} bytes",
            hint="move it away, and run the command again",
        )


def _go_on(change: Change, now: tuple[int, int] | None) -> None:
    if change.partial is None:
        if now is not None and now == change.old:
            os.unlink(change.target)
    elif now != change.new and os.path.lexists(change.partial):
        if now is None:
            name_new(change.partial, change.target)
        else:
            os.replace(change.partial, change.target)


def _go_back(change: Change) -> None:
    """Give the old bytes their name, if they lack it."""
    now = state_of(change.target)
    if change.aside is not None and os.path.lexists(change.aside) and now != change.old:
        os.replace(change.aside, change.target)
    elif change.old is None and now is not None and now[0] == _EMPTY and change.new is not None:
        os.unlink(change.target)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
