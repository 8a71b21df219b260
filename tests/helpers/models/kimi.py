"""Tiny random models of kimi's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import LATENT, THREE_IN_FOUR
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "kimi linear": Tiny(
        "KimiLinear",
        {**LATENT, "num_hidden_layers": 4, "q_lora_rank": None, "linear_num_heads": 8, "linear_head_dim": 10,
         "linear_conv_kernel_dim": 3, "layer_types": THREE_IN_FOUR, "moe_intermediate_size": 36,
         "num_local_experts": 5, "num_experts_per_tok": 2, "n_shared_experts": 1, "pad_token_id": 0,
         "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    ),
}
