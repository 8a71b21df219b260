"""Several names change together: an error or a kill at any step leaves all old or all new, and nothing else."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ggferry.formats.errors import BusyError, GgferryError, RefusedError
from ggferry.formats.files import partial_files
from ggferry.formats.files.partial_files import claim, sweep
from ggferry.formats.files.publication import NewFiles, publish, resolve
from ggferry.formats.files.publication_record import is_interrupted
from helpers.attack_tools import typed

CALLS = ("rename", "replace", "link", "unlink", "fsync", "mkdir")
SHARDS, RECEIPT = ("m-1.gguf", "m-2.gguf", "m-3.gguf"), "m-1.gguf.receipt.json"
OUTTYPES = ("f16.gguf", "q8.gguf", "bf16.gguf")


def old(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f"older {name}")


def replace_shards(folder: Path) -> None:
    """The first is opened by loaders."""
    with ExitStack() as stack:
        targets = [str(folder / name) for name in (*SHARDS, RECEIPT)]
        made = [stack.enter_context(partial) for partial in claim(targets)]
        for partial in made:
            partial.write(f"new {os.path.basename(partial.target)}".encode())
        *shards, receipt = made
        publish([NewFiles(shards[::-1], receipt, receipt.target, overwrite=True)])


def make_ladder(folder: Path) -> None:
    with ExitStack() as stack:
        sets = []
        for name in OUTTYPES:
            path = str(folder / name)
            made = [stack.enter_context(partial) for partial in claim([path, f"{path}.receipt.json"])]
            for partial in made:
                partial.write(f"new {os.path.basename(partial.target)}".encode())
            sets.append(NewFiles(made[:1], made[1], made[1].target))
        publish(sets)


CASES: dict[str, tuple[Callable[[Path], None], tuple[str, ...], tuple[str, ...]]] = {
    "replaced shards": (replace_shards, (*SHARDS, RECEIPT), (*SHARDS, RECEIPT)),
    "replaced shards without a receipt": (replace_shards, SHARDS, (*SHARDS, RECEIPT)),
    "several new outputs": (make_ladder, (), (*OUTTYPES, *(f"{name}.receipt.json" for name in OUTTYPES))),
}


MOST = [pytest.param(case, marks=() if case == "replaced shards" else pytest.mark.slow) for case in CASES]


@contextmanager
def nth_call(number: int, then: Callable[[], None], links: bool) -> Iterator[list[int]]:
    """Call `then` in place of the call of that number, of those that change a folder; without links as FUSE may be."""
    done, patch = [0], pytest.MonkeyPatch()

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            done[0] += 1
            if done[0] == number:
                then()
            return real(*arguments, **named)

        return call

    def no_links(*arguments: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    for name in CALLS:
        patch.setattr(os, name, counted(getattr(os, name)))
    if not links:
        patch.setattr(os, "link", no_links)
        patch.setattr(partial_files, "rename_new", lambda path, target: False)
    try:
        yield done
    finally:
        patch.undo()


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def listed(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def is_old(found: dict[str, str], names: tuple[str, ...]) -> bool:
    return found == {name: f"older {name}" for name in names}


def is_new(found: dict[str, str], names: tuple[str, ...]) -> bool:
    return found == {name: f"new {name}" for name in names}


def steps_of(folder: Path, work: Callable[[Path], None], before: tuple[str, ...], links: bool) -> int:
    old(folder, *before)
    with nth_call(0, fail, links) as done:
        work(folder)
    return done[0]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("case", MOST)
def test_an_error_at_any_step_leaves_all_old_or_all_new(case: str, links: bool, tmp_path: Path) -> None:
    work, before, after = CASES[case]
    (tmp_path / "count").mkdir()
    steps = steps_of(tmp_path / "count", work, before, links)
    assert steps > len(after)
    for number in range(1, steps + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        old(folder, *before)
        raised = False
        with nth_call(number, fail, links):
            try:
                work(folder)
            except GgferryError:
                raised = True
        found = {name: text for name, text in listed(folder).items() if not name.startswith(".")}
        assert is_old(found, before) if raised else is_new(found, after), (number, listed(folder))
        resolve(str(folder / after[0]))  # as the next writer does, with what could not be removed
        sweep([str(folder / name) for name in after], ".receipt.json")
        assert listed(folder) == found, number


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("case", MOST)
def test_a_kill_at_any_step_is_finished_or_undone(case: str, links: bool, tmp_path: Path) -> None:
    work, before, after = CASES[case]
    (tmp_path / "count").mkdir()
    steps, outcomes = steps_of(tmp_path / "count", work, before, links), set()
    for number in range(1, steps + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        old(folder, *before)
        child = os.fork()
        if not child:
            with nth_call(number, lambda: os._exit(9), links):
                work(folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        found = listed(folder)
        if found.get("m-1.gguf"):  # what loaders open is never there with shards of another
            kind = found["m-1.gguf"].split()[0]
            assert all(found[name].startswith(kind) for name in SHARDS), number
        if found.get(RECEIPT) and found.get("m-1.gguf"):
            assert found[RECEIPT].split()[0] == found["m-1.gguf"].split()[0], number
        outcomes.add(resolve(str(folder / after[0])))
        sweep([str(folder / name) for name in after], ".none")
        found = listed(folder)
        assert is_old(found, before) or is_new(found, after), (number, found)
        assert resolve(str(folder / after[0])) is None
    assert outcomes == {None, "finished", "undone"}


def interrupted(folder: Path, number: int) -> None:
    """Replace shards, and be killed before a call."""
    old(folder, *SHARDS, RECEIPT)
    child = os.fork()
    if not child:
        with nth_call(number, lambda: os._exit(9), links=True):
            replace_shards(folder)
        os._exit(0)
    os.waitpid(child, 0)


def after_first_name(folder: Path) -> int:
    """The number of a call before which one new shard has its name and another has not."""
    for number in range(1, 100):
        trial = folder / f"trial{number}"
        trial.mkdir()
        interrupted(trial, number)
        texts = [(trial / name).read_text() for name in SHARDS if (trial / name).exists()]
        if any(text.startswith("new") for text in texts):
            return number
    raise AssertionError("no such call")


@pytest.mark.slow
def test_another_file_in_the_place_of_one_is_kept_and_named(tmp_path: Path) -> None:
    number = after_first_name(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    interrupted(folder, number)
    assert is_interrupted(str(folder / SHARDS[0]))
    (folder / SHARDS[0]).write_text("somebody's own copy")
    before = listed(folder)
    with pytest.raises(RefusedError, match="another file has taken this name") as raised:
        resolve(str(folder / SHARDS[0]))
    assert raised.value.path == str(folder / SHARDS[0]) and listed(folder) == before
    (folder / SHARDS[0]).unlink()
    assert resolve(str(folder / SHARDS[0])) == "finished"
    assert is_new(listed(folder), (*SHARDS, RECEIPT))


@pytest.mark.slow
def test_a_writer_that_lives_is_left_alone(tmp_path: Path) -> None:
    number = after_first_name(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    interrupted(folder, number)
    [held] = claim([str(folder / SHARDS[1])])
    with held, pytest.raises(BusyError):
        resolve(str(folder / SHARDS[0]))
    assert resolve(str(folder / SHARDS[0])) == "finished"


@pytest.mark.slow
def test_the_files_a_record_names_are_not_swept(tmp_path: Path) -> None:
    number = after_first_name(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    interrupted(folder, number)
    before = listed(folder)
    sweep([str(folder / name) for name in SHARDS], ".receipt.json")
    for partial in claim([str(folder / name) for name in SHARDS]):
        with partial:
            partial.sweep()
    assert listed(folder) == before


@pytest.mark.parametrize(
    "change",
    [
        {"partial": "../secret"},
        {"aside": "/etc/passwd"},
        {"partial": "notes.txt"},
        {"target": "../m.gguf"},
        {"partial": ".other.gguf.ggferry-0123456789abcdef.partial"},
        {"new": [1]},
        {"target": ".."},
        {"old": 3},
    ],
)
def test_a_planted_record_reaches_no_other_file(change: dict[str, object], tmp_path: Path) -> None:
    """What somebody put there names only what a run of ours would have written for that very target."""
    folder = tmp_path / "f"
    folder.mkdir()
    (tmp_path / "secret").write_text("x")
    (folder / "notes.txt").write_text("mine")
    (folder / "m.gguf").write_text("model")
    state = [5, (folder / "m.gguf").stat().st_mtime_ns]
    plain = {"target": "m.gguf", "partial": None, "aside": None, "first": True, "new": state, "old": None}
    record = folder / ".m.gguf.publication.ggferry-0123456789abcdef.partial"
    record.write_text(json.dumps({"publication": 1, "changes": [{**plain, **change}]}))
    assert resolve(str(folder / "m.gguf")) is None
    assert listed(folder) == {"notes.txt": "mine", "m.gguf": "model"} and (tmp_path / "secret").read_text() == "x"


@pytest.mark.slow
def test_doctor_says_what_was_interrupted_and_edit_recovers_it(tmp_path: Path) -> None:
    number = after_first_name(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    interrupted(folder, number)
    for name in SHARDS:  # the first of them has no name now
        found = typed("doctor", folder / name)
        assert "a run was interrupted" in found.out and "--recover" in found.out, name
    assert "finished" in typed("edit", folder / SHARDS[0], "--recover").out
    assert is_new(listed(folder), (*SHARDS, RECEIPT))
    assert "interrupted" not in typed("doctor", folder / SHARDS[0]).out
