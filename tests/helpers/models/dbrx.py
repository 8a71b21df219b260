"""Tiny random models of dbrx's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.tiny import ROPE, VOCAB, Tiny

DBRX = {
    "vocab_size": VOCAB, "d_model": 48, "n_heads": 8, "n_layers": 3, "max_seq_len": 64, "rope_parameters": ROPE,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 5000.0},
    "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 2},
}

MODELS: dict[str, Tiny] = {
    "dbrx": Tiny("Dbrx", DBRX),
}
