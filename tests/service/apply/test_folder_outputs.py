"""A line of a plan whose output is a folder, or a file of whisper.cpp's: made, known, proved and kept as GGUF is."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import ggferry
from ggferry.formats.errors import UsageError
from ggferry.formats.files.output_folder import OutputFolder
from ggferry.service.apply import job
from ggferry.service.apply.recheck import recheck
from ggferry.service.plan import make_plan as planning
from ggferry.service.records.plan_file import read_plan, write_plan
from ggferry.service.records.receipts import files_kept
from ggferry.service.workers import supervisor
from helpers.archive_tools import applied, command, write
from helpers.builders import Llama
from helpers.killed_workers import apply_and_die, runner_by
from helpers.store_faults import s3_store
from helpers.whisper_models import save_whisper

RECEIPT = "ggferry.receipt.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))


def line_of(
    tmp_path: Path, dest: Path | str | None = "out", to: str = "safetensors", outtype: str = "keep", **more: Any
) -> Path:
    """The plan of `tmp_path / in`, made in this process."""
    place = str(tmp_path / dest) if dest == "out" else dest
    asked = planning.PlanRequest(
        (str(tmp_path / "in"),), place, outtype, "fast", {"to": to, **more}, limits=planning.Limits(4 << 30, 1)
    )
    write_plan(str(tmp_path / "plan"), *planning.plan(asked), overwrite=True)
    return tmp_path / "plan"


def there(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def alone(source: Path, folder: Path, **options: Any) -> dict[str, bytes]:
    """The files that one conversion writes."""
    folder.parent.mkdir(parents=True)
    ggferry.convert(source, folder, verify="fast", **options)
    return there(folder)


def change_a_byte(path: Path) -> bytes:
    before = path.read_bytes()
    path.write_bytes(bytes([before[0] ^ 1]) + before[1:])
    return before


def test_the_ledger_has_every_file_and_recheck_finds_a_changed_byte_in_any(source: Path, tmp_path: Path) -> None:
    path = line_of(tmp_path, max_shard_size="4K")
    _, (entry, *_) = read_plan(str(path))
    assert entry.output == str(tmp_path / "out" / "a")
    migration, _ = applied(path)
    (row,) = migration.ledger.rows()
    assert row["state"] == "done", row["error"]
    made = there(tmp_path / "out" / "a")
    assert made == alone(source, tmp_path / "alone" / "a", to="safetensors", max_shard_size="4K")
    assert len([name for name in made if name.endswith(".safetensors")]) > 2
    records = {each["name"]: (each["bytes"], each["blake3"]) for each in files_kept(row["receipt"])}
    assert records == {name: (len(data), blake3(data).hexdigest()) for name, data in made.items()}
    assert sum(map(len, made.values())) == entry.bytes_out + len(made[RECEIPT])
    for name in made:
        before = change_a_byte(tmp_path / "out" / "a" / name)
        ((_, problem),) = recheck(migration.ledger, 1, False, 0)
        assert problem == f"{name} is not what its receipt says"
        (tmp_path / "out" / "a" / name).write_bytes(before)
    assert [problem for _, problem in recheck(migration.ledger, 1, True, 0)] == [None]
    (tmp_path / "out" / "a" / "config.json").unlink()
    assert [problem for _, problem in recheck(migration.ledger, 1, False, 0)] == [
        "config.json is not what its receipt says"
    ]
    shutil.rmtree(tmp_path / "out" / "a")
    assert [problem for _, problem in recheck(migration.ledger, 1, False, 0)] == ["is gone"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "outtype", "name"),
    [
        ("safetensors", "keep", "a"),
        ("mlx", "q8_0", "a"),
        ("mlx", "keep", "a"),
        ("whisper.cpp", "q5_0", "ggml-w-q5_0.bin"),
    ],
)
def test_an_archive_as_a_user_runs_it(to: str, outtype: str, name: str, tmp_path: Path) -> None:
    if to == "whisper.cpp":
        save_whisper(tmp_path / "in" / "w")
    else:
        write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    path = tmp_path / "plan.jsonl"
    types = ["--outtype", outtype] if outtype != "keep" else []
    command(
        "plan",
        tmp_path / "in",
        "-o",
        path,
        "--to",
        to,
        *types,
        "--verify",
        "fast",
        "--dest",
        tmp_path / "out",
        "-j",
        "1",
    )
    _, (entry, *_) = read_plan(str(path))
    assert entry.verdict == "convert" and entry.options == {"to": to} and entry.output == str(tmp_path / "out" / name)
    command("apply", path, "-j", "1")
    expected = alone(Path(entry.source), tmp_path / "alone" / name, to=to, **({"outtype": outtype} if types else {}))
    if to == "whisper.cpp":
        expected = there(tmp_path / "alone")
    assert there(tmp_path / "out" if to == "whisper.cpp" else tmp_path / "out" / name) == expected
    facts = json.loads(Path(f"{path}.report.json").read_text())
    (model,) = [each for each in facts["models"] if each["state"] == "done"]
    assert model["bytes_out"] and model["verified"] == "fast" and model["grades"]
    command("ledger", "recheck", f"{path}.ledger", "--full")
    change_a_byte(next(path for path in (tmp_path / "out").rglob("*") if path.suffix in (".safetensors", ".bin")))
    assert "is not what its receipt says" in command("ledger", "recheck", f"{path}.ledger", code=1).stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--to", "safetensors", "--outtype", "q8_0"), "--outtype is for --to gguf"),
        (("--to", "mlx", "--outtype", "q2_k"), "--outtype of an MLX folder"),
        (("--to", "whisper.cpp", "--dtype", "f16"), "--dtype is for --to safetensors or mlx"),
        (("--to", "whisper.cpp", "--outtype", "iq2_xs"), "no type of whisper.cpp's files"),
        (("--max-shard-size", "1G"), "--max-shard-size is for --to safetensors or mlx"),
        (("--to", "pickle"), "gguf, safetensors, mlx, whisper.cpp"),
    ],
)
@pytest.mark.sampled(2)
def test_what_does_not_go_together_is_refused_as_the_command_line_does(
    options: tuple[str, ...], words: str, source: Path, tmp_path: Path
) -> None:
    one = command("convert", source, "-o", tmp_path / "x", *options, code=2).stderr
    several = command("plan", source.parent, "-o", tmp_path / "plan", *options, code=2).stderr
    assert words in one and words in several and not (tmp_path / "plan").exists()


def test_a_line_that_was_edited_so_is_refused(source: Path, tmp_path: Path) -> None:
    path = line_of(tmp_path)
    head, line = map(json.loads, path.read_text().splitlines())
    line["options"]["pure"] = True
    path.write_text(f"{json.dumps(head)}\n{json.dumps(line)}\n")
    with pytest.raises(UsageError, match="--pure is for --to gguf"):
        applied(path)


def test_an_output_in_the_folder_of_another_is_refused(source: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "b.bin", Llama(kind="F16", version=1, seed=1))
    path = line_of(tmp_path)
    head, one, other = map(json.loads, path.read_text().splitlines())
    other["output"] = f"{one['output']}/inner/b"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (head, one, other)))
    with pytest.raises(UsageError, match="an output in the folder of another"):
        applied(path)


@pytest.mark.slow
def test_names_of_folders_are_free_and_what_was_made_is_not_made_again(source: Path, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a" / "inner.bin", Llama(kind="F16", version=1, seed=1))  # `a` is a folder of models
    path = line_of(tmp_path, None)
    places = {Path(entry.source).name: str(entry.output) for entry in read_plan(str(path))[1]}
    assert places == {"a.bin": str(tmp_path / "in" / "a-2"), "inner.bin": str(tmp_path / "in" / "a" / "inner")}
    applied(path)
    again = {Path(entry.source).name: entry for entry in read_plan(str(line_of(tmp_path, None)))[1]}
    assert {name: str(again[name].output) for name in places} == places
    assert [again[name].verdict for name in ("a-2", "inner")] == ["skip", "skip"]
    assert again["inner"].reason == "a folder of this form already (--to safetensors)"


@pytest.mark.slow
def test_its_own_folder_is_adopted_and_no_other(source: Path, tmp_path: Path) -> None:
    path = line_of(tmp_path, dtype="f16")
    expected = alone(source, tmp_path / "out" / "a", to="safetensors", dtype="f16")
    made = (tmp_path / "out" / "a").stat().st_ino
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and row["adopted"] and (tmp_path / "out" / "a").stat().st_ino == made
    assert row["receipt"]["receipt_file"]["blake3"] == blake3(expected[RECEIPT]).hexdigest()
    for spoil in (change_a_byte, lambda path: path.with_name("more").write_bytes(b"x")):
        spoil(tmp_path / "out" / "a" / "config.json")
        before = there(tmp_path / "out")
        os.unlink(f"{path}.ledger")
        (row,) = applied(path)[0].ledger.rows()
        assert row["state"] == "failed" and "its files are not those of its receipt" in row["error"]["message"]
        assert there(tmp_path / "out") == before
        shutil.rmtree(tmp_path / "out")
        alone(source, tmp_path / "out" / "a", to="safetensors", dtype="f16")


@pytest.mark.slow
def test_a_folder_with_other_options_is_not_adopted(source: Path, tmp_path: Path) -> None:
    alone(source, tmp_path / "out" / "a", to="safetensors")
    (row,) = applied(line_of(tmp_path, dtype="f16"))[0].ledger.rows()
    assert row["state"] == "failed" and "its receipt is of other options" in row["error"]["message"]


@pytest.mark.parametrize("damaged", [None, pytest.param(RECEIPT, marks=pytest.mark.slow), "model.safetensors"])
def test_a_source_goes_when_every_file_is_what_was_proved(damaged: str | None, source: Path, tmp_path: Path) -> None:
    path = line_of(tmp_path)
    applied(path)
    if damaged:
        change_a_byte(tmp_path / "out" / "a" / damaged)
    (row,) = applied(path, delete_source=True)[0].ledger.rows()
    assert bool(row["deleted"]) is (damaged is None) is not source.exists()
    if damaged is None:  # what can be asked of the folder alone is
        assert [problem for _, problem in recheck(applied(path)[0].ledger, 1, True, 0)] == [None]


DYING = """
import os
from ggferry.formats.files.output_folder import OutputFolder
from ggferry.service.workers import process

