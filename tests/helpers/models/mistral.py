"""Tiny random models of mistral's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, LATENT_ROUTED, ROPE_YARN, WIDE, with_rope
from helpers.tiny import Tiny

GROWING = {
    "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3,
}

MODELS: dict[str, Tiny] = {
    "mistral window": Tiny("Mistral", {**with_rope(), "sliding_window": 7}),
    "mixtral": Tiny("Mixtral", {**with_rope(), "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7}),
    "ministral3": Tiny(
        "Ministral3",
        {**WIDE, "rope_parameters": {**ROPE_YARN, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.4,
                                     "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "mistral4": Tiny("Mistral4", {**LATENT_ROUTED, "rope_parameters": GROWING, "first_k_dense_replace": 0, "n_group": 1,
                              "topk_group": 1, "norm_topk_prob": True, "n_shared_experts": 1}),
    "ministral": Tiny("Ministral", {**WIDE, **FOUR}),
}
