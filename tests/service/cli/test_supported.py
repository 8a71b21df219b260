"""`ggferry architectures` and `ggferry types`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggferry.service.cli.app import _run
from helpers.third_party_fixtures import ROOT

MAP = str(ROOT / "benchmarks" / "convert_hf_to_gguf_classes.json")


def test_tables_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["architectures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert _run(["architectures", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["architectures"]
    assert [line.split()[0] for line in lines[1:]] == [each["name"] for each in known]
    assert _run(["types"]) == 0
    text = capsys.readouterr().out
    assert _run(["types", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for each in (*found["outtypes"], *found["blocks"]):
        assert any(line.split()[:1] == [each["name"]] for line in text.splitlines())


def test_coverage_of_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "names.txt"
    plain.write_text("LlamaForCausalLM\nNoSuchModel\n")
    assert _run(["architectures", "--coverage", str(plain)]) == 0
    out = capsys.readouterr().out
    assert "not read  NoSuchModel" in out and "1 of 2 class names are read" in out
    assert _run(["architectures", "--coverage", MAP, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["listed"]) == 269


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b'{"classes": 3}', b"[" * 100_000])
def test_a_bad_list_is_one_of_our_errors(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "names.json"
    path.write_bytes(data)
    assert _run(["architectures", "--coverage", str(path)]) == 5
    assert "internal" not in capsys.readouterr().err
