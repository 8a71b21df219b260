"""Tiny random drafts under their publishers' names, for the small LLaMA of the fixtures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Shapes = dict[str, tuple[int, ...]]


def save(folder: Path, config: Mapping[str, Any], shapes: Shapes, seed: int = 7, **further: np.ndarray) -> Path:
    """A checkpoint of random values, at which no convention stays unseen, and further tensors as they are."""
    random = np.random.default_rng(seed)
    tensors = {name: _filled(random, name, shape) for name, shape in shapes.items()} | further
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return folder


def _filled(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = random.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return values * np.float32(0.2) + np.float32(name.endswith("weight"))
    return values * np.float32(0.5 if "embed" in name else 1.3 * min(shape) ** -0.5)


def offsets(vocabulary: int, rows: int, seed: int = 3) -> np.ndarray:
    """`d2t` of a draft with that many of the target's tokens: how far each is ahead of its row."""
    ids = np.sort(np.random.default_rng(seed).permutation(vocabulary)[:rows])
    return (ids - np.arange(rows)).astype(np.int64)


WIDTH, INNER, BLOCKS, DRAFTED = 64, 88, 3, 96
QWEN: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
LLAMA = {**QWEN, "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": DRAFTED}


def block(reads: int = WIDTH, *norms: str) -> Shapes:
    return {
        "input_layernorm.weight": (WIDTH,),
        "post_attention_layernorm.weight": (WIDTH,),
        "self_attn.q_proj.weight": (72, reads),
        "self_attn.k_proj.weight": (36, reads),
        "self_attn.v_proj.weight": (36, reads),
        "self_attn.o_proj.weight": (WIDTH, 72),
        "mlp.gate_proj.weight": (INNER, WIDTH),
        "mlp.up_proj.weight": (INNER, WIDTH),
        "mlp.down_proj.weight": (WIDTH, INNER),
        **{name: (12 if "self_attn" in name else WIDTH,) for name in norms},
    }


def eagle(folder: Path, layer: str = "midlayer.", name: str = "LlamaForCausalLMEagle3", **config: Any) -> Path:
    shapes: Shapes = {"fc.weight": (WIDTH, 3 * 64), "norm.weight": (WIDTH,), "lm_head.weight": (DRAFTED, WIDTH)}
    shapes |= {f"{layer}{part}": shape for part, shape in block(2 * WIDTH, "hidden_norm.weight").items()}
    told = {**LLAMA, "architectures": [name], "eagle_aux_hidden_state_layer_ids": [1, 0, 1], **config}
    if told.get("norm_before_fc"):
        shapes["input_norm.weight"] = (3 * 64,)
    if name == "Eagle3DraftModel":
        shapes["embed_tokens.weight"] = (512, WIDTH)
    ids = offsets(512, DRAFTED)
    return save(folder, told, shapes, d2t=ids, t2d=np.isin(np.arange(512), ids + np.arange(DRAFTED)))


def speculator(folder: Path) -> Path:
    """As the library speculators writes EAGLE-3."""
    eagle(folder, "layers.0.", "Eagle3Speculator", norm_before_residual=True)
    told = json.loads((folder / "config.json").read_text())
    inner = {key: told.pop(key) for key in LLAMA if key != "draft_vocab_size"}
    told |= {"transformer_layer_config": inner, "speculators_model_type": "eagle3", "speculators_version": "0.1.0"}
    (folder / "config.json").write_text(json.dumps(told))
    return folder


