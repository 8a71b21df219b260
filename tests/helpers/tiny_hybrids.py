"""Tiny models whose blocks are of several kinds. Eight heads share two keys; every other size differs."""

from __future__ import annotations

from typing import Any

from helpers.tiny import Tiny
from helpers.tiny_todays import QWEN_EYES, SEES

HEADS: dict[str, Any] = {
    "vocab_size": 328, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 12,
}
WHOLE = {**{name: value for name, value in HEADS.items() if name != "head_dim"}, "hidden_size": 64}
ROPE = {"rope_parameters": {"rope_theta": 5000.0}}
PART = {"rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}}
MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56}
THREE_IN_FOUR = [*["linear_attention"] * 3, "full_attention"]
DELTA = {
    **HEADS, **PART, "linear_conv_kernel_dim": 3, "linear_key_head_dim": 10, "linear_value_head_dim": 10,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "rms_norm_eps": 1e-6, "layer_types": THREE_IN_FOUR,
}
SECTIONS = {"rope_parameters": {**PART["rope_parameters"], "mrope_section": [1, 1, 1], "mrope_interleaved": True}}
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
JAMBA = {
    "mamba_d_state": 10, "mamba_dt_rank": 5, "mamba_d_conv": 3, "attn_layer_period": 4, "attn_layer_offset": 1,
    "num_experts": 5, "num_experts_per_tok": 2,
}

CONVOLVED = {
    **WHOLE, **ROPE, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
}
BRANCHES = {
    **HEADS, "mamba_num_heads": 12, "mamba_head_dim": 8, "n_groups": 3, "ssm_state_size": 10, "conv_kernel": 3,
    "chunk_size": 8, "time_step_min": 0.4, "mlp_hidden_act": "relu2",
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
}
BRANCHES_EXPERTS = {
    **BRANCHES, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 56,
    "n_shared_experts": 1, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1,
}
MULTIPLIED = {
    **HEADS, **ROPE, "num_hidden_layers": 3, "mamba_d_ssm": 72, "mamba_n_heads": 9, "mamba_d_head": 8,
    "mamba_n_groups": 3, "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_chunk_size": 8, "mamba_rms_norm": False,
    "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5, "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8, "key_multiplier": 0.7, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.9,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 1.2], "mlp_multipliers": [0.8, 1.4],
}

LATENT = {
    **WHOLE, "num_hidden_layers": 3, "num_key_value_heads": 8, "kv_lora_rank": 20, "q_lora_rank": 28,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "rms_norm_eps": 1e-4,
}
ROUTED = {
    **LATENT, **ROPE, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
}
INDEXED = {**ROUTED, "index_n_heads": 6, "index_head_dim": 14, "index_topk": 5}
SHARED = {**INDEXED, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]}
DOTS: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 6,
    "head_dim": 20, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "shared_experts_intermediate_size": 36, "routed_scaling_factor": 1.5, "sliding_window": 7, "index_n_heads": 3,
    "index_head_dim": 64, "index_topk": 5, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 28, "swa_kv_lora_rank": 24, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16,
    "swa_qk_rope_head_dim": 8, "swa_v_head_dim": 14, "pad_token_id": 0, "swa_rope_theta": 700.0, "rope_theta": 9000.0,
    "layer_types": ["indexed_attention", *["sliding_attention"] * 2, "indexed_attention", "sliding_attention"],
}
DOTS_PUBLISHED: dict[str, Any] = {
    **{key: value for key, value in DOTS.items() if key.startswith(("swa_", "rope_"))}, "per_layer_config": None,
    "layer_types": [kind.replace("indexed", "full") for kind in DOTS["layer_types"]], "sliding_window": None,
    "sliding_window_size": 7, "use_dsa": True, "mlp_layer_types": None, "first_k_dense_replace": 1,
    "apply_mla_qkv_lora_rescale": True, "moe_shared_expert_intermediate_size": 36, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "shared_experts_intermediate_size": None, "attention_gate_type": "headwise",
    "swa_attention_gate_type": "headwise", "k_rope_only_layernorm": True, "normalization": "RMSNorm",
}
HUNYUAN4: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 6,
    "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "hc_mult": 3,
    "routed_scaling_factor": 1.5, "index_n_heads": 6, "index_head_dim": 14, "index_topk": 5, "swiglu_limit": 0.7,
    "hc_magnitude": 1.7, "hc_eps": 1e-3, "pad_token_id": 0, "rope_theta": 700.0,
    "indexer_types": ["full", "shared", "full", "shared", "shared"],
}
LING3: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
    "moe_intermediate_size": 36, "num_local_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "head_dim": 10, "layer_group_size": 3, "short_conv_kernel_size": 3,
    "routed_scaling_factor": 1.5, "kda_lower_bound": -2.0, "num_mtp_layers": 0, "rope_theta": 700.0, "pad_token_id": 0,
}
del LING3["q_lora_rank"]
GROWING = {
    "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3,
}

_TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3next": ("Qwen3Next", {**DELTA, **MOE}),
    "qwen3next irregular": ("Qwen3Next", {**DELTA, **MOE, "layer_types": THREE_IN_FOUR[2:] * 2}),
    "qwen35": ("Qwen3_5", {**DELTA, **SECTIONS}),
    "qwen35 one head a key": (
        "Qwen3_5",
        {**DELTA, **SECTIONS, "linear_num_value_heads": 2, "num_hidden_layers": 2, "layer_types": THREE_IN_FOUR[2:]},
    ),
    "qwen35moe": ("Qwen3_5Moe", {**DELTA, **SECTIONS, **MOE}),
    "granitemoe": ("GraniteMoe", {**WHOLE, **ROPE, **SCALES, **GRANITE_EXPERTS}),
    "granitemoe shared": ("GraniteMoeShared", {**WHOLE, **ROPE, **GRANITE, **GRANITE_EXPERTS}),
    "granite hybrid": (
        "GraniteMoeHybrid", {**WHOLE, **GRANITE, **GRANITE_EXPERTS, **SPACE, "layer_types": ONE_ATTENDS}
    ),
    "granite hybrid dense": (
        "GraniteMoeHybrid",
        {**WHOLE, **ROPE, **GRANITE, **SPACE, "layer_types": ONE_ATTENDS, "position_embedding_type": "rope",
         "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "granite hybrid of attention": (
        "GraniteMoeHybrid",
        {**WHOLE, **GRANITE, "layer_types": ["attention"] * 4, "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "granite hybrid of attention, experts": (
        "GraniteMoeHybrid",
        {**WHOLE, **ROPE, **GRANITE, **GRANITE_EXPERTS, "layer_types": ["attention"] * 4,
         "position_embedding_type": "rope"},
    ),
    "bamba": ("Bamba", {**WHOLE, **PART, **SPACE, "attn_layer_indices": [1, 2]}),
    "jamba": ("Jamba", {**WHOLE, **JAMBA}),
    "lfm2": ("Lfm2", CONVOLVED),
    "lfm2 adjusted": (
        "Lfm2",
        {**CONVOLVED, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 24},
    ),
    "lfm2moe": (
        "Lfm2Moe",
        {**CONVOLVED, "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
         "routed_scaling_factor": 1.5},
    ),
    "glm 4.7 flash": ("Glm4MoeLite", ROUTED),
    "youtu": ("Youtu", {**LATENT, **ROPE}),
    "deepseek v3.2": ("DeepseekV32", INDEXED),
    "glm 5": ("GlmMoeDsa", SHARED),
    "dots3 note": ("Dots3Note", DOTS),
    "hy_v4": ("HYV4", HUNYUAN4),
    "ling 3": ("BailingHybrid", LING3),
    "mistral4": ("Mistral4", {**ROUTED, "rope_parameters": GROWING, "first_k_dense_replace": 0, "n_group": 1,
                              "topk_group": 1, "norm_topk_prob": True, "n_shared_experts": 1}),
    "minicpm3": ("MiniCPM3", {**LATENT, **ROPE, "scale_emb": 5, "scale_depth": 1.1, "dim_model_base": 24}),
    "kimi linear": (
        "KimiLinear",
        {**LATENT, "num_hidden_layers": 4, "q_lora_rank": None, "linear_num_heads": 8, "linear_head_dim": 10,
         "linear_conv_kernel_dim": 3, "layer_types": THREE_IN_FOUR, "moe_intermediate_size": 36,
         "num_local_experts": 5, "num_experts_per_tok": 2, "n_shared_experts": 1, "pad_token_id": 0,
         "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    ),
    "nemotron": ("Nemotron", {**HEADS, **PART}),
    "nemotron-h": ("NemotronH", BRANCHES),
    "nemotron-h moe": ("NemotronH", BRANCHES_EXPERTS),
    "nemotron-h latent": ("NemotronH", {**BRANCHES_EXPERTS, "moe_latent_size": 24}),
    "falcon-h1": ("FalconH1", MULTIPLIED),
    "falcon-h1 normed, tied": (
        "FalconH1",
        {**MULTIPLIED, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
    ),
}

LFM_EYES = {
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "num_patches": 16,
    },
}
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
DOTS_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
        "moe_intermediate_size": 16, "mlp_layer_types": ["dense", "dense"], "adapter_in_dim": 24, "adapter_out_dim": 48,
    },
    "audio_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "downsample_hidden_size": 12, "feature_size": 16, "adapter_input_size": 24, "adapter_out_dim": 48,
    },
    "tie_word_embeddings": False,
}
HYBRIDS: dict[str, Tiny] = {
    **{name: Tiny(*described) for name, described in _TEXT.items()},
    "qwen35 that sees": Tiny("Qwen3_5", {**DELTA, **SECTIONS}, head=SEES, outer=QWEN_EYES),
    "qwen35moe that sees": Tiny(
        "Qwen3_5Moe",
        {**DELTA, **SECTIONS, **MOE, "num_hidden_layers": 2, "layer_types": THREE_IN_FOUR[2:]},
        head=SEES,
        outer=QWEN_EYES,
    ),
    "dots3 note, published": Tiny("Dots3Note", DOTS, DOTS_PUBLISHED),
    "dots3 note that sees": Tiny("Dots3Note", DOTS, head=SEES, outer=DOTS_EYES),
    "glm 5.3 flash": Tiny("Glm5Next", GLM53, head=SEES, outer=GLM53_EYES),
    "lfm2 that sees": Tiny("Lfm2Vl", {**CONVOLVED, "model_type": "lfm2"}, head=SEES, outer=LFM_EYES),
}
