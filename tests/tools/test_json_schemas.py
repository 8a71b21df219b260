"""docs/schemas: made of the records, and what the program writes is as they say, by a validator that is not ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import json_schemas
import pytest
from jsonschema import Draft202012Validator

import ggferry
from ggferry.service.cli.app import _run
from helpers.archive_tools import applied, planned
from helpers.schemas import faults, loaded

LEGACY = "legacy-llama/ggjt1-20230428/q4_0.bin"


@pytest.mark.parametrize("name", json_schemas.NAMES)
def test_the_files_are_those_of_the_records(name: str) -> None:
    assert json_schemas.path(name).read_text() == json_schemas.text(name), "python tools/json_schemas.py"
    Draft202012Validator.check_schema(loaded(name))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    """Outputs of several kinds, each with its receipt."""
    folder = tmp_path_factory.mktemp("schemas")
    legacy, checkpoint = fixtures / LEGACY, fixtures / "hf" / "ckpt" / "llama"
    ggferry.convert(legacy, folder / "keep.gguf")
    ggferry.convert(legacy, folder / "fast.gguf", outtype="f16", verify="fast")
    ggferry.convert(legacy, folder / "none.gguf", outtype="f16", verify="none")
    ggferry.convert(checkpoint, folder / "rounded.gguf", outtype="q8_0")
    ggferry.convert(fixtures / "hf" / "ckpt" / "bert", folder / "states.gguf")
    ggferry.convert(folder / "fast.gguf", folder / "back", to="safetensors")
    for line in (
        f"edit {folder}/keep.gguf --set general.name=x -o {folder}/edited.gguf",
        f"split {folder}/keep.gguf -o {folder}/s.gguf --split-max-tensors 8",
    ):
        assert _run(line.split(" ")) == 0
    return folder


def receipts(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.receipt.json")):
        yield path.name, json.loads(path.read_text())


def test_receipts(written: Path) -> None:
    found = {name: faults("receipt", value) for name, value in receipts(written)}
    assert len(found) == 7 and {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_receipt_of_a_folder(written: Path) -> None:
    [path] = (written / "back").glob("*receipt.json")
    assert faults("folder-receipt", json.loads(path.read_text())) == []


def test_plans_and_reports(fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = (fixtures / LEGACY).read_bytes()
    for name, cut in (("whole", len(data)), ("cut", 5000)):
        (tmp_path / "in" / f"{name}.bin").write_bytes(data[:cut])
    (tmp_path / "in" / "twice.bin").write_bytes(data)
    plan = planned(tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl")
    lines = [json.loads(line) for line in plan.read_text().splitlines()[1:]]
    assert len({line["verdict"] for line in lines}) == 3
    assert [wrong for line in lines for wrong in faults("plan-line", line)] == []
    run, _ = applied(plan)
    run.ledger.close()
    assert _run(["ledger", "export", f"{plan}.ledger", "-o", str(tmp_path / "report")]) == 0
    assert faults("report", json.loads((tmp_path / "report.json").read_text())) == []


def test_what_is_wrong_is_found(written: Path) -> None:
    _, receipt = next(receipts(written))
    assert faults("receipt", receipt) == []
    assert faults("receipt", {**receipt, "tensors": [{**receipt["tensors"][0], "offset": "0"}]})
    assert faults("receipt", {**receipt, "unknown": 1}) and not [
        *Draft202012Validator(loaded("receipt")).iter_errors({**receipt, "unknown": 1})
    ]
    del receipt["verified"]
    assert faults("receipt", receipt)