def flash(
    folder: Path, name: str = "DFlashDraftModel", further: Shapes | None = None, seed: int = 7, **more: Any
) -> Path:
    told = {
        **QWEN,
        "architectures": [name],
        "block_size": 5,
        "num_target_layers": 2,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 0]},
    }
    shapes: Shapes = {"fc.weight": (WIDTH, 2 * 64), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    own = block(WIDTH, "self_attn.q_norm.weight", "self_attn.k_norm.weight") | (further or {})
    shapes |= {part: own.pop(part) for part in [*own] if part.partition(".")[0] in HEADS}
    shapes |= {f"layers.{n}.{part}": shape for n in range(BLOCKS) for part, shape in own.items()}
    arrays = {key: more.pop(key) for key in [*more] if isinstance(more[key], np.ndarray)}
    return save(folder, {**told, **more}, shapes, seed, **arrays)


HEADS = ("lm_head", "markov_head", "confidence_head", "candidate_selector", "embed_tokens")


def spark(folder: Path, name: str = "Qwen3DSparkModel", confident: bool = True, **more: Any) -> Path:
    heads: Shapes = {
        "markov_head.markov_w1.weight": (512, 20),
        "markov_head.markov_w2.weight": (DRAFTED, 20),
        "lm_head.weight": (DRAFTED, WIDTH),
    }
    if confident:
        heads |= {"confidence_head.proj.weight": (1, WIDTH + 20), "confidence_head.proj.bias": (1,)}
    told = {
        "dflash_config": None,
        "mask_token_id": 3,
        "target_layer_ids": [0, 0],
        "draft_vocab_size": DRAFTED,
        "markov_head_type": "vanilla",
        "d2t": offsets(512, DRAFTED),
    }
    return flash(folder, name, heads, **{**told, **more})


def second(folder: Path) -> Path:
    """DFlash 2."""
    size, groups, rank = 3, 8, 10
    heads: Shapes = {
        "candidate_selector.predecessor_codebook": (512, rank),
        "candidate_selector.successor_codebook": (512, rank),
        "candidate_selector.hidden_projection.weight": (rank, WIDTH),
        "lm_head.weight": (512, WIDTH),
        **{f"{part}_conv.base_kernel": (2, size, WIDTH) for part in ("attention", "mlp")},
        **{f"{part}_conv.kernel_projection.weight": (2 * size * groups, WIDTH) for part in ("attention", "mlp")},
    }
    own = {
        "mask_token_id": 3,
        "target_layer_ids": [0, 0],
        "conv_kernel_size": size,
        "conv_group_size": 8,
        "selector_rank": rank,
        "selector_top_k": 4,
        "output_multiplier": 0.7,
    }
    return flash(folder, "DFlash2DraftModel", heads, dflash_config=own)


DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "vocab_size": 512,
    "hidden_size": WIDTH,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 20,
    "o_lora_rank": 12,
    "o_groups": 2,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.3,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "swiglu_limit": 2.5,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 6,
    "sliding_window": 48,
    "rms_norm_eps": 1e-6,
    "rope_theta": 3000.0,
    "compress_rope_theta": 90000.0,
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16},
    "max_position_embeddings": 64,
    "compress_ratios": [0, 4, 0, 0, 0],
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 3,
    "dspark_target_layer_ids": [0, 0],
    "dspark_markov_rank": 20,
}


def stages(folder: Path, name: str = "DeepseekV4DSparkModel", at: str = "", **more: Any) -> Path:
    """DSpark of DeepSeek V4, in the names of its target's checkpoint, behind `at`."""
    c = {**DEEPSEEK, "architectures": [name], **more}
    heads, width, count = c["num_attention_heads"], c["head_dim"], c["hc_mult"]
    last = c["num_nextn_predict_layers"] - 1
    own: Shapes = {
        "attn_norm.weight": (WIDTH,),
        "ffn_norm.weight": (WIDTH,),
        "attn.attn_sink": (heads,),
        "attn.wq_a.weight": (c["q_lora_rank"], WIDTH),
        "attn.q_norm.weight": (c["q_lora_rank"],),
        "attn.wq_b.weight": (heads * width, c["q_lora_rank"]),
        "attn.wkv.weight": (width, WIDTH),
        "attn.kv_norm.weight": (width,),
        "attn.wo_a.weight": (c["o_groups"] * c["o_lora_rank"], heads * width // c["o_groups"]),
        "attn.wo_b.weight": (WIDTH, c["o_groups"] * c["o_lora_rank"]),
        "ffn.gate.weight": (c["n_routed_experts"], WIDTH),
        "ffn.gate.bias": (c["n_routed_experts"],),
    }
    for branch in ("attn", "ffn"):
        own |= {f"hc_{branch}_fn": ((2 + count) * count, count * WIDTH), f"hc_{branch}_scale": (3,)}
        own |= {f"hc_{branch}_base": ((2 + count) * count,)}
    for of in ("shared_experts", *(f"experts.{n}" for n in range(c["n_routed_experts"]))):
        inner = (c["moe_intermediate_size"], WIDTH)
        own |= {f"ffn.{of}.w1.weight": inner, f"ffn.{of}.w2.weight": inner[::-1], f"ffn.{of}.w3.weight": inner}
    shapes = {f"{at}mtp.{n}.{part}": shape for n in range(last + 1) for part, shape in own.items()}
    shapes |= {f"{at}mtp.0.main_proj.weight": (WIDTH, 2 * 64), f"{at}mtp.0.main_norm.weight": (WIDTH,)}
    heads_of_last: Shapes = {
        "norm.weight": (WIDTH,),
        "hc_head_fn": (count, count * WIDTH),
        "hc_head_base": (count,),
        "hc_head_scale": (1,),
        "markov_head.markov_w1.weight": (512, 20),
        "markov_head.markov_w2.weight": (512, 20),
        "confidence_head.proj.weight": (1, WIDTH + 20),
    }
    shapes |= {f"{at}mtp.{last}.{part}": shape for part, shape in heads_of_last.items()}
    return save(folder, c, shapes)
