"""Put Megatron-core's tensors together: parts of tensor, pipeline and expert ranks, or layers and experts in one.

Source: megatron-core 0.16.1 `tensor_parallel/layers.py`, `transformer/{mlp,transformer_block,transformer_layer}.py`,
`transformer/moe/experts.py` (`sharded_state_dict`); Megatron-LM `tools/checkpoint/loader_base.py`.

The tensors get the names of one process that has the whole model: `decoder.layers.N.…`, norms as TransformerEngine
calls them, experts `mlp.experts.E.…`, and of gated layers `linear_fc1.weight_w` (gate) and `weight_v` (up).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from ggferry.converters.trainer_names.boxes import entry, joined, rows
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.limits import MAX_TENSORS
from ggferry.support.records import dataclass

_BLOCK = re.compile(r"(?:encoder|decoder)\.layers\.(?:(\d{1,4})\.)?(.+)", re.ASCII)
_EXPERT = re.compile(
    r"mlp\.experts\.(?:local_experts\.(?P<local>\d{1,4})\.|experts\.(?:(?P<whole>\d{1,4})\.)?)?"
    r"(?P<part>linear_fc[12])\.(?P<kind>weight)(?P<grouped>\d{1,4})?(?P<half>_[wv])?",
    re.ASCII,
)
_RANK = re.compile(r"(?:mp_rank|tp_rank)_(\d+)(?:_(?:pp_rank_)?(\d+))?(?:_(\d+))?", re.ASCII)
_LOCAL_NORMS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
_ROWS = ("linear_qkv.weight", "linear_qkv.bias", "linear_fc1.weight", "linear_fc1.bias", "word_embeddings.weight")
_CUT = {**dict.fromkeys((*_ROWS, "output_layer.weight"), 0), "linear_proj.weight": 1, "linear_fc2.weight": 1}
"""End of a name → the axis along which tensor ranks cut it; all others have every other tensor whole."""
_COPY = "the same in every process that has it"
_AXES = "expert tensors over other ranks than all tensors"


@dataclass(frozen=True, slots=True)
class Whole:
    """The tensors of the whole model.

    Attributes:
        tensors: Name → tensor.
        copies: What processes have that others have too.
    """

    tensors: dict[str, TensorRef] = field(default_factory=dict)
    copies: list[Dropped] = field(default_factory=list)


def put_together(checkpoint: Checkpoint, gated: bool, tied: bool) -> Whole:
    """Return the tensors of a checkpoint in the names of one process.

    Args:
        checkpoint: The checkpoint, of one part, of several, or of `dist_checkpointing`.
        gated: Whether `linear_fc1` has a gate and an up projection.
        tied: Whether the output matrix is the embeddings, of which the last stage has a copy.

    Raises UnexpectedTensorError, MissingError, InconsistentError for parts that do not fit, ShapeError.
    """
    parts = checkpoint.header.get("parts", ())
    if len(parts) < 2:
        return _of_one(checkpoint, gated)
    return _of_parts(checkpoint, list(parts), gated, tied)


def inner_name(name: str) -> str:
    """Return a name without what wrappers put before it: `module.` of Megatron's and NeMo 2's, `model.` of NeMo 1's."""
    while name.startswith(("module.", "model.")):
        name = name.partition(".")[2]
    return name


def _of_one(checkpoint: Checkpoint, gated: bool) -> Whole:
    whole, path = Whole(), checkpoint.path
    for name, ref in checkpoint.tensors.items():
        short = inner_name(name)
        match = _BLOCK.fullmatch(short)
        if match is None:
            _add(whole, short, ref, path)
            continue
        numbers = [int(match[1])] if match[1] else list(_indices(ref, path))
        for number in numbers:
            one = ref if match[1] else entry(ref, short, number, path)
            for inner, each in _in_block(one, match[2], gated, 0, 0, path):
                _add(whole, f"decoder.layers.{number}.{inner}", each, path)
    return whole


