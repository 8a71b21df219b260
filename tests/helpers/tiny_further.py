"""Tiny random models of further families of today, as `tiny_todays`: eight heads on two, experts that differ."""

from __future__ import annotations

from helpers.tiny import ROPE, Tiny
from helpers.tiny_todays import HEADS, WIDE

ALPHA = {**ROPE, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}
LLAMA3 = {
    **ROPE, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONGROPE = {
    **ROPE, "rope_type": "longrope", "long_factor": [1.0, 1.7, 2.4], "short_factor": [1.0, 1.1, 1.2],
    "original_max_position_embeddings": 24, "short_mscale": 1.3, "long_mscale": 1.3,
}  # fmt: skip
ERNIE_MOE = {
    **HEADS, "num_hidden_layers": 5, "moe_intermediate_size": 20, "moe_k": 2, "moe_num_experts": 5,
    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": True,
}  # fmt: skip

FURTHER: dict[str, Tiny] = {
    "arcee": Tiny("Arcee", {**WIDE, "rope_parameters": LLAMA3}),
    "arcee biases": Tiny("Arcee", {**HEADS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "apertus": Tiny("Apertus", {**HEADS, "rope_parameters": LLAMA3}),
    "ernie4_5": Tiny("Ernie4_5", {**WIDE, "tie_word_embeddings": True}),
    "ernie4_5 biases": Tiny("Ernie4_5", {**WIDE, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": Tiny("Ernie4_5_Moe", ERNIE_MOE),
    "ernie4_5_moe between": Tiny("Ernie4_5_Moe", {**ERNIE_MOE, "moe_layer_interval": 2, "moe_num_shared_experts": 0,
                                                  "num_hidden_layers": 6}),
    "hunyuan dense": Tiny("HunYuanDenseV1", WIDE),
    "hunyuan dense alpha": Tiny("HunYuanDenseV1", {**WIDE, "rope_parameters": ALPHA}),
    "hunyuan moe": Tiny("HunYuanMoEV1", {**WIDE, "num_experts": 5, "moe_topk": 2, "intermediate_size": 40}),
    "phimoe": Tiny(
        "Phimoe",
        {**HEADS, "num_local_experts": 5, "intermediate_size": 40, "attention_bias": True, "lm_head_bias": True,
         "router_jitter_noise": 0.2, "sliding_window": 7},
    ),
    "phimoe longrope": Tiny(
        "Phimoe",
        {**HEADS, "num_local_experts": 5, "intermediate_size": 40, "rope_parameters": LONGROPE,
         "original_max_position_embeddings": 24},  # transformers takes no other than the short factors here
    ),
}  # fmt: skip
