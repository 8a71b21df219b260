"""Nomic's embeddings v2, by their definition (no class of transformers has experts there), and by llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError
from helpers.tiny_models import relative

BARE = VocabOptions(none=True)
IDS = [2, 17, 42, 9, 3, 60, 31, 8, 77, 12, 5, 90]
WIDTH, HEADS, FF, BLOCKS, EXPERTS, USED = 48, 3, 40, 4, 4, 2
CONFIG: dict[str, Any] = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "gelu", "n_embd": WIDTH,
    "n_head": HEADS, "n_inner": FF, "n_layer": BLOCKS, "n_positions": 2048, "max_trained_positions": 40,
    "vocab_size": 96, "type_vocab_size": 1, "layer_norm_epsilon": 1e-5, "rotary_emb_base": 900,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False, "causal": False,
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2, "moe_top_k": USED,
    "num_experts": EXPERTS, "num_shared_experts": 0, "moe_normalize_expert_weights": False, "pad_token_id": 1,
}


def checkpoint(folder: Path, *, bias: float = 0.0, **changes: Any) -> dict[str, torch.Tensor]:
    """Save a random model; `bias` is how large what is added to the sum of the experts is."""
    rng = torch.Generator().manual_seed(9)
    found = {}

    def linear(name: str, rows: int, columns: int, biased: bool = True) -> None:
        found[f"{name}.weight"] = torch.randn(rows, columns, generator=rng) * 1.5 * columns**-0.5
        if biased:
            found[f"{name}.bias"] = torch.randn(rows, generator=rng) * 0.3

    def norm(name: str) -> None:
        found[f"{name}.weight"] = 1 + 0.2 * torch.randn(WIDTH, generator=rng)
        found[f"{name}.bias"] = 0.2 * torch.randn(WIDTH, generator=rng)

    linear("embeddings.word_embeddings", changes.get("vocab_size", 96), WIDTH, biased=False)
    linear("embeddings.token_type_embeddings", 1, WIDTH, biased=False)
    norm("emb_ln")
    for n in range(BLOCKS):
        at = f"encoder.layers.{n}"
        linear(f"{at}.attn.Wqkv", 3 * WIDTH, WIDTH)
        linear(f"{at}.attn.out_proj", WIDTH, WIDTH)
        norm(f"{at}.norm1")
        if n % 2:
            linear(f"{at}.mlp.router.layer", EXPERTS, WIDTH, biased=False)
            for matrix in ("w1", "w2"):
                stack = torch.randn(EXPERTS * FF, WIDTH, generator=rng) * 1.5 * WIDTH**-0.5
                found[f"{at}.mlp.experts.mlp.{matrix}"] = stack
            found[f"{at}.mlp.experts.bias"] = bias * torch.randn(WIDTH, generator=rng)
        else:
            linear(f"{at}.mlp.fc1", FF, WIDTH)
            linear(f"{at}.mlp.fc2", WIDTH, FF)
        norm(f"{at}.norm2")
    folder.mkdir(exist_ok=True)
    save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return found


def by_definition(w: dict[str, torch.Tensor]) -> np.ndarray:
    """As nomic-ai's code computes them: halves turn; shares among all experts; a bias behind their sum."""
    functional = torch.nn.functional

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    d = WIDTH // HEADS
    angles = torch.arange(len(IDS))[:, None, None] * 900.0 ** (-torch.arange(0, d, 2) / d)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = x.view(len(IDS), HEADS, d).chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    x = w["embeddings.word_embeddings.weight"][IDS] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "emb_ln")
    for n in range(BLOCKS):
        at = f"encoder.layers.{n}"
        q, k, v = linear(x, f"{at}.attn.Wqkv").chunk(3, -1)
        seen = torch.einsum("qhd,khd->hqk", rotated(q), rotated(k)) / d**0.5
        mixed = torch.einsum("hqk,khd->qhd", seen.softmax(-1), v.view(len(IDS), HEADS, d)).flatten(1)
        x = norm(x + linear(mixed, f"{at}.attn.out_proj"), f"{at}.norm1")
        if n % 2:
            shares = linear(x, f"{at}.mlp.router.layer").softmax(-1)
            first, second = (w[f"{at}.mlp.experts.mlp.{m}"].view(EXPERTS, FF, WIDTH) for m in ("w1", "w2"))
            out = w[f"{at}.mlp.experts.bias"].repeat(len(IDS), 1)
            for row, chosen in enumerate(shares.topk(USED).indices):
                for expert in chosen.tolist():
                    out[row] += shares[row, expert] * (functional.gelu(x[row] @ first[expert].T) @ second[expert])
        else:
            out = linear(functional.gelu(linear(x, f"{at}.mlp.fc1")), f"{at}.mlp.fc2")
        x = norm(x + out, f"{at}.norm2")
    return x.numpy()


def test_nomic_2_by_its_definition(tmp_path: Path) -> None:
    expected = by_definition(checkpoint(tmp_path / "hf"))
    path = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].path
    for side in (str(tmp_path / "hf"), path):
        assert relative(expected, forward(graph_of(side), IDS)) <= 2e-6
    stated = graph_of(path).checkpoint.metadata
    wanted = {"moe_every_n_layers": 2, "expert_count": 4, "expert_used_count": 2, "context_length": 40,
              "pooling_type": 1}
    assert {key: stated[f"nomic-bert-moe.{key}"].data for key in wanted} == wanted


def test_what_is_added_to_the_sum_of_the_experts_is_dropped_by_name(tmp_path: Path) -> None:
    checkpoint(tmp_path, bias=0.3)
    graph = understand(open_checkpoint(str(tmp_path)))
    assert [drop.ref.name for drop in graph.dropped if drop.loses] == [
        f"encoder.layers.{n}.mlp.experts.bias" for n in (1, 3)
    ]
    assert any("the vectors are those without" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("key", "value"),
    [("moe_every_n_layers", 1), ("moe_top_k", 5), ("num_experts", 3), ("moe_normalize_expert_weights", True),
     ("activation_function", "swiglu"), ("num_shared_experts", 1)],
)
def test_what_contradicts_or_cannot_be_said_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    checkpoint(tmp_path, **{key: value})
    with pytest.raises(GgferryError):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.slow
def test_llama_cpp_gives_the_embeddings(tmp_path: Path, fixtures: Path) -> None:
    """The oracle's BERT lends its vocabulary."""
    checkpoint(tmp_path / "hf", vocab_size=384)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "hf" / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), witness=("llama.cpp",))
    heard = convert(request)[0].receipt["testimonies"]
    said = {one["what"]: one["why"] for one in heard if one["witness"] == "llama.cpp"}
    assert said["embeddings"] is None
