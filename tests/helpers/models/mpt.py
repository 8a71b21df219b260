"""Tiny random models of mpt's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.tiny import VOCAB, Tiny

MPT = {"vocab_size": VOCAB, "d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 64}

MODELS: dict[str, Tiny] = {
    "mpt": Tiny("Mpt", MPT),
    "mpt clip": Tiny("Mpt", {**MPT, "attn_config": {"clip_qkv": 0.8}, "expansion_ratio": 2}),
    "mpt scale": Tiny("Mpt", {**MPT, "attn_config": {"softmax_scale": 0.2}, "tie_word_embeddings": False}),
}
