"""A model that sees, in a repository of the Hub's stand-in: both of its files, by one command and by a plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.archive_tools import command, plan
from helpers.hub import REPO, hub
from helpers.vision_encoders import VISION_ENCODERS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_both_files_are_made_of_a_repository(tmp_path: Path) -> None:
    here = VISION_ENCODERS["pixtral"].saved(tmp_path / "tiny", VISION_ENCODERS["pixtral"].tiny())
    command("convert", here, "-o", tmp_path / "local.gguf", "--no-vocab", "--verify", "fast")
    root = tmp_path / "repo"
    with hub(root, tmp_path / "home") as env:
        shutil.copytree(here, root, dirs_exist_ok=True)
        command("convert", f"hf://{REPO}", "-o", tmp_path / "far.gguf", "--no-vocab", "--verify", "fast", **env)
        lines = tmp_path / "plan.jsonl"
        (line,) = plan(f"hf://{REPO}", lines, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1", **env)
        assert line["verdict"] == "incomplete" and "no tokenizer file was found" in line["reason"]
        line |= {"verdict": "convert", "output": str(tmp_path / "out" / "far.gguf"), "options": {"no_vocab": True}}
        lines.write_text("\n".join([lines.read_text().splitlines()[0], json.dumps(line), ""]))
        command("apply", lines, "-j", "1", **env)
    local = (tmp_path / "local.gguf", tmp_path / "mmproj-local.gguf")
    for first in (tmp_path / "far.gguf", tmp_path / "out" / "far.gguf"):
        ours = json.loads(first.with_name(f"{first.name}.receipt.json").read_text())
        both = [tensor["name"] for path in (first, _second(first)) for tensor in _tensors(path)]
        assert sorted(both) == sorted(tensor["name"] for path in local for tensor in _tensors(path))
        assert _second(first).name in json.dumps(ours)


def _second(first: Path) -> Path:
    return first.with_name(f"mmproj-{first.name}")


def _tensors(path: Path) -> list[dict[str, str]]:
    tensors: list[dict[str, str]] = json.loads(path.with_name(f"{path.name}.receipt.json").read_text())["tensors"]
    return tensors
