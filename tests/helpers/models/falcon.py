"""Tiny random models of falcon's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import EIGHT_HEADS, ONLY_ROPE
from helpers.tiny import BASE, ROPE, Tiny

FALCON = {**BASE, "num_kv_heads": 3, "ffn_hidden_size": 88, "rope_parameters": ROPE}
REFINED_WEB = {
    "architectures": ["RWForCausalLM"], "n_head": 6, "n_layer": 3, "num_attention_heads": None, "rope_theta": 5000.0,
    "num_hidden_layers": None, "num_kv_heads": None, "max_position_embeddings": None, "ffn_hidden_size": None,
    "new_decoder_architecture": None, "num_ln_in_parallel_attn": None,
}
MULTIPLIED = {
    **EIGHT_HEADS, **ONLY_ROPE, "num_hidden_layers": 3, "mamba_d_ssm": 72, "mamba_n_heads": 9, "mamba_d_head": 8,
    "mamba_n_groups": 3, "mamba_d_state": 10, "mamba_d_conv": 3, "mamba_chunk_size": 8, "mamba_rms_norm": False,
    "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5, "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8, "key_multiplier": 0.7, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.9,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 1.2], "mlp_multipliers": [0.8, 1.4],
}

MODELS: dict[str, Tiny] = {
    "falcon 7b": Tiny("Falcon", FALCON),
    "falcon 40b": Tiny("Falcon", {**FALCON, "new_decoder_architecture": True}),
    "falcon 11b": Tiny(
        "Falcon",
        {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    ),
    "falcon 7b, old": Tiny("Falcon", FALCON, REFINED_WEB),
    "falcon 40b, old": Tiny(
        "Falcon", {**FALCON, "new_decoder_architecture": True}, {**REFINED_WEB, "multi_query": None, "n_head_kv": 3}
    ),
    # transformers' eager attention adds Falcon's ALiBi twice: to the scores, and with the mask that holds it already.
    "falcon rw": Tiny(
        "Falcon",
        {**FALCON, "num_kv_heads": 6, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
        attention="sdpa",
    ),
    "falcon-h1": Tiny("FalconH1", MULTIPLIED),
    "falcon-h1 biases": Tiny("FalconH1", {**MULTIPLIED, "attention_bias": True, "mlp_bias": True}),
    "falcon-h1 normed, tied": Tiny(
        "FalconH1",
        {**MULTIPLIED, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "tie_word_embeddings": True},
    ),
}
