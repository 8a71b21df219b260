"""Tiny random models of bailing's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import LATENT
from helpers.tiny import Tiny

LING3: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
    "moe_intermediate_size": 36, "num_local_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "head_dim": 10, "layer_group_size": 3, "short_conv_kernel_size": 3,
    "routed_scaling_factor": 1.5, "kda_lower_bound": -2.0, "num_mtp_layers": 0, "rope_theta": 700.0, "pad_token_id": 0,
}
del LING3["q_lora_rank"]

MODELS: dict[str, Tiny] = {
    "ling 3": Tiny("BailingHybrid", LING3),
}
