"""Tiny random models of llama's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import FOUR, HEADS, LONG, WIDE, YARN, with_rope
from helpers.tiny import BASE, ROPE, Tiny


def old_rope(**scaling: Any) -> dict[str, Any]:
    return {**ROPE, "rope_scaling": scaling or None}


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA4 = {
    **WIDE, "num_hidden_layers": 4, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40,
    "intermediate_size_mlp": 88, "interleave_moe_layer_step": 2, "attn_scale": 0.6, "floor_scale": 4,
}

MODELS: dict[str, Tiny] = {
    "llama": Tiny("Llama", with_rope()),
    "llama biases": Tiny("Llama", {**with_rope(), "attention_bias": True, "mlp_bias": True}),
    "llama head_dim": Tiny("Llama", {**with_rope(), "head_dim": 20}),
    "llama tied": Tiny("Llama", {**with_rope(), "tie_word_embeddings": True}),
    "llama linear": Tiny("Llama", with_rope(rope_type="linear", factor=3.0)),
    "llama linear, old": Tiny("Llama", with_rope(rope_type="linear", factor=3.0), old_rope(type="linear", factor=3.0)),
    "llama llama3": Tiny("Llama", with_rope(**LLAMA3)),
    "llama llama3, old": Tiny("Llama", with_rope(**LLAMA3), old_rope(**LLAMA3)),
    "llama yarn": Tiny("Llama", with_rope(**YARN)),
    "llama yarn, old": Tiny(
        "Llama", with_rope(**YARN), old_rope(type="yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "llama yarn attention_factor": Tiny("Llama", with_rope(**YARN, attention_factor=0.7)),
    "llama yarn betas": Tiny(
        "Llama",
        {**with_rope(**(YARN | {"original_max_position_embeddings": 64}), beta_fast=1.5, beta_slow=0.1),
         "head_dim": 16},
    ),
    "llama yarn mscale": Tiny("Llama", with_rope(**YARN, mscale=0.7, mscale_all_dim=0.4)),
    "llama dynamic": Tiny("Llama", with_rope(rope_type="dynamic", factor=2.0)),
    "llama longrope": Tiny("Llama", {**BASE, "rope_parameters": LONG}),
    "llama longrope short": Tiny("Llama", with_rope(**(LONG | {"original_max_position_embeddings": 32}))),
    "llama4": Tiny("Llama4", LLAMA4),
    "llama4 chunks": Tiny("Llama4", {**LLAMA4, "attention_chunk_size": 7, "no_rope_layers": [1, 0, 1, 1]}),
    "cwm": Tiny("Cwm", {**WIDE, **FOUR, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    "helium": Tiny("Helium", {**HEADS, "head_dim": 6, "attention_bias": True, "pad_token_id": 0}),
}
