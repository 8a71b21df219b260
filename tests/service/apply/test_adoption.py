"""Outputs that stand already are adopted when this very job made them and they are proved afresh; nothing else is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.converters.conversion import verify as reverify
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.service.apply.recheck import recheck
from helpers.archive_tools import applied, planned, states, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "in" / "a.bin", Llama())


@pytest.fixture
def output(source: Path, tmp_path: Path) -> Path:
    """What a run left that was killed before it noted anything: the output and its receipt."""
    path = tmp_path / "out" / "a.gguf"
    path.parent.mkdir()
    convert(Request(str(source), str(path), level="fast"))
    return path


def receipt_of(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{output}.receipt.json").read_text())
    return found


def plant(output: Path, data: bytes, edit: Callable[[dict[str, Any]], object] = lambda receipt: None) -> None:
    """Put `data` there, and a receipt that fits it."""
    receipt = receipt_of(output)
    output.write_bytes(data)
    receipt["output"]["files"][0] |= {"bytes": len(data), "blake3": str(blake3(data).hexdigest())}
    edit(receipt)
    Path(f"{output}.receipt.json").write_text(json.dumps(receipt))


def run(source: Path, tmp_path: Path, verify: str = "fast") -> tuple[str, str, bool]:
    """`apply --delete-source`: how the job ended, why, and whether the source is there."""
    path = planned(source.parent, tmp_path / "out", tmp_path / "plan", verify)
    migration, _ = applied(path, delete_source=verify != "none")
    (row,) = migration.ledger.rows()
    return row["state"], (row["error"] or {}).get("message", "adopted" if row["adopted"] else ""), source.exists()


def test_the_jobs_own_output_is_adopted_and_not_made_again(source: Path, output: Path, tmp_path: Path) -> None:
    before = output.stat()
    assert run(source, tmp_path) == ("done", "adopted", False)
    assert output.stat().st_mtime_ns == before.st_mtime_ns and output.stat().st_ino == before.st_ino


def test_the_proof_is_made_in_the_worker(
    source: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(*_: object) -> None:
        raise AssertionError("the coordinator parsed a file that may be hostile")

    monkeypatch.setattr(reverify, "open_checkpoint", here)
    monkeypatch.setattr("ggferry.service.workers.existing_output.reprove", here)
    assert run(source, tmp_path)[:2] == ("done", "adopted")


def test_an_output_that_nobody_proved_is_not_adopted(source: Path, output: Path, tmp_path: Path) -> None:
    convert(Request(str(source), str(output), level="none", force=True))
    state, why, there = run(source, tmp_path)
    assert state == "failed" and "proved 'none', not 'fast'" in why and there


def test_a_proof_of_a_lower_level_is_not_enough(source: Path, output: Path, tmp_path: Path) -> None:
    state, why, there = run(source, tmp_path, "full")
    assert state == "failed" and "proved 'fast', not 'full'" in why and there


@pytest.mark.slow
def test_a_level_that_the_receipt_only_claims_is_not_enough(source: Path, output: Path, tmp_path: Path) -> None:
    plant(output, output.read_bytes(), lambda receipt: receipt.update(verified="full"))
    assert run(source, tmp_path, "full")[::2] == ("failed", True)


@pytest.mark.slow
def test_the_ledger_has_the_numbers_of_the_fresh_proof(source: Path, output: Path, tmp_path: Path) -> None:
    convert(Request(str(source), str(output), force=True))
    plant(output, output.read_bytes(), lambda receipt: receipt["logits"].update(top1_agreement=0.5))
    path = planned(source.parent, tmp_path / "out", tmp_path / "plan", "full")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and row["adopted"], row["error"]
    assert row["receipt"]["logits"]["top1_agreement"] == 1.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verify", ["fast", "none"])
def test_text_with_a_planted_receipt_is_not_adopted(verify: str, source: Path, output: Path, tmp_path: Path) -> None:
    plant(output, b"not a model at all")
    state, why, there = run(source, tmp_path, verify)
    assert state == "failed" and "exists already, and is not what this job would write" in why and there
    assert output.read_bytes() == b"not a model at all"


def test_a_receipt_that_names_another_file_is_not_adopted(source: Path, output: Path, tmp_path: Path) -> None:
    shutil.move(output, output.with_name("earlier.gguf"))
    plant_name = {"name": "earlier.gguf"}
    receipt = receipt_of(output)
    receipt["output"]["files"][0] |= plant_name
    Path(f"{output}.receipt.json").write_text(json.dumps(receipt))
    output.write_bytes(b"")
    state, why, there = run(source, tmp_path)
    assert state == "failed" and "of another file" in why and there


def test_a_receipt_that_names_a_shard_too_many_is_not_adopted(source: Path, output: Path, tmp_path: Path) -> None:
    plant(output, output.read_bytes(), lambda receipt: receipt["output"]["files"].append({"name": "b", "blake3": ""}))
    assert run(source, tmp_path)[::2] == ("failed", True)


def test_a_weight_that_was_changed_is_found_behind_a_fitting_receipt(
    source: Path, output: Path, tmp_path: Path
) -> None:
    data = bytearray(output.read_bytes())
    data[-100] ^= 1
    plant(output, bytes(data))
    state, why, there = run(source, tmp_path)
    assert state == "failed" and "not what this conversion gives" in why and there


def test_a_key_that_was_changed_is_found_behind_a_fitting_receipt(source: Path, output: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(output))
    name = str(checkpoint.metadata["general.name"].data).encode()
    checkpoint.close()
    plant(output, output.read_bytes().replace(name, name.swapcase()))
    state, why, there = run(source, tmp_path)
    assert state == "failed" and "metadata general." in why and there


@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", ["dropped", "tensors", "hparams"])
def test_a_receipt_that_lies_is_not_adopted(key: str, source: Path, output: Path, tmp_path: Path) -> None:
    plant(output, output.read_bytes(), lambda receipt: receipt[key].clear() or receipt.update({key: [{"name": "x"}]}))
    state, why, there = run(source, tmp_path)
    assert state == "failed" and "receipt" in why and there


def test_an_output_without_a_receipt_is_somebody_elses(source: Path, output: Path, tmp_path: Path) -> None:
    Path(f"{output}.receipt.json").unlink()
    state, why, there = run(source, tmp_path)
    assert state == "failed" and "exists already, without a receipt" in why and there


# --- what earlier versions adopted ---------------------------------------------------------------------------


@pytest.fixture
def finished(source: Path, tmp_path: Path) -> Any:
    """A ledger with one job that is done, its source deleted."""
    path = planned(source.parent, tmp_path / "out", tmp_path / "plan")
    migration, _ = applied(path, delete_source=True)
    assert states(migration) == {"a.bin": "done"} and not source.exists()
    assert [problem for _, problem in recheck(migration.ledger, 1, True, 4 << 30)] == [None]
    return migration.ledger


def put(ledger: Any, edit: Callable[[dict[str, Any]], object]) -> list[str | None]:
    """Edit the receipt that the ledger has; what `recheck --full` says then."""
    (row,) = ledger.rows()
    edit(row["receipt"])
    with ledger.transaction() as connection:
        connection.execute(ledger.jobs.update().values(receipt=row["receipt"]))
    return [problem for _, problem in recheck(ledger, 1, True, 4 << 30)]


def test_recheck_says_what_was_never_proved(finished: Any) -> None:
    (said,) = put(finished, lambda receipt: receipt.update(verified="none"))
    assert said == "its output was proved 'none', not 'fast'"


def test_recheck_opens_what_has_the_right_digest(finished: Any, tmp_path: Path) -> None:
    data = b"not a model at all"
    (tmp_path / "out" / "a.gguf").write_bytes(data)
    record = {"name": "a.gguf", "bytes": len(data), "blake3": str(blake3(data).hexdigest())}
    assert put(finished, lambda receipt: receipt["output"].update(files=[record])) != [None]


def test_recheck_compares_the_tensors_of_an_output_whose_source_is_gone(finished: Any) -> None:
    (said,) = put(finished, lambda receipt: receipt["tensors"].pop())
    assert said is not None and "not those of the receipt" in said


def test_recheck_looks_at_the_file_that_it_names(finished: Any, tmp_path: Path) -> None:
    shutil.move(tmp_path / "out" / "a.gguf", tmp_path / "out" / "earlier.gguf")
    (tmp_path / "out" / "a.gguf").write_bytes(b"")
    (said,) = put(finished, lambda receipt: receipt["output"]["files"][0].update(name="earlier.gguf"))
    assert said == "is not what its receipt says"
