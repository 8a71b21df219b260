"""Which kernels a conversion asks for: those of the types that occur, before they are needed, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from ggferry.quant import kernels

kernels.ENOUGH = kernels.ENOUGH_WITH_NUMBA = 1 << 17  # so that a tiny model has work enough
asked, called = [], []
kernels.Compiled.if_possible = lambda self: asked.append(self.name)
kernels.Encoder._rehearse = lambda self, columns, weighted: asked.append(self.name + " weighted" * weighted)
kernels._in_background = lambda work: work()
encode = kernels.Encoder.__call__


def once(self, values, weights=None):
    called.append(self.name + " weighted" * (weights is not None))
    return encode(self, values, weights)


kernels.Encoder.__call__ = once
from ggferry.service.cli.app import _run

code = _run(["convert", *sys.argv[1:]])
print(json.dumps([code, asked, sorted(set(called))]), file=sys.stderr)
"""

MATRIX = "quantize/k256.imatrix.gguf"
CASES: dict[str, list[str]] = {
    "hf/ckpt/llama_k256 --outtype q8_0 --verify none": ["bf16", "encode_q8_0"],
    "hf/ckpt/llama_k256 --outtype q8_0 --verify fast": ["bf16", "encode_q8_0", "q8_0", "apart"],
    "hf/ckpt/llama_k256 --outtype q4_k_m --verify none": ["bf16", "encode_q6_k", "encode_q4_k"],
    "hf/ckpt/llama_k256 --outtype q4_k_m --verify fast": [
        "bf16",
        "encode_q6_k",
        "encode_q4_k",
        "apart",
        "alike",
        "q4_k",
        "q6_k",
    ],
    f"hf/ckpt/llama_k256 --outtype q4_k_m --verify none --imatrix {MATRIX}": [
        "bf16",
        "encode_q6_k",
        "encode_q4_k",
        "encode_q4_k weighted",
        "encode_q6_k weighted",
    ],
    "hf/ckpt/llama_k256 --outtype f16 --verify none": ["bf16", "narrow_f16"],
    "hf/ckpt/llama_k256 --outtype f16 --verify fast": ["bf16", "narrow_f16", "f16", "apart"],
    "hf/ckpt/llama_k256 --outtype keep --verify none": [],
    "legacy-llama/ggjt1-20230428/q4_0.bin --verify none": [],
    "legacy-llama/ggjt1-20230428/q4_0.bin --verify fast": ["q4_0_v1", "q4_0", "apart"],
}


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=() if "fast" in one and "q4_k_m" in one else pytest.mark.slow) for one in CASES]
)
def test_only_what_occurs_is_asked_for(command: str, fixtures: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command.split(), "-o", str(tmp_path / "out.gguf")],
        cwd=fixtures,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, asked, called = json.loads(done.stderr.splitlines()[-1])
    assert code == 0 and sorted(asked) == sorted(CASES[command]), asked
    writing = [name for name in asked if name.startswith(("bf16", "encode", "narrow"))]
    assert asked[: len(writing)] == writing, "what is written with is wanted first"
    assert {*called} == {name for name in asked if name.startswith("encode")}
