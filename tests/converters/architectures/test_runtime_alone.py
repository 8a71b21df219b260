"""Families that no library but llama.cpp computes: tiny random checkpoints under their publishers' names, and its
log-probabilities of what it continues with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from helpers.llama_cpp import continuations
from helpers.tiny import BASE, TOKENS, VOCAB
from helpers.tiny_models import relative, write

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
Made = tuple[Config, Shapes, Shapes | list[Shapes]]
WIDTH, INNER, BLOCKS = 48, 88, 3
pytestmark = pytest.mark.filterwarnings("ignore")


def mlp(*names: str, width: int = INNER) -> Shapes:
    return {f"mlp.{name}.weight": (WIDTH, width) if "down" in name else (width, WIDTH) for name in names}


def llama_block(heads: int = 8, groups: int = 2, width: int = 12) -> Shapes:
    return {
        "input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,),
        "self_attn.q_proj.weight": (heads * width, WIDTH), "self_attn.k_proj.weight": (groups * width, WIDTH),
        "self_attn.v_proj.weight": (groups * width, WIDTH), "self_attn.o_proj.weight": (WIDTH, heads * width),
        **mlp("gate_proj", "up_proj", "down_proj"),
    }


LLAMA_FRAME: Shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
WIDE = {**BASE, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 12, "rope_theta": 5000.0,
        "rms_norm_eps": 1e-5}


def maincoder() -> tuple[Config, Shapes, Shapes]:
    block = llama_block() | {f"self_attn.{part}_norm.weight": (12,) for part in "qk"}
    return {**WIDE, "hidden_act": "silu", "tie_word_embeddings": True, "use_qk_norm": True}, LLAMA_FRAME, block


def plm() -> tuple[Config, Shapes, Shapes]:
    config = {
        **BASE, "num_key_value_heads": 6, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "q_lora_rank": None, "v_head_dim": 10, "hidden_act": "relu2", "rope_theta": 5000.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    block: Shapes = {
        "input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,),
        "self_attn.q_proj.weight": (6 * 20, WIDTH), "self_attn.kv_a_proj_with_mqa.weight": (28, WIDTH),
        "self_attn.kv_a_layernorm.weight": (20,), "self_attn.kv_b_proj.weight": (6 * 22, 20),
        "self_attn.o_proj.weight": (WIDTH, 60), **mlp("up_proj", "down_proj"),
    }
    return config, LLAMA_FRAME, block


GPT = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_head": 6, "n_layer": BLOCKS, "n_positions": 64}


def jais() -> tuple[Config, Shapes, Shapes]:
    config = {
        **GPT, "n_inner": INNER, "activation_function": "swiglu", "position_embedding_type": "alibi",
        "layer_norm_epsilon": 1e-5, "mup_embeddings_scale": 3.0, "mup_output_alpha": 1.5, "mup_width_scale": 0.4,
        "mup_scale_qk_dot_by_d": True, "scale_attn_weights": True,
    }
    block: Shapes = {
        f"{name}.{part}": shape if part == "weight" else (shape[-1],)
        for name, shape in {
            "ln_1": (WIDTH,), "ln_2": (WIDTH,), "attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH),
            "mlp.c_fc": (WIDTH, INNER), "mlp.c_fc2": (WIDTH, INNER), "mlp.c_proj": (INNER, WIDTH),
        }.items()
        for part in ("weight", "bias")
    }
    frame: Shapes = {"transformer.wte.weight": (VOCAB, WIDTH), "transformer.ln_f.weight": (WIDTH,)}
    return config, frame | {"transformer.ln_f.bias": (WIDTH,)}, block


def refact() -> tuple[Config, Shapes, Shapes]:
    config = {**GPT, "layer_norm_epsilon": 1e-5, "multi_query": True, "attention_bias_in_fp32": True}
    block: Shapes = {
        "ln_1.weight": (WIDTH,), "ln_2.weight": (WIDTH,), "attn.q.weight": (WIDTH, WIDTH),
        "attn.kv.weight": (16, WIDTH), "attn.c_proj.weight": (WIDTH, WIDTH),
        "mlp.gate_up_proj.weight": (2 * INNER, WIDTH), "mlp.c_proj.weight": (WIDTH, INNER),
    }
    return config, {"transformer.wte.weight": (VOCAB, WIDTH), "ln_f.weight": (WIDTH,)}, block


def smallthinker() -> tuple[Config, Shapes, Shapes]:
    config = {key: value for key, value in WIDE.items() if key != "intermediate_size"} | {
        "moe_num_primary_experts": 5, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 40,
        "moe_primary_router_apply_softmax": False, "rope_layout": [1] * BLOCKS, "sliding_window_layout": [0] * BLOCKS,
        "sliding_window_size": 4096, "tie_word_embeddings": True, "norm_topk_prob": True,
    }
    block = {name: shape for name, shape in llama_block().items() if "mlp" not in name}
    block |= {"block_sparse_moe.primary_router.weight": (5, WIDTH)}
    for expert in range(5):
        name = f"block_sparse_moe.experts.{expert}"
        block |= {
            f"{name}.up.weight": (40, WIDTH),
            f"{name}.gate.weight": (40, WIDTH),
            f"{name}.down.weight": (WIDTH, 40),
        }
    return config, LLAMA_FRAME, block


def smallthinker_windows() -> tuple[Config, Shapes, Shapes]:
    config, frame, block = smallthinker()
    layout = [0, 1, 1]
    return config | {
        "rope_layout": layout, "sliding_window_layout": layout, "moe_primary_router_apply_softmax": True,
    }, frame, block


def nanbeige() -> tuple[Config, Shapes, Shapes]:
    config = {**WIDE, "hidden_act": "silu", "tie_word_embeddings": False, "num_loops": 2, "skip_loop_final_norm": False}
    return config, LLAMA_FRAME | {"lm_head.weight": (VOCAB, WIDTH)}, llama_block()


def nanbeige_plain() -> tuple[Config, Shapes, Shapes]:
    config, frame, block = nanbeige()
    return config | {"num_loops": 3, "skip_loop_final_norm": True}, frame, block


def spark() -> tuple[Config, Shapes, Shapes]:
    config = {key: value for key, value in WIDE.items() if key != "rope_theta"} | {
        "hidden_act": "gelu", "tie_word_embeddings": True, "gate_attn_act_mode": "sigmoid", "sliding_window": 7,
        "headwise_attn_output_gate": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 9000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 1.0},
        },
    }
    apart = {f"self_attn.{part}_proj.weight" for part in "qkv"}
    block = {name: shape for name, shape in llama_block().items() if name not in apart}
    block |= {"self_attn.q_k_v_proj.weight": (12 * 12, WIDTH), "self_attn.g_proj.weight": (8, WIDTH)}
    return config, LLAMA_FRAME, block


def deepseek_ocr() -> tuple[Config, Shapes, Shapes]:
    inner = {
        **BASE, "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 40, "n_shared_experts": 2, "first_k_dense_replace": 0, "use_mla": False,
        "routed_scaling_factor": 1.5, "topk_method": "greedy", "hidden_act": "silu", "tie_word_embeddings": False,
    }
    block = {name: shape for name, shape in llama_block(8, 8, 6).items() if "mlp" not in name}
    block |= {"mlp.gate.weight": (5, WIDTH)}
    for expert in (*(f"experts.{n}" for n in range(5)), "shared_experts"):
        width = 80 if expert == "shared_experts" else 40
        block |= {name.replace("mlp.", f"mlp.{expert}."): shape
                  for name, shape in mlp("gate_proj", "up_proj", "down_proj", width=width).items()}
    return {"language_config": inner}, LLAMA_FRAME | {"lm_head.weight": (VOCAB, WIDTH)}, block


def cogvlm() -> tuple[Config, Shapes, Shapes]:
    config = {**BASE, "num_attention_heads": 8, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "tie_word_embeddings": False, "template_version": "chat", "vision_config": {"width": 3}}
    del config["num_key_value_heads"]
    block: Shapes = {"input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,)}
    for kind in ("language", "vision"):
        block |= {
            f"self_attn.{kind}_expert_query_key_value.weight": (3 * WIDTH, WIDTH),
            f"self_attn.{kind}_expert_dense.weight": (WIDTH, WIDTH),
            **{name.replace("mlp.", f"mlp.{kind}_mlp."): shape
               for name, shape in mlp("gate_proj", "up_proj", "down_proj").items()},
        }
    frame: Shapes = {"lm_head.weight": (VOCAB, WIDTH), "model.vision.boi": (1, 1, WIDTH)}
    return config, LLAMA_FRAME | frame, block


def talkie() -> tuple[Config, Shapes, Shapes]:
    config = {**WIDE, "num_key_value_heads": 8, "tie_word_embeddings": False}
    del config["rms_norm_eps"]
    block: Shapes = {
        **{f"attn.attn_{name}.weight": (96, WIDTH) for name in ("query", "key", "value")},
        "attn.attn_resid.weight": (WIDTH, 96), "attn.head_gain.head_g": (8,), "attn_gain.a_g": (1,),
        "mlp.mlp_gate.weight": (INNER, WIDTH), "mlp.mlp_linear.weight": (INNER, WIDTH),
        "mlp.mlp_resid.weight": (WIDTH, INNER), "mlp_gain.a_g": (1,), "embed_skip.a_g": (1,),
    }
    return config, {"model.embed.weight": (VOCAB, WIDTH), "lm_head": (VOCAB, WIDTH), "lm_head_gain.w_g": (1,)}, block


def puzzle() -> Made:
    """Two blocks of experts of different widths, of which tokens pass different numbers."""
    config: Config = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "max_position_embeddings": 64, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 12, "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4, "ssm_state_size": 10, "n_groups": 2, "mamba_num_heads": 8, "mamba_head_dim": 12,
        "time_step_min": 0.0, "n_routed_experts": 6, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 56,
        "moe_latent_size": 24, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "tie_word_embeddings": False, "use_conv_bias": True,
        "block_configs": [
            {"block_type": "mamba"}, {"block_type": "moe", "moe_intermediate_size": 40, "num_experts_per_tok": 2},
            {"block_type": "attention"}, {"block_type": "moe", "moe_intermediate_size": 32, "num_experts_per_tok": 3},
        ],
    }
    space: Shapes = {
        "norm.weight": (WIDTH,), "mixer.in_proj.weight": (2 * 96 + 2 * 20 + 8, WIDTH),
        "mixer.conv1d.weight": (136, 1, 4), "mixer.conv1d.bias": (136,), "mixer.dt_bias": (8,), "mixer.A_log": (8,),
        "mixer.D": (8,), "mixer.norm.weight": (96,), "mixer.out_proj.weight": (WIDTH, 96),
    }
    attending: Shapes = {
        "norm.weight": (WIDTH,), "mixer.q_proj.weight": (96, WIDTH), "mixer.k_proj.weight": (24, WIDTH),
        "mixer.v_proj.weight": (24, WIDTH), "mixer.o_proj.weight": (WIDTH, 96),
    }
    frame: Shapes = {"model.embeddings.weight": (VOCAB, WIDTH), "model.norm_f.weight": (WIDTH,)}
    return config, frame | {"lm_head.weight": (VOCAB, WIDTH)}, [space, latent(40), attending, latent(32)]


def latent(width: int) -> Shapes:
    """Experts in a space of 24."""
    found: Shapes = {
        "norm.weight": (WIDTH,), "mixer.gate.weight": (6, WIDTH), "mixer.gate.e_score_correction.bias": (6,),
        "mixer.fc1_latent_proj.weight": (24, WIDTH), "mixer.fc2_latent_proj.weight": (WIDTH, 24),
        "mixer.shared_experts.up_proj.weight": (56, WIDTH), "mixer.shared_experts.down_proj.weight": (WIDTH, 56),
    }
    for n in range(6):
        found |= {f"mixer.experts.{n}.up_proj.weight": (width, 24), f"mixer.experts.{n}.down_proj.weight": (24, width)}
    return found


def routed(experts: int, width: int, shared: int) -> Shapes:
    """Experts with a bias of their choice, beside shared ones."""
    found: Shapes = {"mlp.gate.weight": (experts, WIDTH), "mlp.gate.expert_bias": (experts,)}
    for expert in (*(f"experts.{n}" for n in range(experts)), "shared_experts"):
        own = shared if expert == "shared_experts" else width
        found |= {name.replace("mlp.", f"mlp.{expert}."): shape
                  for name, shape in mlp("gate_proj", "up_proj", "down_proj", width=own).items()}
    return found


def ling_that_sees() -> Made:
    inner: Config = {
        **BASE, "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 10, "kv_lora_rank": 20,
        "q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "rms_norm_eps": 1e-6,
        "rope_theta": 700.0, "layer_group_size": 3,
        "short_conv_kernel_size": 3, "no_kda_lora": True, "kda_safe_gate": True, "kda_lower_bound": -2.0,
        "gated_attention_proj_granularity_type": "head_wise", "num_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 56, "num_shared_experts": 1, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
        "expert_swiglu_limit_list": [None, 0.6, 0.7, 0.8], "share_expert_swiglu_limit_list": [None, None, 0.5],
        "mrope_section": [2, 1, 1], "tie_word_embeddings": False, "hidden_act": "silu", "score_function": "sigmoid",
    }
    norms: Shapes = {"input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,)}
    delta: Shapes = {
        **{f"attention.{part}_proj.weight": (60, WIDTH) for part in "qkvfg"}, "attention.b_proj.weight": (6, WIDTH),
        **{f"attention.{part}_conv1d.weight": (60, 1, 3) for part in "qkv"}, "attention.A_log": (6,),
        "attention.dt_bias": (60,), "attention.o_norm.weight": (10,), "attention.o_proj.weight": (WIDTH, 60),
    }
    full: Shapes = {
        "attention.q_a_proj.weight": (28, WIDTH), "attention.q_a_layernorm.weight": (28,),
        "attention.q_b_proj.weight": (120, 28), "attention.kv_a_proj_with_mqa.weight": (28, WIDTH),
        "attention.kv_a_layernorm.weight": (20,), "attention.kv_b_proj.weight": (132, 20),
        "attention.g_proj.weight": (6, WIDTH), "attention.dense.weight": (WIDTH, 60),
    }
    dense = mlp("gate_proj", "up_proj", "down_proj")
    frame: Shapes = {"model.word_embeddings.weight": (VOCAB, WIDTH), "model.norm.weight": (WIDTH,)}
    frame |= {"lm_head.weight": (VOCAB, WIDTH), "linear_proj.0.weight": (WIDTH, 24), "model.visual.x.weight": (24, 24)}
    sparse = routed(8, 40, 56)
    return {"text_config": inner}, frame, [{**norms, **delta, **dense}, {**norms, **delta, **sparse},
                                           {**norms, **full, **sparse}]


def kimi_k3() -> Made:
    inner: Config = {
        **BASE, "num_attention_heads": 6, "kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8, "v_head_dim": 10, "rms_norm_eps": 1e-6, "mla_use_nope": True, "hidden_act": "situ",
        "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 10, "num_heads": 6,
                               "short_conv_kernel_size": 3, "gate_lower_bound": -2.0},
        "num_experts": 8, "num_experts_per_token": 3, "moe_intermediate_size": 40, "num_shared_experts": 2,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "moe_renormalize": True, "num_expert_group": 1,
        "moe_router_activation_func": "sigmoid", "routed_expert_hidden_size": 24, "activation_situ_beta": 0.8,
        "activation_situ_linear_beta": 1.2, "attn_res_block_size": 2, "tie_word_embeddings": False,
        "topk_group": 1,
    }
    every: Shapes = {
        "input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,),
        **{f"{name}_res_norm.weight": (WIDTH,) for name in ("self_attention", "mlp")},
        **{f"{name}_res_proj.weight": (1, WIDTH) for name in ("self_attention", "mlp")},
    }
    delta: Shapes = {
        **{f"self_attn.{part}_proj.weight": (60, WIDTH) for part in "qkvg"}, "self_attn.b_proj.weight": (6, WIDTH),
        **{f"self_attn.{part}_conv1d.weight": (60, 1, 3) for part in "qkv"}, "self_attn.A_log": (6,),
        "self_attn.f_a_proj.weight": (10, WIDTH), "self_attn.f_b_proj.weight": (60, 10), "self_attn.dt_bias": (60,),
        "self_attn.o_norm.weight": (10,), "self_attn.o_proj.weight": (WIDTH, 60),
    }
    full: Shapes = {
        "self_attn.q_a_proj.weight": (28, WIDTH), "self_attn.q_a_layernorm.weight": (28,),
        "self_attn.q_b_proj.weight": (120, 28), "self_attn.kv_a_proj_with_mqa.weight": (28, WIDTH),
        "self_attn.kv_a_layernorm.weight": (20,), "self_attn.kv_b_proj.weight": (132, 20),
        "self_attn.g_proj.weight": (60, WIDTH), "self_attn.o_proj.weight": (WIDTH, 60),
    }
    moe = "block_sparse_moe."
    sparse: Shapes = {
        f"{moe}gate.weight": (8, WIDTH), f"{moe}gate.e_score_correction_bias": (8,),
        f"{moe}routed_expert_down_proj.weight": (24, WIDTH), f"{moe}routed_expert_up_proj.weight": (WIDTH, 24),
        f"{moe}routed_expert_norm.weight": (24,),
    }
    for n in range(8):
        sparse |= {f"{moe}experts.{n}.w{w}.weight": (24, 40) if w == 2 else (40, 24) for w in (1, 2, 3)}
    sparse |= {name.replace("mlp.", f"{moe}shared_experts."): shape
               for name, shape in mlp("gate_proj", "up_proj", "down_proj", width=80).items()}
    frame = {f"language_model.{name}": shape for name, shape in LLAMA_FRAME.items()}
    frame |= {"language_model.lm_head.weight": (VOCAB, WIDTH), "vision_tower.x.weight": (24, 24)}
    frame |= {"language_model.model.output_attn_res_norm.weight": (WIDTH,)}
    frame |= {"language_model.model.output_attn_res_proj.weight": (1, WIDTH)}
    dense = mlp("gate_proj", "up_proj", "down_proj")
    return {"text_config": inner}, frame, [{**every, **delta, **dense}, {**every, **full, **sparse},
                                           {**every, **delta, **sparse}]


def maple() -> tuple[Config, Shapes, Shapes]:
    config = {key: value for key, value in WIDE.items() if key != "intermediate_size"} | {
        "hidden_act": "silu", "tie_word_embeddings": False, "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 40, "norm_topk_prob": True, "num_shared_experts": 0, "sliding_window": 7,
        "nope_on_global_attention": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "partial_rotary_factor": 0.5,
    }
    block = {name: shape for name, shape in llama_block().items() if "mlp" not in name} | {
        "mlp.gate.weight": (5, WIDTH)
    }
    block |= {f"self_attn.{part}_norm.weight": (12,) for part in "qk"}
    for n in range(5):
        block |= {name.replace("mlp.", f"mlp.experts.{n}."): shape
                  for name, shape in mlp("gate_proj", "up_proj", "down_proj", width=40).items()}
    return config, LLAMA_FRAME | {"lm_head.weight": (VOCAB, WIDTH)}, block


def qrwkv() -> tuple[Config, Shapes, Shapes]:
    config = {**BASE, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
              "lora_rank_tokenshift": 7, "lora_rank_decay": 10, "attention_bias": True}
    kept = ("input_layernorm.weight", "post_attention_layernorm.weight")
    block = {name: shape for name, shape in llama_block(6, 3, 8).items() if name in kept or "mlp" in name}
    at: Shapes = {
        **{f"time_maa_{part}": (1, 1, WIDTH) for part in "xwkvrg"}, "time_maa_w1": (WIDTH, 35),
        "time_maa_w2": (5, 7, WIDTH), "time_decay": (1, 1, WIDTH), "time_decay_w1": (WIDTH, 10),
        "time_decay_w2": (10, WIDTH), "q_proj.weight": (WIDTH, WIDTH), "k_proj.weight": (24, WIDTH),
        "v_proj.weight": (24, WIDTH), "q_proj.bias": (WIDTH,), "k_proj.bias": (24,), "v_proj.bias": (24,),
        "gate.weight": (WIDTH, WIDTH), "o_proj.weight": (WIDTH, WIDTH),
    }
    block |= {f"self_attn.{name}": shape for name, shape in at.items()}
    return config, LLAMA_FRAME | {"lm_head.weight": (VOCAB, WIDTH)}, block


def arwkv(gated: bool) -> Callable[[], tuple[Config, Shapes, Shapes]]:
    """ARWKV with heads of 64, as ggml computes them."""

    def made() -> tuple[Config, Shapes, Shapes]:
        config = {**BASE, "hidden_size": 128, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
                  "wkv_version": 7, "head_size": 64, "num_wkv_heads": 2, "wkv_has_gate": gated,
                  "wkv_has_group_norm": gated, "head_size_divisor": 8}
        kept = ("input_layernorm.weight", "post_attention_layernorm.weight")
        block = {name: shape for name, shape in llama_block().items() if name in kept or "mlp" in name}
        ranks = {"w": 9, "a": 10, "v": 7} | ({"g": 11} if gated else {})
        at: Shapes = {
            **{f"x_{part}": (1, 1, WIDTH) for part in "rwkvag"}, "k_k": (1, 1, WIDTH), "k_a": (1, 1, WIDTH),
            "r_k": (2, 64), **{f"{part}0": (1, 1, WIDTH) for part in "wav"},
            **{f"{part}1": (WIDTH, rank) for part, rank in ranks.items()},
            **{f"{part}2": (rank, WIDTH) for part, rank in ranks.items()},
            **{f"{part}.weight": (WIDTH, WIDTH) for part in ("receptance", "key", "value", "output")},
            **({"ln_x.weight": (WIDTH,), "ln_x.bias": (WIDTH,)} if gated else {}),
        }
        block |= {f"self_attn.time_mixer.{name}": shape for name, shape in at.items()}
        frame = LLAMA_FRAME | {"lm_head.weight": (VOCAB, WIDTH)}
        frame, block = (
            {name: tuple(128 if size == WIDTH else size for size in shape) for name, shape in shapes.items()}
            for shapes in (frame, block)
        )
        return config, frame, block

    return made


MADE: dict[str, tuple[str, str, Callable[[], Made]]] = {
    "rwkv6qwen2": ("RWKV6Qwen2ForCausalLM", "model.layers.", qrwkv),
    "arwkv7": ("RwkvHybridForCausalLM", "model.layers.", arwkv(False)),
    "arwkv7 gated": ("RwkvHybridForCausalLM", "model.layers.", arwkv(True)),
    "nemotron_h_moe puzzle": ("NemotronHPuzzleForCausalLM", "model.layers.", puzzle),
    "maincoder": ("MaincoderForCausalLM", "model.layers.", maincoder),
    "plm": ("PLMForCausalLM", "model.layers.", plm),
    "jais": ("JAISLMHeadModel", "transformer.h.", jais),
    "refact": ("GPTRefactForCausalLM", "transformer.h.", refact),
    "nanbeige": ("NanbeigeForCausalLM", "model.layers.", nanbeige),
    "nanbeige plain": ("NanbeigeForCausalLM", "model.layers.", nanbeige_plain),
    "deepseek2-ocr": ("DeepseekOCRForCausalLM", "model.layers.", deepseek_ocr),
    "spark2_5": ("Spark2_5ForCausalLM", "model.layers.", spark),
    "cogvlm": ("CogVLMForCausalLM", "model.layers.", cogvlm),
    "talkie": ("TalkieForCausalLM", "model.blocks.", talkie),
    "bailingmoe3 that sees": ("BailingMoeV3VLForConditionalGeneration", "model.layers.", ling_that_sees),
    "kimi-k3": ("KimiK3ForConditionalGeneration", "language_model.model.layers.", kimi_k3),
    "maple": ("MapleForCausalLM", "model.layers.", maple),
    "smallthinker": ("SmallThinkerForCausalLM", "model.layers.", smallthinker),
    "smallthinker windows": ("SmallThinkerForCausalLM", "model.layers.", smallthinker_windows),
}


SEEDS = {"jais": 9, "smallthinker": 9}
"""Of models which else would continue with a part of a character, of which llama.cpp's server says nothing."""
LOUD = {"maple": 6.0}
"""By how much the networks' first matrices are larger, so that what they make reaches a bound."""
CLOSE = {"spark2_5": 2e-2}
"""llama.cpp's GELU is a table of float16, and of the form by tanh."""


