"""Rotary embeddings that only the source stretches: proved by default, and equal to transformers up to its context."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from helpers.third_party_fixtures import CORPUS
from helpers.tiny_models import relative

assert CORPUS is not None
VARIANTS = CORPUS / "variants"
pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]

UNLOADED = ("internlm2-dyn",)
"""Their `hf_logits.npy` are those of a Llama that knew none of the tensors' names, and made up its weights."""


def as_llama(folder: Path, tokens: list[int]) -> np.ndarray:
    """transformers' float64 logits of an InternLM2 as the Llama that it is."""
    import torch
    import transformers
    from safetensors.torch import load_file

    stated = json.loads((folder / "config.json").read_text())
    heads, keys = stated["num_attention_heads"], stated["num_key_value_heads"]
    width, each = stated["hidden_size"] // heads, heads // keys
    names = {
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "tok_embeddings": "embed_tokens",
    }
    state = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith("wqkv.weight"):
            rows = tensor.reshape(keys, each + 2, width, -1)
            for part, of in (("q", rows[:, :each]), ("k", rows[:, each]), ("v", rows[:, each + 1])):
                to = name.replace("attention.wqkv", f"self_attn.{part}_proj")
                state[to] = of.reshape(-1, tensor.shape[-1])
            continue
        to = "lm_head.weight" if name.startswith("output.") else name
        for old, new in names.items():
            to = to.replace(f"{old}.", f"{new}.")
        state[to] = tensor
    plain = {key: value for key, value in stated.items() if key not in ("architectures", "model_type", "bias")}
    net = transformers.LlamaForCausalLM(transformers.LlamaConfig(**plain)).double().eval()
    net.load_state_dict(state)
    with torch.no_grad():
        return net(torch.tensor([tokens])).logits[0].numpy()


@pytest.mark.parametrize("name", ["llama-dyn", "internlm2-dyn"])
def test_rotary_embeddings_that_were_refused(name: str, tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    proof = convert(Request(str(VARIANTS / name / "ckpt"), str(out), Options(outtype="f32")))[0].proof
    assert proof.level == "full" and proof.logits is not None and proof.logits.rounding is None
    tokens = json.loads((VARIANTS / "MANIFEST.json").read_text())["tokens"]
    found = forward(understand(open_checkpoint(str(out))), tokens)
    stored = VARIANTS / name
    expected = as_llama(stored / "ckpt", tokens) if name in UNLOADED else np.load(stored / "hf_logits.npy")
    assert relative(expected, found) <= 5e-6
