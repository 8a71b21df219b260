"""Tiny random models of nemotron's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import EIGHT_HEADS, PARTIAL_ROPE
from helpers.tiny import Tiny

BRANCHES = {
    **EIGHT_HEADS, "mamba_num_heads": 12, "mamba_head_dim": 8, "n_groups": 3, "ssm_state_size": 10, "conv_kernel": 3,
    "chunk_size": 8, "time_step_min": 0.4, "mlp_hidden_act": "relu2",
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
}
BRANCHES_EXPERTS = {
    **BRANCHES, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 56,
    "n_shared_experts": 1, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1,
}

MODELS: dict[str, Tiny] = {
    "nemotron": Tiny("Nemotron", {**EIGHT_HEADS, **PARTIAL_ROPE}),
    "nemotron-h": Tiny("NemotronH", BRANCHES),
    "nemotron-h moe": Tiny("NemotronH", BRANCHES_EXPERTS),
    "nemotron-h latent": Tiny("NemotronH", {**BRANCHES_EXPERTS, "moe_latent_size": 24}),
}
