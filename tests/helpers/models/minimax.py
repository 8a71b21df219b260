"""Tiny random models of minimax's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import HEADS, WIDE
from helpers.tiny import ROPE, Tiny

LIGHTNING: dict[str, Any] = {
    **HEADS, "head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "block_size": 8,
    **{f"{part}_alpha_factor": 1.6 for part in ("full_attn", "linear_attn", "mlp")},
}
M3_EYES: dict[str, Any] = {
    "vision_config": {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 28, "patch_size": 14},
    "projector_hidden_size": 48,
}
M3: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2,
    "intermediate_size": 40, "dense_intermediate_size": 88, "shared_intermediate_size": 40, "rotary_dim": 8,
    "routed_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3], "index_n_heads": 2, "index_head_dim": 10,
    "index_block_size": 3, "index_topk_blocks": 2, "index_local_blocks": 1,
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
}

MODELS: dict[str, Tiny] = {
    "minimax_m2": Tiny(
        "MiniMaxM2",
        {**WIDE, "num_local_experts": 5, "num_experts_per_tok": 2,
         "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    ),
    "minimax-01": Tiny("MiniMax", LIGHTNING),
    "minimax-m3": Tiny("MiniMaxM3VL", M3, outer=M3_EYES, whole="MiniMaxM3SparseForConditionalGeneration"),
}
