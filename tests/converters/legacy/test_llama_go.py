"""llama.go's row: the Go program in the project's seed loads GGJT v1 F32/F16 files and evaluates them.

`Eval` is written out here in float64, graph operation by graph operation, from that program's text: `ml.RMSNorm`
(eps 1e-5 there), `ml.Rope` on interleaved pairs, causal softmax attention scaled by 1/sqrt(n_embd / n_head), and
`w2(silu(w1 x) * w3 x)`. Every file its `LoadModel` accepts must convert, and our forward pass must be its `Eval`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.understand import graph_of
from helpers.builders import Llama
from helpers.third_party_fixtures import cases, witness

EPS = 1e-5
TOKENS = [1, 17, 299, 260, 5, 5, 130]


def llama_go_eval(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits of every position, float64."""
    checkpoint = open_checkpoint(str(path))
    head = checkpoint.header
    w = {n: values_of(checkpoint, r, 0, r.rows).astype(np.float64) for n, r in checkpoint.tensors.items()}
    heads, size = head["n_head"], head["n_embd"] // head["n_head"]

    def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight.reshape(-1)

    def rope(x: np.ndarray) -> np.ndarray:
        x = x.reshape(len(tokens), heads, size).copy()
        for position in range(len(tokens)):
            for i in range(0, size, 2):
                theta = position * 10000.0 ** (-i / size)
                a, b = x[position, :, i].copy(), x[position, :, i + 1].copy()
                x[position, :, i] = a * np.cos(theta) - b * np.sin(theta)
                x[position, :, i + 1] = a * np.sin(theta) + b * np.cos(theta)
        return x

    x = w["tok_embeddings.weight"][tokens]
    for layer in range(head["n_layer"]):
        p = f"layers.{layer}."
        cur = rms_norm(x, w[p + "attention_norm.weight"])
        q = rope(cur @ w[p + "attention.wq.weight"].T)
        k = rope(cur @ w[p + "attention.wk.weight"].T)
        v = (cur @ w[p + "attention.wv.weight"].T).reshape(len(tokens), heads, size)
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(head["n_embd"] / heads)
        scores[:, np.triu(np.ones((len(tokens),) * 2, bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        merged = np.einsum("hts,shd->thd", weights, v).reshape(len(tokens), -1)
        after = merged @ w[p + "attention.wo.weight"].T + x
        cur = rms_norm(after, w[p + "ffn_norm.weight"])
        gate = cur @ w[p + "feed_forward.w1.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (cur @ w[p + "feed_forward.w3.weight"].T)
        x = hidden @ w[p + "feed_forward.w2.weight"].T + after
    return rms_norm(x, w["norm.weight"]) @ w["output.weight"].T


FILES = ("ggjt1-0.1.25/f16.bin", "ggjt1-0.1.25/f32.bin", "ggjt1-convertpy-20230821/f16.bin")


@pytest.mark.parametrize("name", cases(FILES, "legacy-llama/{}"))
def test_every_file_it_loads_converts_and_evaluates_alike(name: str, tmp_path: Path) -> None:
    check(witness(f"legacy-llama/{name}"), tmp_path)


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_other_shapes(kind: str, tmp_path: Path) -> None:
    # llama.go knows no grouped queries and no n_ff but the header's own formula.
    model = Llama(n_embd=96, n_head=6, n_head_kv=6, n_layer=3, n_ff=256, n_mult=32, kind=kind, version=1)
    check(model.write(tmp_path / "m.bin"), tmp_path)


def check(path: Path, tmp_path: Path) -> None:
    eps = {"attention.layer_norm_rms_epsilon": str(EPS)}
    result = convert(Request(str(path), str(tmp_path / "out.gguf"), hparams=eps))[0]
    expected = llama_go_eval(path, TOKENS)
    for side in (graph_of(str(path), eps), graph_of(result.path)):
        found = forward(side, TOKENS)
        assert np.sqrt(np.square(found - expected).mean() / np.square(expected).mean()) < 2e-6
