"""Everything other programs made, with everything bad among it, in one plan and one apply."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from ggferry.service.records.ledger import Ledger
from helpers.archive_tools import command, plan, rows, spoil
from helpers.third_party_fixtures import FIXTURES, legacy_llama, root_cases

WEIGHTS = ("legacy-llama", "legacy-other", "hf", "quantize", "lora")


@pytest.mark.slow
@pytest.mark.parametrize("source", root_cases())
def test_everything_migrates(source: Path, tmp_path: Path) -> None:
    root, dest, path = tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl"
    for name in WEIGHTS:
        shutil.copytree(source / name, root / name, ignore=shutil.ignore_patterns("*.npy"))
    states = spoil(root, FIXTURES, tmp_path / "canary")
    copies = {"copy-of-a.bin": "ggjt3-20230821/q4_0.bin", "copy-of-b.bin": "ggmf1-20230330/q4_1.bin"}
    for copy, of in copies.items():
        shutil.copy(root / "legacy-llama" / of, root / copy)
    before = {p: p.stat().st_size for p in root.rglob("*") if p.is_file()}
    entries = plan(root, path, "--dest", dest, "-j", "2")
    planned = {os.path.relpath(entry["source"], root): entry for entry in entries}
    listed = {each["path"] for entry in entries for name in ("files", "beside") for each in entry.get(name, ())}
    assert listed == {str(p) for p in before}, "a file that nobody speaks of"
    command("apply", path, "-j", "2", "--threads", "1", code=1)
    found = {os.path.relpath(source, root): row for source, row in rows(f"{path}.ledger").items()}
    assert {name: found[name]["state"] for name in states} == states
    assert not (tmp_path / "canary").exists()
    wrong = {
        name: row["error"]
        for name, row in found.items()
        if planned[name]["verdict"] == "convert" and row["state"] not in ("done", "skipped")
    }
    assert not wrong, f"planned to convert, and did not: {json.dumps(wrong, indent=1)}"
    assert Counter(row["state"] for row in found.values()).keys() <= {"done", "skipped", "quarantined"}
    for _, entry in legacy_llama():
        name = f"legacy-llama/{entry['file']}"
        if name in found:  # the second shard of a model has no line of its own
            bad = found[name]["state"] == "quarantined"
            assert not bad, (name, found[name]["error"])
    for copy in copies:
        pair = {copy, f"legacy-llama/{copies[copy]}"}
        assert sorted(planned[name]["verdict"] for name in pair) == ["convert", "duplicate"]
    assert {p: p.stat().st_size for p in before} == before, "a source was touched"
    book = Ledger(f"{path}.ledger")
    for row in book.rows(states=["done"]):
        assert row["receipt"]["verified"] in ("full", "fast") and Path(row["output"]).is_file(), row["source"]
    book.close()
    page = Path(f"{path}.report.html").read_text()
    assert page.count("<tr>") > len(found) / 3 and "<script" not in page
