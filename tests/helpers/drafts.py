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
