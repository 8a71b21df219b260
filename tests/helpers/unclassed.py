"""Tiny random models of families that transformers has no class for: configuration and tensors under their publishers'
names, written by hand. Eight heads on two, experts that differ; llama.cpp is the witness where it runs the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from helpers.tiny import VOCAB

Shapes = dict[str, tuple[int, ...]]
WIDTH, HEADS, HEADS_KV, HEAD, FF, BLOCKS = 48, 8, 2, 6, 88, 4
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FF, "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS_KV, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}
EXPERTS, FF_EXPERT = 5, 40
SCALES = {
    "embedding_multiplier_scale": 3.0, "output_multiplier_scale": 0.7, "attn_output_multiplier": 0.4,
    "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "rope_theta": 5000.0,
}


def _embeddings(token: str, norm: str, output: str = "lm_head.weight") -> Shapes:
    ends = {token: (VOCAB, WIDTH), norm: (WIDTH,)}
    return ends | ({output: (VOCAB, WIDTH)} if output else {})


def _attention(q: str, k: str, v: str, out: str, heads_kv: int = HEADS_KV) -> Shapes:
    return {q: (HEADS * HEAD, WIDTH), k: (heads_kv * HEAD, WIDTH), v: (heads_kv * HEAD, WIDTH),
            out: (WIDTH, HEADS * HEAD)}


def grok1() -> tuple[dict[str, Any], Shapes]:
    """The names of the first conversion of xAI's weights."""
    shapes = _embeddings("transformer.in_out_embed.weight", "transformer.rms_norm.weight")
    for n in range(BLOCKS):
        at = f"transformer.decoder_layer.{n}."
        shapes |= {f"{at}rms_norm{part}.weight": (WIDTH,) for part in ("", "_1", "_2", "_3")}
        mha = (f"{at}multi_head_attention.{name}.weight" for name in ("query", "key", "value", "linear"))
        shapes |= {**_attention(*mha), f"{at}router.weight": (EXPERTS, WIDTH)}
        for e in range(EXPERTS):
            shapes |= {f"{at}moe.{e}.linear.weight": (FF, WIDTH), f"{at}moe.{e}.linear_v.weight": (FF, WIDTH),
                       f"{at}moe.{e}.linear_1.weight": (WIDTH, FF)}
    return {"architectures": ["Grok1ForCausalLM"], **SIZES, **SCALES}, shapes


def grok2() -> tuple[dict[str, Any], Shapes]:
    """Grok 2 as xAI published it, in one piece."""
    shapes = _embeddings("model.embed_tokens.weight", "model.norm.weight")
    for n in range(BLOCKS):
        at = f"model.layers.{n}."
        norms = ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm")
        shapes |= {f"{at}{name}.weight": (WIDTH,) for name in norms}
        shapes |= _attention(*(f"{at}self_attn.{name}_proj.weight" for name in "qkvo"))
        shapes |= {f"{at}mlp.gate_proj.weight": (FF, WIDTH), f"{at}mlp.up_proj.weight": (FF, WIDTH),
                   f"{at}mlp.down_proj.weight": (WIDTH, FF),
                   f"{at}block_sparse_moe.gate.weight": (EXPERTS, WIDTH)}
        for e in range(EXPERTS):
            one = f"{at}block_sparse_moe.experts.{e}."
            shapes |= {f"{one}w1.weight": (FF_EXPERT, WIDTH), f"{one}w2.weight": (WIDTH, FF_EXPERT),
                       f"{one}w3.weight": (FF_EXPERT, WIDTH)}
    config = {
        "architectures": ["GrokForCausalLM"], **SIZES, **SCALES, "moe_intermediate_size": FF_EXPERT,
        "residual_moe": True, "rope_type": "original", "scaling_factor": 16.0, "original_max_position_embeddings": 8,
        "router_logit_softcapping": 2.0, "final_logit_softcapping": 20.0, "attn_logit_softcapping": 10.0,
        "attn_temperature_len": 8,
    }
    return config, shapes