def _in_block(
    ref: TensorRef, inner: str, gated: bool, rank: int, local: int, path: str
) -> Iterator[tuple[str, TensorRef]]:
    """Yield a tensor of a block by its name in a whole model: experts apart, gate and up projection apart."""
    for before, after in _LOCAL_NORMS.items():
        if inner.startswith(before):
            inner = after + inner.removeprefix(before)
    match = _EXPERT.fullmatch(inner)
    if match is None:
        yield from _gate_and_up(ref, inner, gated, path)
        return
    own = match["local"] or match["grouped"]
    number = int(match["whole"]) if match["whole"] else rank * local + int(own) if own else None
    name = f"{match['part']}.{match['kind']}{match['half'] or ''}"
    for expert in [number] if number is not None else _indices(ref, path):
        one = ref if number is not None else entry(ref, inner, expert, path)
        yield from _gate_and_up(one, f"mlp.experts.{expert}.{name}", gated, path)


def _indices(ref: TensorRef, path: str) -> range:
    """Return the indices of a tensor's first axis, whose entries are layers or experts. Raises OutOfRangeError."""
    count = ref.shape[0] if ref.shape else 0
    if not 0 < count <= MAX_TENSORS:
        raise OutOfRangeError(f"first axis of {ref.name}", path=path, found=count, expected=f"1 to {MAX_TENSORS}")
    return range(count)


def _gate_and_up(ref: TensorRef, inner: str, gated: bool, path: str) -> Iterator[tuple[str, TensorRef]]:
    if not gated or not inner.endswith(("linear_fc1.weight", "linear_fc1.bias")):
        yield inner, ref
        return
    half, rest = divmod(ref.shape[0] if ref.shape else 1, 2)
    if rest:
        raise InconsistentError(f"rows of {ref.name}", path=path, found=list(ref.shape), expected="two halves")
    yield f"{inner}_w", rows(ref, f"{inner}_w", [(0, half)], path)
    yield f"{inner}_v", rows(ref, f"{inner}_v", [(half, 2 * half)], path)


def _add(whole: Whole, name: str, ref: TensorRef, path: str) -> None:
    if name in whole.tensors:
        raise DuplicateError("duplicate tensor name", path=path, found=name)
    whole.tensors[name] = replace(ref, name=name)


# --- parts -------------------------------------------------------------------------------------


def _of_parts(checkpoint: Checkpoint, parts: Sequence[str], gated: bool, tied: bool) -> Whole:
    """Return the tensors of parts, each of a tensor, a pipeline and an expert rank."""
    ranks = _ranks(checkpoint, parts)
    path, found = checkpoint.path, _by_part(checkpoint, parts)
    layers, before = {}, 0
    for stage in sorted({pipe for _, pipe, _ in ranks.values()}):
        part = next(part for part in parts if ranks[part][1] == stage)
        layers[stage] = before
        before += len({match[1] for name in found[part] if (match := _BLOCK.fullmatch(name)) is not None})
    grouped: dict[str, dict[tuple[int, int], TensorRef]] = {}
    for part in parts:
        tensor, pipe, expert = ranks[part]
        local = len(_local_experts(found[part]))
        for name, ref in found[part].items():
            match = _BLOCK.fullmatch(name)
            if match is None:
                wholes: Iterator[tuple[str, TensorRef]] = iter([(name, ref)])
            elif match[1] is None:
                raise UnexpectedTensorError("tensor of no layer", path=path, found=name)
            else:
                block = f"decoder.layers.{int(match[1]) + layers[pipe]}"
                own = _in_block(ref, match[2], gated, expert, local, path)
                wholes = ((f"{block}.{inner}", each) for inner, each in own)
            for whole, each in wholes:
                where = grouped.setdefault(whole, {})
                if (tensor, expert) in where:
                    raise DuplicateError("a tensor in two stages", path=path, found=f"{part}/{name}")
                where[tensor, expert] = each
    tensors = 1 + max(tensor for tensor, _, _ in ranks.values())
    made = Whole()
    for name, where in grouped.items():
        _join(made, name, where, tensors, path)
    if tied and (last := made.tensors.pop("output_layer.weight", None)) is not None:
        made.copies.append(Dropped(last, _COPY, same_as=made.tensors.get("embedding.word_embeddings.weight")))
    return made


