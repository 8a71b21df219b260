"""Tiny random models of gpt's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import GPT, with_rope
from helpers.tiny import BASE, VOCAB, Tiny

GPT_NEO = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 88, "num_layers": 3, "num_heads": 6,
    "max_position_embeddings": 64, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 7,
}
GPT_PLAIN = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
OPT = {key: value for key, value in GPT_PLAIN.items() if key != "intermediate_size"} | {
    "ffn_dim": 88, "word_embed_proj_dim": 48,
}
CODEGEN = {
    "vocab_size": VOCAB, "n_embd": 48, "n_inner": 88, "n_layer": 3, "n_head": 8, "n_positions": 64, "n_ctx": 64,
    "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2,
}

MODELS: dict[str, Tiny] = {
    "gpt2": Tiny("GPT2", GPT, head="LMHeadModel"),
    "gpt2 unscaled": Tiny(
        "GPT2",
        {**GPT, "scale_attn_weights": False, "tie_word_embeddings": False, "activation_function": "gelu"},
        head="LMHeadModel",
    ),
    "gptj": Tiny("GPTJ", {**GPT, "rotary_dim": 4}),
    "gptneo": Tiny("GPTNeo", GPT_NEO),
    "gptneox": Tiny("GPTNeoX", with_rope(partial_rotary_factor=0.5)),
    "gptneox sequential": Tiny(
        "GPTNeoX", {**with_rope(partial_rotary_factor=0.5), "use_parallel_residual": False, "hidden_act": "gelu_fast"},
        {"rotary_pct": 0.5, "rotary_emb_base": 5000},
    ),
    "gptneox linear": Tiny("GPTNeoX", with_rope(rope_type="linear", factor=3.0, partial_rotary_factor=1.0)),
    "gptneox unbiased": Tiny(
        "GPTNeoX", {**with_rope(partial_rotary_factor=0.5), "attention_bias": False, "tie_word_embeddings": True}
    ),
    "opt": Tiny("OPT", OPT),
    "opt gelu": Tiny("OPT", {**OPT, "activation_function": "gelu", "tie_word_embeddings": False}),
    "biogpt": Tiny("BioGpt", {**GPT_PLAIN, "scale_embedding": True}),
    "biogpt untied": Tiny("BioGpt", {**GPT_PLAIN, "scale_embedding": False, "tie_word_embeddings": False}),
    "codegen": Tiny("CodeGen", CODEGEN),
}