def plamo() -> tuple[dict[str, Any], Shapes]:
    """PLaMo 13B: its configuration says another number of heads of keys than there are."""
    shapes = _embeddings("model.embed_tokens.weight", "model.norm.weight")
    for n in range(BLOCKS):
        at = f"model.layers.layers.{n}."
        shapes |= _attention(*(f"{at}self_attn.{name}_proj.weight" for name in "qkvo"))
        shapes |= {f"{at}norm.weight": (WIDTH,), f"{at}mlp.gate_proj.weight": (FF, WIDTH),
                   f"{at}mlp.up_proj.weight": (FF, WIDTH), f"{at}mlp.down_proj.weight": (WIDTH, FF)}
    config = {**SIZES, "num_key_value_heads": HEADS, "n_shared_head": HEADS // HEADS_KV, "hidden_act": "silu"}
    return {"architectures": ["PlamoForCausalLM"], **config}, shapes


def _plamo_frame() -> Shapes:
    shapes = _embeddings("model.embed_tokens.weight", "model.norm.weight", output="")
    for n in range(BLOCKS):
        at = f"model.layers.layers.{n}."
        norms = ("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
        shapes |= {f"{at}{name}.weight": (WIDTH,) for name in norms}
        shapes |= {f"{at}mlp.gate_up_proj.weight": (2 * FF, WIDTH), f"{at}mlp.down_proj.weight": (WIDTH, FF)}
    return shapes


def plamo2() -> tuple[dict[str, Any], Shapes]:
    """PLaMo 2: every second block attends; the state spaces have three heads as wide as attention's."""
    shapes, heads, state, width, rank = _plamo_frame(), 6, 10, 12, 64
    for n in range(BLOCKS):
        at = f"model.layers.layers.{n}.mixer."
        if n % 2:
            rows = (HEADS + 2 * HEADS_KV) * width
            shapes |= {f"{at}qkv_proj.weight": (rows, WIDTH), f"{at}o_proj.weight": (WIDTH, HEADS * width),
                       f"{at}q_weight": (HEADS, width), f"{at}k_weight": (HEADS_KV, width)}
        else:
            inner = heads * width
            shapes |= {
                f"{at}in_proj.weight": (2 * inner, WIDTH), f"{at}conv1d.weight": (inner, 1, 4),
                f"{at}bcdt_proj.weight": (2 * state + rank, inner), f"{at}dt_proj.weight": (heads, rank),
                f"{at}dt_bias": (heads,), f"{at}A_log": (heads,), f"{at}D": (heads,), f"{at}dt_norm_weight": (rank,),
                f"{at}B_norm_weight": (state,), f"{at}C_norm_weight": (state,), f"{at}out_proj.weight": (WIDTH, inner),
            }
    config = {
        "architectures": ["Plamo2ForCausalLM"], **SIZES, "tie_word_embeddings": True, "hidden_size_per_head": width,
        "mamba_d_state": state, "mamba_num_heads": heads, "mamba_step": 2, "mamba_d_conv": 4, "mamba_enabled": True,
    }
    return config, shapes


def plamo3() -> tuple[dict[str, Any], Shapes]:
    """PLaMo 3: every other block has a window."""
    shapes, width = _plamo_frame(), 12
    for n in range(BLOCKS):
        at = f"model.layers.layers.{n}.mixer."
        rows = (HEADS + 2 * HEADS_KV) * width
        shapes |= {f"{at}qkv_proj.weight": (rows, WIDTH), f"{at}o_proj.weight": (WIDTH, HEADS * width),
                   f"{at}q_norm.weight": (width,), f"{at}k_norm.weight": (width,)}
    config = {
        "architectures": ["Plamo3ForCausalLM"], **SIZES, "tie_word_embeddings": True, "head_dim": width,
        "window_size": 7, "sliding_window_pattern": 2, "rope_theta": 9000.0, "rope_local_theta": 700.0,
    }
    return config, shapes


SWITCHES, SUBSTITUTES = (7, 200, 31), (40, 9, 77)
"""Tokens that switch an adapter on, and those that are embedded in their place."""


def granite_switch() -> tuple[dict[str, Any], Shapes]:
    """Granite with three adapters in every matrix, as `granite-switch` composes it: the switch counts as a block."""
    rank = 6
    shapes = _embeddings("model.embed_tokens.weight", "model.norm.weight", "")
    for n in range(BLOCKS):
        at = f"model.layers.{n}."
        shapes |= {f"{at}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
        for name, columns, parts in (
            ("self_attn.qkv_proj", WIDTH, (HEADS * HEAD, HEADS_KV * HEAD, HEADS_KV * HEAD)),
            ("self_attn.o_proj", HEADS * HEAD, (WIDTH,)),
            ("shared_mlp.input_linear", WIDTH, (FF, FF)),
            ("shared_mlp.output_linear", FF, (WIDTH,)),
        ):
            shapes[f"{at}{name}.base_layer.weight"] = (sum(parts), columns)
            for number, rows in enumerate(parts):
                part = f"_slices.{number}" if len(parts) > 1 else ""
                shapes[f"{at}{name}.lora_A{part}"] = (len(SWITCHES), 1, rank, columns)
                shapes[f"{at}{name}.lora_B{part}"] = (len(SWITCHES), 1, rows, rank)
    config = {
        "architectures": ["GraniteSwitchForCausalLM"], "model_type": "granite_switch",
        **SIZES, "num_hidden_layers": BLOCKS + 1, "layer_types": ["attention"] * (BLOCKS + 1), "intermediate_size": 512,
        "shared_intermediate_size": FF, "tie_word_embeddings": True, "position_embedding_type": "rope",
        "attention_multiplier": 0.3, "embedding_multiplier": 4.0, "residual_multiplier": 0.6, "logits_scaling": 2.5,
        "num_local_experts": 0, "num_experts_per_tok": 0, "rope_theta": 5000.0, "num_adapters": len(SWITCHES),
        "adapter_token_ids": list(SWITCHES), "adapter_substitute_token_ids": list(SUBSTITUTES), "control_dims": 0,
        "control_token_gain": 15.0, "max_lora_rank": rank, "adapter_ranks": [rank, 2, 4],
        "adapter_names": ["a", "b", "c"], "projection_head_dim": HEAD,
        "lora_target_modules": ["qkv_proj", "o_proj", "shared_input_linear", "shared_output_linear"],
    }
    return config, shapes


UNCLASSED = {
    "granite switch": granite_switch, "grok 1": grok1, "grok 2": grok2, "plamo": plamo, "plamo 2": plamo2,
    "plamo 3": plamo3,
}


def make_unclassed(name: str, folder: Path, **changes: Any) -> Path:
    """Save the model in `folder`: float32 weights, large enough for attention to be far from uniform."""
    config, shapes = UNCLASSED[name]()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    rng = np.random.default_rng(13)
    tensors = {at: rng.normal(1.0 if "norm" in at else 0.0, 0.25, shape) for at, shape in shapes.items()}
    save_file({at: value.astype(np.float32) for at, value in tensors.items()}, folder / "model.safetensors")
    return folder
