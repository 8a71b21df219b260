"""Tiny random models of glm's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import HEADS, INDEXED, LATENT, SIGMOID, VISUAL, WIDE
from helpers.tiny import BASE, ROPE, Tiny

SHARED = {**INDEXED, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]}
GLM53: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 6,
    "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "linear_head_dim": 10, "linear_num_heads": 6, "linear_conv_kernel_dim": 3, "linear_lower_bound": -2.0,
    "index_topk": 6, "index_kpool": 3, "index_head_dim": 64, "index_n_heads": 6, "pad_token_id": 0, "hc_eps": 1e-3,
    "hc_sinkhorn_iters": 3, "routed_scaling_factor": 1.5, "swiglu_limit": 0.7, "qk_rope_head_dim": 0,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", *["indexed_attention"] * 2],
    "indexer_types": [*["full"] * 4, "shared"], "mlp_layer_types": ["dense", *["sparse"] * 4],
}
GLM53_EYES = {
    "vision_config": {
        "depth": 1, "hidden_size": 24, "num_heads": 2, "patch_size": 4, "image_size": 16, "out_hidden_size": 48,
        "intermediate_size": 32, "projection_intermediate_size": 40,
    },
    "tie_word_embeddings": False,
}
GLM_EYES = {
    "vision_config": {
        "depth": 1, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "patch_size": 4, "image_size": 16,
        "out_hidden_size": 48,
    },
    "tie_word_embeddings": False,
}
HALF: dict[str, Any] = {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "pad_token_id": 0}
ROTATED = {
    "rope_parameters": {**HALF["rope_parameters"], "rope_type": "default", "mrope_section": [1, 1, 1]},
    "pad_token_id": 0,
}

MODELS: dict[str, Tiny] = {
    "glm4": Tiny("Glm4", {**WIDE, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "attention_bias": True,
                          "pad_token_id": 0}),
    "glm4moe": Tiny(
        "Glm4Moe",
        {**WIDE, **SIGMOID, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "attention_bias": True,
         "use_qk_norm": True},
    ),
    "glm 5": Tiny("GlmMoeDsa", SHARED),
    "glm 5.3 flash": Tiny("Glm5Next", GLM53, head=VISUAL, outer=GLM53_EYES),
    "solar open": Tiny("SolarOpen", {**WIDE, **SIGMOID, "first_k_dense_replace": 0}),
    "glm": Tiny("Glm", {**BASE, "head_dim": 8, "attention_bias": True, **HALF}),
    "glm wide": Tiny("Glm", {**HEADS, "head_dim": 12, "attention_bias": False, **HALF}),
    "glm4v": Tiny("Glm4v", {**HEADS, "hidden_size": 96, **ROTATED}, head=VISUAL, outer=GLM_EYES),
    "glm ocr": Tiny("GlmOcr", {**WIDE, **ROTATED, "attention_bias": False}, head=VISUAL, outer=GLM_EYES),
    "glm4v moe": Tiny(
        "Glm4vMoe", {**WIDE, **SIGMOID, **ROTATED, "attention_bias": True, "num_hidden_layers": 3}, head=VISUAL,
        outer=GLM_EYES,
    ),
}
