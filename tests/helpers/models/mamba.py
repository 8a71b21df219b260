"""Tiny random models of mamba's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.tiny import VOCAB, Tiny

MAMBA = {
    "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 10, "conv_kernel": 4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
MAMBA2 = {**MAMBA, "head_dim": 8, "num_heads": 12, "n_groups": 3, "chunk_size": 8}

MODELS: dict[str, Tiny] = {
    "mamba": Tiny("Mamba", {**MAMBA, "time_step_rank": 5}),
    "mamba untied": Tiny("Mamba", {**MAMBA, "time_step_rank": 5, "tie_word_embeddings": False}),
    "mamba2": Tiny("Mamba2", MAMBA2),
    "mamba2 one group": Tiny("Mamba2", {**MAMBA2, "n_groups": 1, "tie_word_embeddings": True}),
    "falcon mamba": Tiny("FalconMamba", {**MAMBA, "time_step_rank": 5, "mixer_rms_eps": 1e-2}),
}
