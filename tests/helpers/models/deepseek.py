"""Tiny random models of deepseek's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import INDEXED, LATENT, LATENT_ROUTED, ONLY_ROPE, VISUAL, YARN
from helpers.tiny import BASE, ROPE, Tiny

DEEPSEEK = {
    **BASE, "num_key_value_heads": 6, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "rope_parameters": ROPE,
}
MSCALE = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.8}
OCR_EYES: dict[str, Any] = {
    "vision_config": {
        "sam_config": {
            "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "output_channels": 8, "mlp_dim": 32,
            "image_size": 64, "patch_size": 16, "global_attn_indexes": [0], "downsample_channels": [8, 16],
            "window_size": 2,
        },
        "encoder_config": {
            "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
    },
}
OCR = {
    **BASE, "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 5, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
    "rope_parameters": {"rope_theta": 10000.0}, "sliding_window": 7,
}
V4: dict[str, Any] = {
    **{name: value for name, value in BASE.items() if name != "intermediate_size"}, "num_hidden_layers": 5,
    "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 20, "q_lora_rank": 28, "qk_rope_head_dim": 8,
    "o_groups": 3, "o_lora_rank": 10, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "index_n_heads": 22, "index_head_dim": 64, "index_topk": 2, "hc_eps": 1e-3, "hc_sinkhorn_iters": 3,
    "sliding_window": 7, "num_hash_layers": 2, "compress_ratios": [0, 4, 128, 4, 0], "swiglu_limit": 0.7,
    "rope_theta": 700.0, "compress_rope_theta": 5000.0, "routed_scaling_factor": 1.7, "rms_norm_eps": 1e-4,
}

MODELS: dict[str, Tiny] = {
    "deepseek v2": Tiny("DeepseekV2", {**DEEPSEEK, "q_lora_rank": 28}),
    "deepseek v2 lite": Tiny("DeepseekV2", {**DEEPSEEK, "q_lora_rank": None, "num_hidden_layers": 4}),
    "deepseek v2 yarn": Tiny("DeepseekV2", {**DEEPSEEK, "q_lora_rank": 28, "rope_parameters": {**ROPE, **MSCALE}}),
    "deepseek v2 groups": Tiny(
        "DeepseekV2",
        {**DEEPSEEK, "q_lora_rank": 28, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
         "routed_scaling_factor": 3.0},
    ),
    "deepseek v3": Tiny(
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": 28, "n_group": 4, "topk_group": 2, "rope_parameters": {**ROPE, **MSCALE}},
    ),
    "deepseek v3 plain": Tiny(
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
         "first_k_dense_replace": 0},
    ),
    "glm 4.7 flash": Tiny("Glm4MoeLite", LATENT_ROUTED),
    "youtu": Tiny("Youtu", {**LATENT, **ONLY_ROPE}),
    "deepseek v3.2": Tiny("DeepseekV32", INDEXED),
    "deepseek v4": Tiny("DeepseekV4", V4),
    "deepseek v4 yarn": Tiny("DeepseekV4", {**V4, "rope_parameters": {**YARN, "rope_theta": 700.0}}),
    "deepseek ocr 2": Tiny(
        "DeepseekOcr2", {**OCR, "sliding_window": None, "mlp_layer_types": ["dense", "sparse", "sparse"]}, head=VISUAL,
        outer=OCR_EYES,
    ),
    "unlimited ocr": Tiny("UnlimitedOcr", OCR, head=VISUAL, outer=OCR_EYES),
}
