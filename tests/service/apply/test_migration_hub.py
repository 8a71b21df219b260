"""A repository of the Hub as a source, through a stand-in that answers as the Hub does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.archive_tools import command, plan, write
from helpers.builders import Llama
from helpers.hub import REPO, hub


@pytest.mark.slow
def test_a_repository_is_read_by_ranges(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    with hub(root, tmp_path / "home") as env:
        check(root, env, tmp_path)


def check(root: Path, env: dict[str, str], tmp_path: Path) -> None:
    write(root / "old.bin", Llama(kind="F16", version=1))
    (root / "README.md").write_text("---\nlicense: apache-2.0\n---\nAn old model.\n")
    path = tmp_path / "plan.jsonl"
    entries = plan(f"hf://{REPO}", path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1", **env)
    assert {entry["source"].rpartition("/")[2]: entry["verdict"] for entry in entries} == {
        "README.md": "other",
        "old.bin": "convert",
    }
    command("apply", path, "-j", "1", **env)
    local = tmp_path / "local.jsonl"
    plan(root, local, "--dest", tmp_path / "same", "--verify", "fast", "-j", "1")
    command("apply", local, "-j", "1")
    receipts = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("*/old.gguf.receipt.json"))]
    ways = [receipt["source"]["files"][0].pop("transport", "") for receipt in receipts]
    assert [way.partition(":")[0] for way in ways] == ["not checked", ""]  # the Hub states SHA-256 of large files
    assert len(receipts) == 2 and receipts[0]["source"]["files"] == receipts[1]["source"]["files"]
    assert receipts[0]["verified"] == "fast"
