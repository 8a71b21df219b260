"""`inspect` of folders: it died of every config.json that held an object, with --json of every one with Infinity."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.service.cli.describe import SHOWN_TEXT, describe, lines
from helpers.third_party_fixtures import FIXTURES

pytestmark = pytest.mark.attack

CHECKPOINTS = sorted(path for path in (FIXTURES / "hf" / "ckpt").iterdir() if path.is_dir())
CONFIG: dict[str, Any] = {
    "architectures": ["NobodyForCausalLM"],
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "quantization_config": {"quant_method": "gptq", "bits": 4, "modules": [["a", "b"], ["c"]], "none": None},
    "text_config": {"layer_types": ["full_attention"] * 200},
    "lists": [[1, 2], [], [[None, {"type": "array"}]]],
    "null": None,
    "empty": {},
    "nothing": [],
    "truth": True,
    "limit": [0.0, float("inf")],
    "nan": float("nan"),
    "big": 10**60,
    "type": {"type": "array", "value": 3},
    "text": "x" * 1000,
    "escaped": "a\x1b[31mb\nc",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tensor beside a configuration of every kind of value."""
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def shown(folder: Path, full: bool = False) -> dict[str, str]:
    """The table of the configuration, key → value as printed."""
    checkpoint = open_checkpoint(str(folder))
    text = list(lines(describe(checkpoint, full), full))
    checkpoint.close()
    rows = text[text.index("metadata") + 1 :]
    return {line.split()[0]: line.split(None, 1)[1] for line in rows if line.startswith("  ")}


def test_objects_and_lists_are_shown_as_json_on_one_line(folder: Path) -> None:
    table = shown(folder)
    assert table["rope_scaling"] == '{"rope_type": "llama3", "factor": 8.0}'
    assert table["lists"] == '[[1, 2], [], [[null, {"type": "array"}]]]'
    assert table["type"] == '{"type": "array", "value": 3}'
    assert (table["null"], table["empty"], table["nothing"], table["truth"]) == ("null", "{}", "[]", "true")
    assert table["big"] == str(10**60)
    assert table["text_config"].startswith('{"layer_types": ["full_attention", ') and table["text_config"].endswith("…")
    assert max(map(len, table.values())) <= SHOWN_TEXT + 1
    assert "\x1b" not in table["escaped"] and "\n" not in table["escaped"]


def test_full_cuts_nothing(folder: Path) -> None:
    table = shown(folder, full=True)
    assert json.loads(table["text_config"]) == CONFIG["text_config"] and table["text"] == CONFIG["text"]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.slow
def test_the_command_answers(folder: Path, as_json: bool) -> None:
    command = [Path(sys.executable).parent / "ggferry", "inspect", folder, *(["--json"] if as_json else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if as_json:
        found = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["metadata"]
        odd = {"limit": [0.0, "inf"], "nan": "nan"}
        assert found == {**CONFIG, **odd}, "a configuration is whole in --json"


@pytest.mark.parametrize("source", CHECKPOINTS, ids=lambda path: path.name)
def test_every_checkpoint_is_described(source: Path) -> None:
    checkpoint = open_checkpoint(str(source))
    facts = describe(checkpoint)
    assert set(json.loads((source / "config.json").read_text())) <= set(facts["metadata"])
    assert json.dumps(facts, allow_nan=False) and all(lines(facts))
    checkpoint.close()
