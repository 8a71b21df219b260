"""MLX: groups of one to eight bits, MXFP4, MXFP8 and NVFP4, in layers of mlx-lm's names.

Sources: MLX 0.32.4 `ops.dequantize`; mlx-lm 0.32.2 `mlx_lm/models/*.py`, `sanitize`: experts are stacked, gate and up
of a stack are cut apart, and some layers renamed.
"""

from __future__ import annotations

import re

import numpy as np
from stored_parts import E2M1, Array, Named, Settings, bits_at, floats, powers

_OF_EXPERT = re.compile(r"(.+)\.experts\.(\d+)\.(\w+)\.weight")
_STACKED = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_SQUARED = {"up_proj": "fc1", "down_proj": "fc2"}
_JOINT = {"experts.gate_up_proj": "experts.switch_glu."}
_DOWN = {"experts.down_proj": "experts.switch_glu.down_proj"}
_OF_THREE = re.compile(r"(.+\.self_attn\.)([qkv])_proj")
_OTHERWISE = (
    (".block_sparse_moe.", ".mlp."),
    (".mlp.gate.", ".mlp.gate.gate_proj."),
    (".mlp.gate.", ".mlp.gate.proj."),
    (".moe.gate.", ".mlp.gate.gate."),
    (".moe.", ".mlp.switch_mlp."),
    (".share_expert.", ".mlp.share_expert."),
    (".feed_forward.w1.", ".feed_forward.gate_proj."),
    (".feed_forward.w2.", ".feed_forward.down_proj."),
    (".feed_forward.w3.", ".feed_forward.up_proj."),
    ("transformer.", "model."),  # GPT-2, GPT-J
    ("gpt_neox.layers.", "model.h."),
    ("gpt_neox.", "model."),
    ("embed_out.", "model.embed_out."),
)
"""Parts of names of layers that are no experts: the publishers', and mlx-lm's."""


def mlx(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    return np.concatenate([_mlx_row(read, settings, *_mlx_place(read, name, int(row)), c) for row in r])


def _mlx_row(read: Named, settings: Settings, base: str, place: tuple[int, ...], c: Array) -> Array:
    """Return columns of one row, `(1, columns)`; `place`: its index in the tensors of that name."""
    own = settings.get(base)
    settings = {"mode": "affine", "group_size": 64, "bits": 4, **own} if isinstance(own, dict) else settings
    mode = settings.get("mode", "affine")
    row = tuple(slice(index, index + 1) for index in place)
    stored = f"{base}.weight" if f"{base}.weight" in read else base
    words = np.ascontiguousarray(read(stored, *row)).reshape(1, -1)
    if mode == "affine":
        bits, size = settings["bits"], settings["group_size"]
        levels = bits_at(words.view(np.uint32), c * bits, bits).astype(np.float32)
        scale, bias = (floats(read, f"{base}.{end}", *row).reshape(1, -1)[:, c // size] for end in ("scales", "biases"))
        return levels * scale + bias
    words, size = words.view(np.uint8), 16 if mode == "nvfp4" else 32
    exponents = np.ascontiguousarray(read(f"{base}.scales", *row)).reshape(1, -1)[:, c // size].view(np.uint8)
    if mode == "mxfp8":
        return _e4m3(words[:, c]) * powers(exponents)
    levels = E2M1[np.where(c % 2, words[:, c // 2] >> 4, words[:, c // 2] & 15)]
    if mode == "mxfp4":
        return levels * powers(exponents)
    scale, whole = _e4m3(exponents), f"{base}.global_scale"
    if whole in read:
        scale = scale * (floats(read, whole, *row[:-1]).reshape(()) / np.float32(448 * 6))
    return levels * scale


def _mlx_place(read: Named, name: str, row: int) -> tuple[str, tuple[int, ...]]:
    """Return the layer that has a row of a matrix, by its name in the file, and the index of the row there.

    Raises KeyError where the file has no such layer.
    """
    base = name.removesuffix(".weight")
    if name in read:
        height = read.shape(name)[-2]
        return base, ((row // height, row % height) if len(read.shape(name)) == 3 else (row,))
    match = _OF_EXPERT.fullmatch(name)
    if match is not None:
        before, expert, part = match[1], int(match[2]), _STACKED.get(match[3], match[3])
        owners = [before, before.replace(".block_sparse_moe", ".mlp")]
        parts = [f"{stack}.{each}" for stack in ("switch_mlp", "experts") for each in (part, _SQUARED.get(part, part))]
        found = [f"{owner}.{each}" for owner in owners for each in parts if f"{owner}.{each}.weight" in read]
        return found[0], (expert, row)
    joint = next((each for each in _JOINT if base.endswith(each)), None)
    if joint is not None:
        stack, height = base.removesuffix(joint) + _JOINT[joint], 0
        if f"{stack}gate_proj.weight" in read:
            height = read.shape(f"{stack}gate_proj.weight")[1]
            expert, within = divmod(row, 2 * height)
            return f"{stack}{('gate_proj', 'up_proj')[within // height]}", (expert, within % height)
    other = next((base.removesuffix(down) + stack for down, stack in _DOWN.items() if base.endswith(down)), "")
    if f"{other}.weight" in read:
        return other, divmod(row, read.shape(f"{other}.weight")[1])
    third = _OF_THREE.fullmatch(base)
    if third is not None and f"{third[1]}qkv_proj.weight" in read:  # Kimi K3
        layer = f"{third[1]}qkv_proj"
        return layer, ("qkv".index(third[2]) * (read.shape(f"{layer}.weight")[0] // 3) + row,)
    for ours, theirs in _OTHERWISE:
        if ours in name and name.replace(ours, theirs) in read:
            return _mlx_place(read, name.replace(ours, theirs), row)
    raise KeyError(name)


def _e4m3(codes: Array) -> Array:
    import ml_dtypes

    return np.ascontiguousarray(codes).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