PROMPTS = {"cogvlm": TOKENS[:1]}
"""llama.cpp continues a longer prompt of a CogVLM with what follows its first token."""


def saved(name: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint whose values leave no convention unseen."""
    cls, layer, make = MADE[name]
    config, frame, block = make()
    blocks = block if isinstance(block, list) else [block] * BLOCKS
    shapes = frame | {f"{layer}{n}.{part}": shape for n, own in enumerate(blocks) for part, shape in own.items()}
    random = np.random.default_rng(SEEDS.get(name, 7))
    tensors = {part: filled(random, part, shape) for part, shape in shapes.items()}
    for part in tensors:
        tensors[part] *= LOUD.get(name, 1.0) if "up_proj" in part else 1.0
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, **changes, "architectures": [cls], "model_type": "x"}))
    return folder


def filled(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = random.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return values * 0.2 + (name.endswith(("weight", "_g")))
    return values * (0.5 if "embed" in name or "wte" in name else 1.3 * min(shape) ** -0.5)


@pytest.mark.parametrize("name", MADE)
def test_both_sides_compute_alike_and_no_key_is_left_over(name: str, tmp_path: Path) -> None:
    source = graph_of(str(saved(name, tmp_path)))
    assert source.architecture.name == name.partition(" ")[0]
    assert not [note for note in source.notes if "does not use" in note]
    assert "llama.cpp" in source.runtimes
    made = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert relative(forward(source, TOKENS), forward(made, TOKENS)) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_llama_cpp_computes_the_same_probabilities(name: str, tmp_path: Path) -> None:
    graph = graph_of(str(saved(name, tmp_path)))
    tokens = list(PROMPTS.get(name, TOKENS))
    (answer,) = continuations(tokens, 4, write(graph, tmp_path / "x.gguf"))
    assert answer
    for token, probability in answer:
        logits = forward(graph, tokens)[-1].astype(np.float64)
        scores = logits - logits.max()
        scores -= np.log(np.exp(scores).sum())
        assert scores[token] == pytest.approx(probability, abs=CLOSE.get(name, 1e-4))
        tokens.append(token)


def test_jais_says_what_llama_cpp_divides_scores_by(tmp_path: Path) -> None:
    source = graph_of(str(saved("jais", tmp_path, mup_scale_qk_dot_by_d=False)))
    assert "divides scores by the width" in " ".join(source.notes) and "llama.cpp" not in source.runtimes
    made = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert made.sizes["attn_scale"] == pytest.approx(8**-0.5)
    assert relative(forward(source, TOKENS), forward(made, TOKENS)) <= 1e-5


def test_smallthinker_says_what_llama_cpp_takes_for_granted(tmp_path: Path) -> None:
    layout = {"sliding_window_layout": [1, 0, 1], "sliding_window_size": 7, "rope_layout": [0, 1, 1]}
    source = graph_of(str(saved("smallthinker", tmp_path, **layout)))
    notes = " ".join(source.notes)
    assert "windows of smallthinker are 4096 wide" in notes and "llama.cpp" not in source.runtimes
    made = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert made.sizes["swa_layers"] == (True, False, True) and made.sizes["rope_layers"] == (False, True, True)
    assert relative(forward(source, TOKENS), forward(made, TOKENS)) <= 1e-5
