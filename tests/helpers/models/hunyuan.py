"""Tiny random models of hunyuan's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import LATENT, ROUTED, VISUAL, WIDE
from helpers.tiny import ROPE, Tiny

HUNYUAN4: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 6,
    "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "hc_mult": 3,
    "routed_scaling_factor": 1.5, "index_n_heads": 6, "index_head_dim": 14, "index_topk": 5, "swiglu_limit": 0.7,
    "hc_magnitude": 1.7, "hc_eps": 1e-3, "pad_token_id": 0, "rope_theta": 700.0,
    "indexer_types": ["full", "shared", "full", "shared", "shared"],
}
ALPHA = {**ROPE, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}
HUNYUAN_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "patch_size": 4, "out_hidden_size": 48, "text_hidden_size": 48, "max_image_size": 16,
    },
    "tie_word_embeddings": True,
}

MODELS: dict[str, Tiny] = {
    "hy_v4": Tiny("HYV4", HUNYUAN4),
    "hunyuan dense": Tiny("HunYuanDenseV1", WIDE),
    "hunyuan dense alpha": Tiny("HunYuanDenseV1", {**WIDE, "rope_parameters": ALPHA}),
    "hunyuan moe": Tiny("HunYuanMoEV1", {**WIDE, "num_experts": 5, "moe_topk": 2, "intermediate_size": 40}),
    "hy_v3": Tiny("HYV3", {**WIDE, **ROUTED, "mlp_layer_types": ["dense", "sparse", "dense"], "num_shared_experts": 2}),
    "hunyuan vl": Tiny(
        "HunYuanVL",
        {**WIDE, "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 1.0, "alpha": 50.0,
                                     "mrope_section": [1, 2, 2, 1]}},
        head=VISUAL, outer=HUNYUAN_EYES,
    ),
}
