"""Tiny random models of qwen's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import EIGHT_HEADS, HEADS, PARTIAL_ROPE, ROUTED, THREE_IN_FOUR, VISUAL, WIDE, YARN, with_rope
from helpers.tiny import ROPE, Tiny

MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
QWEN_EYES: dict[str, Any] = {
    "vision_config": {
        "depth": 2, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "patch_size": 4, "out_hidden_size": 48,
        "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16,
    },
    "tie_word_embeddings": False,
}
QWEN2_EYES = {"vision_config": {"depth": 2, "embed_dim": 24, "num_heads": 2, "patch_size": 4, "hidden_size": 48}}


def sections(sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {**ROPE, "rope_type": "default", "mrope_section": sections, **more}}


MOE_SHARED = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
}
DELTA = {
    **EIGHT_HEADS, **PARTIAL_ROPE, "linear_conv_kernel_dim": 3, "linear_key_head_dim": 10, "linear_value_head_dim": 10,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "rms_norm_eps": 1e-6, "layer_types": THREE_IN_FOUR,
}
SECTIONS = {
    "rope_parameters": {**PARTIAL_ROPE["rope_parameters"], "mrope_section": [1, 1, 1], "mrope_interleaved": True},
}

QWEN4 = {
    **DELTA, **SECTIONS, **MOE_SHARED, "layer_types": ["linear_attention", "full_attention"] * 2,
    "output_gate_type": "sigmoid", "hc_count": 3, "hc_lowrank": 20, "ple_layer_ids": [3], "ple_embed_dim": 48,
    "ple_conv_kernel_size": 3, "ngram_size": 3, "heads_per_ngram": 4, "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 16, "split_ngram_parts": 7, "indexer_n_heads": 9, "indexer_kv_heads": 1,
    "indexer_head_dim": 14, "indexer_budget": 6, "indexer_compress_ratio": 3, "eos_token_id": 42,
}

MODELS: dict[str, Tiny] = {
    "qwen2": Tiny("Qwen2", {**with_rope(), "tie_word_embeddings": True}),
    "qwen2 window": Tiny(
        "Qwen2", {**with_rope(), "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    ),
    "qwen2 yarn": Tiny("Qwen2", with_rope(**YARN)),
    "qwen2moe": Tiny("Qwen2Moe", {**with_rope(), **MOE, "shared_expert_intermediate_size": 56}),
    "qwen2moe normed": Tiny(
        "Qwen2Moe", {**with_rope(), **MOE, "shared_expert_intermediate_size": 56, "norm_topk_prob": True}
    ),
    "qwen3": Tiny("Qwen3", {**with_rope(), "head_dim": 20}),
    "qwen3moe": Tiny("Qwen3Moe", {**with_rope(), **MOE, "head_dim": 20, "norm_topk_prob": True}),
    "qwen3moe not normed": Tiny("Qwen3Moe", {**with_rope(), **MOE, "head_dim": 20, "norm_topk_prob": False}),
    "qwen3vl": Tiny(
        "Qwen3VL", {**WIDE, **sections([2, 2, 2], mrope_interleaved=True)}, head=VISUAL, outer=QWEN_EYES
    ),
    "qwen3vlmoe": Tiny(
        "Qwen3VLMoe", {**WIDE, **ROUTED, **sections([2, 2, 2], mrope_interleaved=True)}, head=VISUAL, outer=QWEN_EYES
    ),
    "qwen2vl": Tiny("Qwen2VL", {**HEADS, **sections([1, 1, 1])}, head=VISUAL, outer=QWEN2_EYES),
    "qwen3next": Tiny("Qwen3Next", {**DELTA, **MOE_SHARED}),
    "qwen3next irregular": Tiny("Qwen3Next", {**DELTA, **MOE_SHARED, "layer_types": THREE_IN_FOUR[2:] * 2}),
    "qwen35": Tiny("Qwen3_5", {**DELTA, **SECTIONS}),
    "qwen35 one head a key": Tiny(
        "Qwen3_5",
        {**DELTA, **SECTIONS, "linear_num_value_heads": 2, "num_hidden_layers": 2, "layer_types": THREE_IN_FOUR[2:]},
    ),
    "qwen4exp": Tiny("Qwen4Exp", QWEN4),
    "qwen4exp without hashes": Tiny("Qwen4Exp", {**QWEN4, "ple_layer_ids": None, "layer_types": THREE_IN_FOUR}),
    "qwen4exp that sees": Tiny("Qwen4Exp", QWEN4, head=VISUAL, outer={**QWEN_EYES, "image_token_id": 7}),
    "qwen35moe": Tiny("Qwen3_5Moe", {**DELTA, **SECTIONS, **MOE_SHARED}),
    "qwen35 that sees": Tiny("Qwen3_5", {**DELTA, **SECTIONS}, head=VISUAL, outer=QWEN_EYES),
    "qwen35moe that sees": Tiny(
        "Qwen3_5Moe",
        {**DELTA, **SECTIONS, **MOE_SHARED, "num_hidden_layers": 2, "layer_types": THREE_IN_FOUR[2:]},
        head=VISUAL,
        outer=QWEN_EYES,
    ),
}
