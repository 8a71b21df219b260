"""Tiny random models of what is kin to a family, or holds one: as `tiny_todays`."""

from __future__ import annotations

from typing import Any

from helpers.tiny import BASE, ROPE, VOCAB, Tiny
from helpers.tiny_todays import FOUR, GEMMA4, HEADS, SEES, SIGMOID, WIDE

VISION_ENCODERS = {
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 8, "projection_dim": 24,
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
SCALES = {
    "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.5,
}
GPT = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
OPT = {key: value for key, value in GPT.items() if key != "intermediate_size"} | {
    "ffn_dim": 88, "word_embed_proj_dim": 48,
}
CODEGEN = {
    "vocab_size": VOCAB, "n_embd": 48, "n_inner": 88, "n_layer": 3, "n_head": 8, "n_positions": 64, "n_ctx": 64,
    "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2,
}
AXES = {"rope_parameters": {**ROPE, "rope_type": "default", "mrope_section": [2, 2, 2]}}
OCR_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "image_size": 16,
    },
    "tie_word_embeddings": True,
}
HUNYUAN_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "patch_size": 4, "out_hidden_size": 48, "text_hidden_size": 48, "max_image_size": 16,
    },
    "tie_word_embeddings": True,
}

MUSE_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "pos_emb_height": 4, "pos_emb_width": 4,
    },
    "out_hidden_size": 96, "projector_hidden_size": 32, "tie_word_embeddings": False,
}

KIN: dict[str, Tiny] = {
    "llava": Tiny("Llava", {**WIDE, "model_type": "llama"}, head=SEES, outer=VISION_ENCODERS),
    "llava qwen2": Tiny("Llava", {**HEADS, "model_type": "qwen2"}, head=SEES, outer=VISION_ENCODERS),
    "jais2": Tiny("Jais2", WIDE),
    "jais2 unbiased": Tiny("Jais2", {**HEADS, "attention_bias": False, "mlp_bias": False}),
    "glm": Tiny("Glm", {**BASE, "head_dim": 8, "attention_bias": True, **HALF}),
    "glm wide": Tiny("Glm", {**HEADS, "head_dim": 12, "attention_bias": False, **HALF}),
    "bitnet": Tiny("BitNet", {**HEADS, "tie_word_embeddings": True}),
    "glm4v": Tiny("Glm4v", {**HEADS, "hidden_size": 96, **ROTATED}, head=SEES, outer=GLM_EYES),
    "glm ocr": Tiny("GlmOcr", {**WIDE, **ROTATED, "attention_bias": False}, head=SEES, outer=GLM_EYES),
    "glm4v moe": Tiny(
        "Glm4vMoe", {**WIDE, **SIGMOID, **ROTATED, "attention_bias": True, "num_hidden_layers": 3}, head=SEES,
        outer=GLM_EYES,
    ),
    "granite_swa": Tiny("GraniteSWA", {**WIDE, **SCALES, "num_hidden_layers": 5, "sliding_window": 7}),
    "granite_swa listed": Tiny(
        "GraniteSWA",
        {**WIDE, **FOUR, **SCALES, "layer_rope_theta": [0, 5000.0, 5000.0, 0], "tie_word_embeddings": False},
    ),
    "granite_swa moe": Tiny(
        "GraniteMoeSWA",
        {**WIDE, **FOUR, **SCALES, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40,
         "shared_intermediate_size": 56},
    ),
    "opt": Tiny("OPT", OPT),
    "opt gelu": Tiny("OPT", {**OPT, "activation_function": "gelu", "tie_word_embeddings": False}),
    "biogpt": Tiny("BioGpt", {**GPT, "scale_embedding": True}),
    "biogpt untied": Tiny("BioGpt", {**GPT, "scale_embedding": False, "tie_word_embeddings": False}),
    "codegen": Tiny("CodeGen", CODEGEN),
    "cwm": Tiny("Cwm", {**WIDE, **FOUR, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    "ministral": Tiny("Ministral", {**WIDE, **FOUR}),
    "helium": Tiny("Helium", {**HEADS, "head_dim": 6, "attention_bias": True, "pad_token_id": 0}),
    "paddleocr": Tiny("PaddleOCRVL", {**HEADS, "head_dim": 12, **AXES}, head=SEES, outer=OCR_EYES),
    "hunyuan vl": Tiny(
        "HunYuanVL",
        {**WIDE, "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 1.0, "alpha": 50.0,
                                     "mrope_section": [1, 2, 2, 1]}},
        head=SEES, outer=HUNYUAN_EYES,
    ),
    "muse glimmer": Tiny(
        "MuseGlimmer",
        {**WIDE, "num_hidden_layers": 5, "sliding_window": 7, "qk_scale_factor": 1.7, "output_multiplier": 0.6,
         "final_logit_softcapping": 8.0, "pad_token_id": 0},
        head=SEES, outer=MUSE_EYES,
    ),
    "gemma4 unified": Tiny("Gemma4Unified", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 4}),
}
