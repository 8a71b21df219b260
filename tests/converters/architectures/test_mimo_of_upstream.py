"""MiMo-V2 as llama.cpp's converter writes it (b11549, `conversion/mimo.py`), which was run to see how.

Windows are numbers, no key says the router's kind; queries, keys and values are apart, in one tensor, or apart in
further blocks alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from safetensors.numpy import load_file

from ggferry.converters.forward.evaluate import forward, part_compared
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import graph_of, understand
from helpers.next_tokens import further_logits, predicting
from helpers.tiny import TOKENS
from helpers.tiny_models import relative, write

PARTS = ("attn_q", "attn_k", "attn_v")
FIRST = 4
"""The first block of the tiny model that predicts further tokens."""


def as_upstream(source: Path, weights: dict[str, np.ndarray], out: Path, joined: range) -> None:
    """Write the file anew by gguf-py: without the router's kind, windows as numbers, those of `joined` in one tensor,
    and those of other blocks apart, as the checkpoint has them."""
    writer = GGUFWriter(out, "mimo2")
    reader = GGUFReader(source)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "mimo2.expert_gating_func"):
            continue
        value, kind = field.contents(), field.types[0]
        if name.endswith("sliding_window_pattern"):
            writer.add_array(name, [int(item) for item in value])
        else:
            writer.add_key_value(name, value, kind, field.types[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        if not any(f".{part}" in tensor.name for part in (*PARTS, "attn_qkv")):
            writer.add_tensor(tensor.name, tensor.data)
    for n in range(FIRST + 1):
        at = f"model.layers.{n}" if n < FIRST else f"model.mtp.layers.{n - FIRST}"
        three = [weights[f"{at}.self_attn.{part[-1]}_proj.weight"] for part in PARTS]
        if n in joined:
            writer.add_tensor(f"blk.{n}.attn_qkv.weight", np.concatenate(three))
        else:
            for part, matrix in zip(PARTS, three, strict=True):
                writer.add_tensor(f"blk.{n}.{part}.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "joined",
    [
        pytest.param(range(0), id="apart"),
        pytest.param(range(FIRST), id="the decoder's joined"),
        pytest.param(range(FIRST + 1), id="joined", marks=pytest.mark.slow),
        pytest.param(range(FIRST, FIRST + 1), id="those of further blocks joined", marks=pytest.mark.slow),
    ],
)
def test_its_files_are_read(joined: range, tmp_path: Path) -> None:
    logits = predicting("mimo2", tmp_path / "hf")
    expected = np.concatenate((logits, further_logits("mimo2", tmp_path / "hf")))
    ours = write(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path / "ours.gguf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    as_upstream(ours, weights, tmp_path / "theirs.gguf", joined)
    graph = graph_of(str(tmp_path / "theirs.gguf"))
    assert graph.sizes["n_nextn"] == 1 and graph.sizes["swa_layers"] == (False, True, True, False, True)
    assert relative(expected, forward(graph, TOKENS, part=part_compared(graph))) <= 1e-5
