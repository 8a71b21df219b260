"""Tiny random models of today's families, as `tiny_models` has those before them: eight heads on two, experts that
differ."""

from __future__ import annotations

from typing import Any

from helpers.tiny import BASE, ROPE, Tiny

HEADS = {**BASE, "num_attention_heads": 8, "num_key_value_heads": 2, "rope_parameters": ROPE}
WIDE = {**HEADS, "head_dim": 12}
FOUR = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
ROUTED = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SIGMOID = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_shared_experts": 2,
    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "num_hidden_layers": 4,
}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
QWEN_EYES: dict[str, Any] = {
    "vision_config": {
        "depth": 2, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "patch_size": 4, "out_hidden_size": 48,
        "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16,
    },
    "tie_word_embeddings": False,
}
QWEN2_EYES = {"vision_config": {"depth": 2, "embed_dim": 24, "num_heads": 2, "patch_size": 4, "hidden_size": 48}}
SEES = "ForConditionalGeneration"


def _rotation(sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {**ROPE, "rope_type": "default", "mrope_section": sections, **more}}


GPT_OSS = {
    **WIDE, **FOUR, "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 40,
    "rope_parameters": {**YARN, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False},
}
LLAMA4 = {
    **WIDE, "num_hidden_layers": 4, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40,
    "intermediate_size_mlp": 88, "interleave_moe_layer_step": 2, "attn_scale": 0.6, "floor_scale": 4,
}
GEMMA4: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "head_dim": 10, "global_head_dim": 12, "sliding_window": 7, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 328, "final_logit_softcapping": 20.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 9000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}
GEMMA3N: dict[str, Any] = {
    **WIDE, "num_hidden_layers": 5, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "intermediate_size": [88, 88, 80, 88, 88], "sliding_window": 7, "hidden_size_per_layer_input": 20,
    "vocab_size_per_layer_input": 300, "num_kv_shared_layers": 0, "laurel_rank": 6, "altup_num_inputs": 3,
    "altup_active_idx": 0, "activation_sparsity_pattern": [0.9, 0.0, 0.6, 0.95, 0.0], "final_logit_softcapping": 20.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 9000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}
TODAYS: dict[str, Tiny] = {
    "gemma4 keys as values": Tiny(
        "Gemma4", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 4, "num_key_value_heads": 2}
    ),
    "gemma4 shared": Tiny(
        "Gemma4", {**GEMMA4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 20}
    ),
    "gemma4 experts": Tiny(
        "Gemma4",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 40},
    ),
    "gemma3n": Tiny("Gemma3n", GEMMA3N),
    "gemma3n shared": Tiny("Gemma3n", {**GEMMA3N, "num_kv_shared_layers": 2, "altup_active_idx": 1}),
    "llama4": Tiny("Llama4", LLAMA4),
    "llama4 chunks": Tiny("Llama4", {**LLAMA4, "attention_chunk_size": 7, "no_rope_layers": [1, 0, 1, 1]}),
    "gpt-oss": Tiny("GptOss", GPT_OSS),
    "gpt-oss rounded": Tiny(
        "GptOss", {**GPT_OSS, "rope_parameters": {**YARN, "truncate": True}, "tie_word_embeddings": True}
    ),
    "qwen3vl": Tiny(
        "Qwen3VL", {**WIDE, **_rotation([2, 2, 2], mrope_interleaved=True)}, head=SEES, outer=QWEN_EYES
    ),
    "qwen3vlmoe": Tiny(
        "Qwen3VLMoe", {**WIDE, **ROUTED, **_rotation([2, 2, 2], mrope_interleaved=True)}, head=SEES, outer=QWEN_EYES
    ),
    "qwen2vl": Tiny("Qwen2VL", {**HEADS, **_rotation([1, 1, 1])}, head=SEES, outer=QWEN2_EYES),
    "smollm3": Tiny("SmolLM3", {**HEADS, "num_hidden_layers": 5, "pad_token_id": 0}),
    "smollm3 otherwise": Tiny(
        "SmolLM3", {**HEADS, "num_hidden_layers": 4, "no_rope_layers": [0, 1, 1, 0], "pad_token_id": 0}
    ),
    "seed_oss": Tiny("SeedOss", {**WIDE, "attention_bias": True, "attention_out_bias": False}),
    "seed_oss output bias": Tiny("SeedOss", {**WIDE, "attention_bias": True, "attention_out_bias": True}),
    "olmo3": Tiny("Olmo3", {**HEADS, **FOUR}),
    "olmo3 yarn": Tiny(
        "Olmo3",
        {**HEADS, **FOUR, "num_attention_heads": 4,
         "rope_parameters": {"full_attention": YARN, "sliding_attention": {**ROPE, "rope_type": "default"}}},
    ),
    "olmoe": Tiny("Olmoe", {**HEADS, **ROUTED, "num_key_value_heads": 8, "norm_topk_prob": False}),
    "olmoe grouped": Tiny("Olmoe", {**HEADS, **ROUTED, "norm_topk_prob": True}),
    "glm4": Tiny("Glm4", {**WIDE, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "attention_bias": True,
                          "pad_token_id": 0}),
    "glm4moe": Tiny(
        "Glm4Moe",
        {**WIDE, **SIGMOID, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "attention_bias": True,
         "use_qk_norm": True},
    ),
    "exaone4": Tiny("Exaone4", {**WIDE, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "exaone4 windows": Tiny("Exaone4", {**WIDE, **FOUR}),
    "exaone_moe": Tiny(
        "ExaoneMoe",
        {**WIDE, **FOUR, **ROUTED, "num_experts": 8, "n_group": 4, "topk_group": 2, "num_shared_experts": 2,
         "routed_scaling_factor": 1.5, "first_k_dense_replace": 1},
    ),
    "minimax_m2": Tiny(
        "MiniMaxM2",
        {**WIDE, "num_local_experts": 5, "num_experts_per_tok": 2,
         "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    ),
    "ministral3": Tiny(
        "Ministral3",
        {**WIDE, "rope_parameters": {**YARN, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.4,
                                     "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
}
