"""The statistics of importance matrices, line by line as llama.cpp's own functions print them.

fixtures/quantize/statistics: random matrices, and what show_statistics of tools/imatrix/imatrix.cpp (b11549), compiled
by itself, prints of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggferry.service.cli.app import _run


@pytest.mark.parametrize("name", ["squares", "activations", "predicting", "named", "gap"])
def test_every_line_is_llama_cpps(
    name: str, fixtures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(fixtures / "quantize" / "statistics")
    assert _run(["imatrix", f"{name}.gguf", "--show-statistics"]) == 0
    said, expected = capsys.readouterr().out.splitlines(), Path(f"{name}.txt").read_text().splitlines()
    if name == "gap":
        assert said.pop().startswith("layer sequence gap detected (found 4 layers in range 0-4, expected 5)")
        assert said.pop() == ""
    assert said == expected


def test_a_measured_matrix_and_a_dat_file_have_statistics(
    fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = fixtures / "quantize" / "k256.imatrix.gguf"
    assert _run(["imatrix", str(matrix), "--show-statistics", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["tensors"]) == 14 and len(found["blocks"]) == 2
    assert {one["block"] for one in found["tensors"]} == {0, 1}
    (tmp_path / "x").write_bytes(b"no matrix")
    assert _run(["imatrix", str(tmp_path / "x"), "--show-statistics"]) == 5
    assert _run(["imatrix", str(matrix)]) == 2  # neither a text nor a matrix
