"""Lines of a plan that no ggferry wrote: every one is told by its number and key, and nothing is written elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import CorruptError, UsageError
from ggferry.service.records.plan_file import read_plan
from helpers.archive_tools import command, plan, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The lines of a good plan of two models."""
    root = tmp_path_factory.mktemp("made")
    for seed in range(2):
        write(root / "in" / f"{seed}.bin", Llama(seed=seed))
    plan(root / "in", root / "plan.jsonl", "--dest", root / "out", "-j", "1", "--verify", "none")
    return [json.loads(line) for line in (root / "plan.jsonl").read_text().splitlines()]


def written(lines: list[dict[str, Any]], path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bytes_in", "x"),
        ("bytes_in", -1),
        ("bytes_in", True),
        ("bytes_in", 1.5),
        ("bytes_in", 1 << 70),
        ("output", 5),
        ("output", ["a"]),
        ("source", None),
        ("verdict", 1),
        ("files", "x"),
        ("files", [5]),
        ("files", {"a": 1}),
        ("beside", [None]),
        ("gpus", "1"),
        ("gpus", float("nan")),
        ("gpus", float("inf")),
        ("options", "q8_0"),
        ("options", [1]),
        ("notes", "text"),
        ("notes", [1]),
        ("grades", {"a": "b"}),
        ("version", "3"),
        ("memory", None),
        ("same_as", 1),
        ("lost", ["x"]),
        ("error", "x"),
        ("unheard", 1),
    ],
)
def test_a_value_of_another_kind_is_told_by_line_and_key(
    made: list[dict[str, Any]], key: str, value: Any, tmp_path: Path
) -> None:
    path = written([made[0], made[1], {**made[2], key: value}], tmp_path / "plan.jsonl")
    with pytest.raises(UsageError, match="line 3 of the plan") as caught:
        read_plan(str(path))
    assert key in str(caught.value)


@pytest.mark.parametrize("key", ["source", "verdict"])
def test_a_missing_key_is_named(made: list[dict[str, Any]], key: str, tmp_path: Path) -> None:
    line = {name: value for name, value in made[1].items() if name != key}
    with pytest.raises(UsageError, match=f"line 2 of the plan: a key is missing: expected {key}"):
        read_plan(str(written([made[0], line], tmp_path / "plan.jsonl")))


@pytest.mark.parametrize("change", [{"path": 5}, {"bytes": "1"}, {"version": None}, {"more": 1}])
def test_a_file_of_another_kind_is_told(made: list[dict[str, Any]], change: dict[str, Any], tmp_path: Path) -> None:
    line = {**made[1], "files": [{**made[1]["files"][0], **change}]}
    with pytest.raises(UsageError, match="line 2 of the plan: files") as caught:
        read_plan(str(written([made[0], line], tmp_path / "plan.jsonl")))
    assert next(iter(change)) in str(caught.value)


@pytest.mark.parametrize("change", [{"roots": "x"}, {"roots": [1]}, {"dest": 5}, {"verify": None}, {"more": 1}])
def test_the_first_line_too(made: list[dict[str, Any]], change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the plan's first line"):
        read_plan(str(written([{**made[0], **change}, made[1]], tmp_path / "plan.jsonl")))


@pytest.mark.parametrize("line", [b"5", b"[]", b'"x"', b"{", b"\xff", b"[" * 100000, b"null"])
def test_what_is_no_object_is_corrupt(made: list[dict[str, Any]], line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_bytes(json.dumps(made[0]).encode() + b"\n" + line + b"\n")
    with pytest.raises(CorruptError, match="line 2 of the plan"):
        read_plan(str(path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [
        {"expand": 5},
        {"hparams": 5},
        {"hparams": {"a": 1}},
        {"model_name": 5},
        {"tokenizer_model": ["x"]},
        {"allow_requantize": "yes"},
        {"verify": "bogus"},
        {"outtype": None},
        {"outtyp": "q8_0"},
    ],
)
def test_options_of_another_kind_are_no_internal_error(
    made: list[dict[str, Any]], options: dict[str, Any], tmp_path: Path
) -> None:
    path = written([made[0], {**made[1], "options": options}], tmp_path / "plan.jsonl")
    done = command("apply", path, "-j", "1", "--dry-run", code=2)
    assert next(iter(options)) in done.stderr and "internal" not in done.stderr


def elsewhere(lines: list[dict[str, Any]], tmp_path: Path) -> list[str]:
    dest = lines[0]["dest"]
    return [f"{dest}/../esc/x.gguf", "x.gguf", f"{dest}x/x.gguf", str(tmp_path / "x.gguf"), "s3://bucket/x.gguf", dest]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(6))
def test_an_output_outside_dest_is_refused_before_anything(
    made: list[dict[str, Any]], number: int, tmp_path: Path
) -> None:
    output = elsewhere(made, tmp_path)[number]
    path = written([made[0], made[1], {**made[2], "output": output}], tmp_path / "plan.jsonl")
    done = command("apply", path, "-j", "1", code=7)
    assert output in done.stderr and "--allow-outside-dest" in done.stderr
    assert not Path(f"{path}.ledger").exists() and not Path(made[0]["dest"]).exists()


def test_an_output_outside_dest_is_written_where_that_is_allowed(made: list[dict[str, Any]], tmp_path: Path) -> None:
    output = tmp_path / "elsewhere" / "x.gguf"
    path = written([made[0], {**made[1], "output": str(output)}], tmp_path / "plan.jsonl")
    command("apply", path, "-j", "1", "--allow-outside-dest")
    assert output.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: out + ".receipt.json", "the name of a receipt"),
        (lambda out: out.replace("/out/", "/out/./"), "two models with one output"),
        (lambda out: out.replace("/out/", "//out//"), "two models with one output"),
        (lambda out: f"file://{out}", "two models with one output"),
    ],
)
def test_two_files_of_one_name_are_told(
    made: list[dict[str, Any]], change: Callable[[str], str], words: str, tmp_path: Path
) -> None:
    path = written([*made[:2], {**made[2], "output": change(made[1]["output"])}], tmp_path / "plan.jsonl")
    with pytest.raises(UsageError, match=words):
        read_plan(str(path))


BAD_LINE = {"source": "/in/b", "verdict": "corrupt", "error": {"class": "CorruptError", "message": "e"}}


@pytest.mark.parametrize("second", [BAD_LINE, {**BAD_LINE, "error": {"class": 3}}, {**BAD_LINE, "verdict": "skip"}])
def test_two_lines_of_one_job_are_named(made: list[dict[str, Any]], second: dict[str, Any], tmp_path: Path) -> None:
    """Found by `make fuzz`: the ledger has one row for each job, and sqlalchemy's IntegrityError came out."""
    path = written([*made[:2], BAD_LINE, made[2], second], tmp_path / "plan.jsonl")
    with pytest.raises(UsageError, match=r"lines 3 and 5 of the plan .*: found /in/b"):
        read_plan(str(path))
    assert "internal" not in command("apply", path, "-j", "1", code=2).stderr
    assert not Path(f"{path}.ledger").exists()


@pytest.mark.slow
def test_one_source_may_have_two_lines(made: list[dict[str, Any]], tmp_path: Path) -> None:
    """A line may be copied for an output of another type."""
    copied = {**made[1], "output": made[1]["output"] + ".q8_0.gguf", "options": {"outtype": "q8_0"}}
    path = written([*made, copied], tmp_path / "plan.jsonl")
    command("apply", path, "-j", "1")
    assert Path(made[1]["output"]).exists() and Path(copied["output"]).exists()
