"""Tiny random models of granite's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, ONLY_ROPE, PARTIAL_ROPE, WIDE, WIDE_64, with_rope
from helpers.tiny import Tiny

SPACE = {
    "mamba_n_heads": 16, "mamba_d_head": 8, "mamba_n_groups": 4, "mamba_d_state": 10, "mamba_expand": 2,
    "mamba_d_conv": 3, "mamba_chunk_size": 8,
}
SCALES = {
    "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.5,
}
GRANITE = {**SCALES, "shared_intermediate_size": 72}
GRANITE_EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40}
ONE_ATTENDS = ["mamba", "attention", "mamba", "mamba"]

MODELS: dict[str, Tiny] = {
    "granite": Tiny(
        "Granite",
        {**with_rope(), "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.6,
         "logits_scaling": 2.5, "attention_bias": True, "mlp_bias": True},
    ),
    "granite plain": Tiny("Granite", with_rope()),
    "granitemoe": Tiny("GraniteMoe", {**WIDE_64, **ONLY_ROPE, **SCALES, **GRANITE_EXPERTS}),
    "granitemoe shared": Tiny("GraniteMoeShared", {**WIDE_64, **ONLY_ROPE, **GRANITE, **GRANITE_EXPERTS}),
    "granite hybrid": Tiny(
        "GraniteMoeHybrid", {**WIDE_64, **GRANITE, **GRANITE_EXPERTS, **SPACE, "layer_types": ONE_ATTENDS}
    ),
    "granite hybrid dense": Tiny(
        "GraniteMoeHybrid",
        {**WIDE_64, **ONLY_ROPE, **GRANITE, **SPACE, "layer_types": ONE_ATTENDS, "position_embedding_type": "rope",
         "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "granite hybrid of attention": Tiny(
        "GraniteMoeHybrid",
        {**WIDE_64, **GRANITE, "layer_types": ["attention"] * 4, "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "granite hybrid of attention, experts": Tiny(
        "GraniteMoeHybrid",
        {**WIDE_64, **ONLY_ROPE, **GRANITE, **GRANITE_EXPERTS, "layer_types": ["attention"] * 4,
         "position_embedding_type": "rope"},
    ),
    "bamba": Tiny("Bamba", {**WIDE_64, **PARTIAL_ROPE, **SPACE, "attn_layer_indices": [1, 2]}),
    "granite_swa": Tiny("GraniteSWA", {**WIDE, **SCALES, "num_hidden_layers": 5, "sliding_window": 7}),
    "granite_swa listed": Tiny(
        "GraniteSWA",
        {**WIDE, **FOUR, **SCALES, "layer_rope_theta": [0, 5000.0, 5000.0, 0], "tie_word_embeddings": False},
    ),
    "granite_swa moe": Tiny(
        "GraniteMoeSWA",
        {**WIDE, **FOUR, **SCALES, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40,
         "shared_intermediate_size": 56},
    ),
}
