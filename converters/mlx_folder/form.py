"""What a folder for MLX has besides that of transformers: packed matrices, and what config.json states of them.

A packed matrix `X.weight` is three tensors: codes in words of 32 bits, `X.scales` and `X.biases`, one of each for a
group of neighbors. Scales and biases are float32, which hold those of every block that is taken apart, so that MLX
computes the values that the blocks have; it computes in the type of the scales (`mlx/backend/cpu/quantized.cpp`), and a
float16 would round each product. Source of the settings: mlx-lm `utils.py` (`load_model`, `quantize_model`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ggferry.converters.hf_export.plan import Form
from ggferry.converters.hf_export.shards import Packing, Part
from ggferry.converters.hf_export.source_tensors import SourceTensor
from ggferry.converters.hf_export.tensors_back import BackPlan
from ggferry.converters.mlx_folder.block_rows import BlockRows, block_rows, only_moved
from ggferry.converters.mlx_folder.config_keys import older_keys
from ggferry.converters.mlx_folder.model_types import MODEL_TYPES, VERSION
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.quant.affine_groups import AffineGroups, affine_groups
from ggferry.quant.codec import block_type

KEEP = "keep"
WORD = 4
"""Bytes of a word."""


def form_of(outtype: str, requantize: bool) -> Form:
    """Return the form of a folder.

    Args:
        outtype: 'keep', or the type that plain matrices are encoded to.
        requantize: Whether quantized ones that MLX has no groups for are, too.
    """
    return Form("mlx", "mlx", partial(_packings, outtype.lower(), requantize), _settings, _notes)


def _packings(outtype: str, requantize: bool, graph: ModelGraph, tensors: Sequence[SourceTensor]) -> dict[str, Packing]:
    """Return the matrices that are written as codes, scales and biases."""
    target = None if outtype == KEEP else affine_groups(block_type(outtype))
    found = {}
    for tensor in tensors:
        if not _is_layer(tensor):
            continue
        blocks = block_rows(graph, tensor.rows)
        groups = affine_groups(blocks.kind) if blocks is not None else None
        if groups is not None and _fits(tensor, groups):
            found[tensor.name] = _packing(tensor, groups, blocks)
        elif target is not None and _may_be_encoded(tensor, requantize) and _fits(tensor, target):
            found[tensor.name] = _packing(tensor, target, None)
    return found


def _is_layer(tensor: SourceTensor) -> bool:
    """Return whether a tensor is the matrix of a layer or an embedding; experts are joined by mlx-lm as they are."""
    experts = any(len(node.shape) > 2 for node in tensor.nodes)
    return tensor.name.endswith(".weight") and len(tensor.shape) == 2 and tensor.shape[0] > 1 and not experts


def _may_be_encoded(tensor: SourceTensor, requantize: bool) -> bool:
    plain = not any(node.role.always_f32 or node.role.plain for node in tensor.nodes)
    quantized = any(ref.type.quantized or ref.derived for node in tensor.nodes for ref in node.inputs)
    return plain and only_moved(tensor.rows) and (requantize or not quantized)


def _fits(tensor: SourceTensor, groups: AffineGroups) -> bool:
    return tensor.shape[-1] % max(groups.kind.elements, groups.size) == 0


def _packing(tensor: SourceTensor, groups: AffineGroups, blocks: BlockRows | None) -> Packing:
    rows, across = tensor.shape
    base, count = tensor.name.removesuffix(".weight"), across // groups.size
    words = groups.words_bytes(across)
    parts = (
        Part(tensor.name, "U32", (rows, words // WORD), words),
        *(Part(f"{base}.{end}", "F32", (rows, count), 4 * count) for end in ("scales", "biases")),
    )
    form = f"{groups.bits} bits, groups of {groups.size}"
    return Packing(groups.kind, parts, groups.apart, blocks.read if blocks else None, form)


def _settings(config: JSONObject, packings: Mapping[str, Packing]) -> JSONObject:
    """Return what config.json states: the rotation as mlx-lm reads it, the groups of most matrices, and under the name
    of a layer what is otherwise there."""
    settings = {name: _setting(packing) for name, packing in packings.items()}
    if not settings:
        return older_keys(config)
    counts = Counter(map(_key, settings.values()))
    usual = dict(counts.most_common(1)[0][0])
    others = {name.removesuffix(".weight"): own for name, own in settings.items() if own != usual}
    whole = {**usual, **others}
    return {**older_keys(config), "quantization": whole, "quantization_config": whole}


def _setting(packing: Packing) -> dict[str, Any]:
    groups = affine_groups(packing.kind)
    assert groups is not None
    return {"group_size": groups.size, "bits": groups.bits}


def _key(setting: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(setting.items())


def _notes(back: BackPlan, packings: Mapping[str, Packing]) -> Iterator[str]:
    kept: Counter[str] = Counter()
    for tensor in back.tensors:
        if tensor.name in packings or not tensor.nodes or len(tensor.shape) < 2:
            continue
        for kind in {ref.type.name for node in tensor.nodes for ref in node.inputs if ref.type.quantized}:
            kept[kind] += 1
    for kind, count in sorted(kept.items()):
        yield f"{count} matrices of {kind} are written as values: MLX has no groups that hold them, or a stack of them"
    if back.known.model_type not in MODEL_TYPES:
        yield f"mlx-lm {VERSION} has no model of the type {back.known.model_type!r}: MLX reads the tensors alone"