def dying(real, number):
    count = 0
    def call(*arguments, **more):
        nonlocal count
        count += 1
        if count == number and not os.path.exists({marker!r}):
            die()
        real(*arguments, **more)
        if count == -number and not os.path.exists({marker!r}):
            die()
    return call

def die():
    open({marker!r}, "w").close()
    os.kill(os.getpid(), 9)

setattr(OutputFolder, {name!r}, dying(getattr(OutputFolder, {name!r}), {number}))
process.main()
"""


@pytest.mark.linux("SIGKILL of a worker that the test has changed")
@pytest.mark.parametrize(
    ("name", "number"),
    [("publish", 1), ("publish", -1), *(pytest.param("write", n, marks=pytest.mark.slow) for n in (1, 3, 5, -5))],
)
def test_killed_at_any_step_no_folder_looks_finished_and_the_next_makes_it(
    name: str, number: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(source, tmp_path / "alone" / "a", to="safetensors")
    marker = tmp_path / "died"
    runner = runner_by(tmp_path, DYING.format(marker=str(marker), name=name, number=number))
    monkeypatch.setattr(job, "RETRY_AFTER", 0.02)
    monkeypatch.setattr(supervisor.sys, "executable", str(runner))
    (row,) = applied(line_of(tmp_path))[0].ledger.rows()
    assert marker.exists() and row["state"] == "done" and row["attempts"] == 2, row["error"]
    assert bool(row["adopted"]) is ((name, number) == ("publish", -1))
    assert there(tmp_path / "out" / "a") == expected and [each.name for each in (tmp_path / "out").iterdir()] == ["a"]


@pytest.mark.linux("SIGKILL of a worker that the test has changed")
@pytest.mark.slow
def test_what_a_killed_run_left_is_swept(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = line_of(tmp_path)
    left = OutputFolder(str(tmp_path / "out" / "a"))
    (tmp_path / "out").mkdir()
    left.__enter__()
    left.write("config.json", b"{}")
    os.close(left._lock)
    left._lock = -1
    assert [each.name for each in (tmp_path / "out").iterdir()] != []
    migration, _ = applied(path)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["a"]
    migration.ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("upload", [0, 1, -1, 2, -2, 5, -5, -6])
def test_in_a_store_the_receipt_comes_last_and_a_killed_run_is_taken_up(
    upload: int, source: Path, tmp_path: Path
) -> None:
    expected = alone(source, tmp_path / "alone" / "a", to="safetensors")
    with s3_store() as store:
        path = line_of(tmp_path, "s3://new/hf")
        if upload:
            assert apply_and_die(path, upload) == -9
            there_now = {name.rpartition("/")[2] for name in store.system.find("new")}
            assert RECEIPT not in there_now or {*expected} <= there_now
        assert "1 done" in command("apply", path, "-j", "1").stdout
        found = {name.removeprefix("new/hf/a/"): store.system.cat_file(name) for name in store.system.find("new")}
        assert found == expected
        os.unlink(f"{path}.ledger")
        assert "1 done" in command("apply", path, "-j", "1").stdout  # found equal, nothing sent again
        command("ledger", "recheck", f"{path}.ledger")
        store.system.pipe_file("new/hf/a/config.json", b"{" + expected["config.json"][1:-1] + b" ")
        again = command("ledger", "recheck", f"{path}.ledger", code=1).stdout
        assert "config.json is not what its receipt says" in again