def _by_part(checkpoint: Checkpoint, parts: Sequence[str]) -> dict[str, dict[str, TensorRef]]:
    found: dict[str, dict[str, TensorRef]] = {part: {} for part in parts}
    for name, ref in checkpoint.tensors.items():
        part, _, rest = name.partition("/")
        found[part][inner_name(rest)] = ref
    return found


def _local_experts(names: Mapping[str, TensorRef]) -> set[str]:
    blocks = (match for name in names if (match := _BLOCK.fullmatch(name)) is not None)
    experts = (match for block in blocks if (match := _EXPERT.fullmatch(block[2])) is not None)
    return {number for match in experts if (number := match["local"] or match["grouped"]) is not None}


def _ranks(checkpoint: Checkpoint, parts: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Return part → tensor, pipeline and expert rank, of which there must be one each.

    Of two numbers, the second is of the pipeline, or of the experts where the arguments say that there is no pipeline.
    """
    args = checkpoint.header.get("args", {})
    if args.get("expert_tensor_parallel_size") not in (None, args.get("tensor_model_parallel_size")):
        found = args["expert_tensor_parallel_size"]
        hint = "Megatron-LM saves it as torch_dist (--ckpt-convert-format torch_dist)"
        raise UnsupportedError(_AXES, path=checkpoint.path, found=found, hint=hint)
    experts = args.get("pipeline_model_parallel_size") == 1
    ranks = {}
    for part in parts:
        match = _RANK.fullmatch(part)
        if match is None:
            raise InconsistentError("name of a part", path=checkpoint.path, found=part, expected="mp_rank_…")
        first, second, third = (int(number or 0) for number in match.groups())
        ranks[part] = (first, 0, second) if experts and not match[3] else (first, second, third)
    sizes = [1 + max(axis) for axis in zip(*ranks.values(), strict=True)]
    if len(set(ranks.values())) < len(ranks) or sizes[0] * sizes[1] * sizes[2] != len(ranks):
        expected = f"{sizes[0]} × {sizes[1]} × {sizes[2]} (tensor, pipeline, expert ranks)"
        raise MissingError("a part of the model", path=checkpoint.path, found=f"{len(parts)} parts", expected=expected)
    for key, size in zip(("tensor", "pipeline", "expert"), sizes, strict=True):
        declared = args.get(f"{key}_model_parallel_size")
        if declared not in (None, size):
            raise MissingError(f"parts of {key} ranks", path=checkpoint.path, found=size, expected=declared)
    return ranks


def _join(made: Whole, name: str, where: Mapping[tuple[int, int], TensorRef], tensors: int, path: str) -> None:
    """Add the tensor that parts of tensor ranks make, or the first of those that all have."""
    keys = sorted(where, key=lambda key: (key[1], key[0]))
    first = keys[0][1]
    own = [where[key] for key in keys if key[1] == first]
    made.copies.extend(Dropped(where[key], _COPY, same_as=where[key[0], first]) for key in keys if key[1] != first)
    end = re.sub(r"_[wv]$", "", ".".join(name.split(".")[-2:]))
    if end in _CUT:
        if len(own) != tensors:
            raise MissingError(f"parts of {name}", path=path, found=len(own), expected=tensors)
        whole = joined(own, name, _CUT[end], path)
    else:
        whole = own[0]
        made.copies.extend(Dropped(ref, _COPY, same_as=whole) for ref in own[1:])
    _add(made, name, whole, path)
