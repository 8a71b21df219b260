"""What will happen to every tensor, decided before one byte of tensor data is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ggferry.converters.graph import ModelGraph, Node
from ggferry.converters.layout import SAME
from ggferry.converters.metadata import Entry
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import RefusedError, UnsupportedTypeError, UsageError
from ggferry.formats.gguf_values import Value, i32, u16
from ggferry.formats.gguf_write import GGUFLayout, lay_out
from ggferry.quant.codec import block_type, codec
from ggferry.quant.types import BlockError, BlockType

COPY, GATHER, REPACK, TRANSCODE = "copy", "gather", "repack", "transcode"
IDENTICAL, PERMUTED, REPACKED, RESCALED, ROUNDED = "identical", "permuted", "repacked", "rescaled", "rounded"
PLAIN_OUTTYPES = ("f32", "f16", "bf16", "q8_0")
EXPANSIONS = ("f16", "f32", "q8_0")
_EXACT_IN = {"F16": {"F32", "F64"}, "BF16": {"F32", "F64"}, "F32": {"F64"}}
"""Plain types whose every value another plain type holds."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. `outtype`: 'keep' or one of PLAIN_OUTTYPES; `expand`: the type for blocks that GGUF
    has no counterpart of."""

    outtype: str = "keep"
    expand: str = "f16"
    allow_requantize: bool = False
    alignment: int = 32
    big_endian: bool = False
    vocab_only: bool = False
    split_max_tensors: int = 0
    split_max_size: int = 0
    tensor_first_split: bool = True

    def check(self) -> None:
        """Raises UsageError for a type that cannot be written."""
        if self.outtype not in ("keep", *PLAIN_OUTTYPES):
            raise UsageError("--outtype", found=self.outtype, expected=", ".join(("keep", *PLAIN_OUTTYPES)))
        if self.expand not in EXPANSIONS:
            raise UsageError("--expand", found=self.expand, expected=", ".join(EXPANSIONS))


@dataclass(frozen=True, slots=True)
class Step:
    """One output tensor: where its bytes come from, by which route, and how exact it will be.

    `offset`: absolute, in output file number `shard`; `grade`: the promise (a `repacked` tensor whose scales turn out not to be
    float16 becomes `rescaled` in the receipt); `why`: the reason where the type was not the one asked for.
    """

    node: Node
    type: BlockType
    route: str
    grade: str
    offset: int = 0
    why: str = ""
    shard: int = 0

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def source_type(self) -> BlockType:
        return self.node.inputs[0].type

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(self.node.shape)

    @property
    def elements(self) -> int:
        return sum(ref.elements for ref in self.node.inputs)


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion, decided: steps, metadata with the origin of every key, the layout of each output file."""

    graph: ModelGraph
    options: Options
    metadata: Mapping[str, Entry]
    steps: Sequence[Step]
    layouts: tuple[GGUFLayout, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def bytes_read(self) -> int:
        return sum(ref.nbytes for step in self.steps for ref in step.node.inputs)

    @property
    def bytes_written(self) -> int:
        return sum(layout.size for layout in self.layouts)

    def as_dict(self) -> dict[str, Any]:
        """The plan for `--json`: one record a tensor, the metadata with origins, totals in bytes."""
        return {
            "source": self.graph.checkpoint.path,
            "architecture": self.graph.architecture.name,
            "tensors": [step_record(step) for step in self.steps],
            "dropped": [{"name": drop.ref.name, "reason": drop.reason} for drop in self.graph.dropped],
            "metadata": {key: {"type": e.value.type.name.lower(), "origin": e.origin} for key, e in self.metadata.items()},
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
        }


def step_record(step: Step) -> dict[str, Any]:
    """A step as plain data."""
    record: dict[str, Any] = {
        "name": step.name,
        "from": [ref.name for ref in step.node.inputs],
        "shape": list(step.node.shape),
        "source_type": step.source_type.name,
        "type": step.type.name,
        "route": step.route,
        "grade": step.grade,
        "file": step.shard,
        "offset": step.offset,
        "bytes": step.nbytes,
    }
    if step.why:
        record["why"] = step.why
    return record


def plan_steps(graph: ModelGraph, options: Options) -> list[Step]:
    """Type, route and promised grade of every tensor, in file order; offsets are set by `place`."""
    options.check()
    return [_step(graph, node, options) for node in graph.nodes]


def place(
    steps: Sequence[Step], metadata: Mapping[str, Entry], options: Options
) -> tuple[list[Step], tuple[GGUFLayout, ...]]:
    """The output file or shards laid out: header bytes, and the steps with their offsets."""
    shards = cut(steps, options)
    layouts = tuple(
        lay_out(
            shard_metadata(metadata, number, len(shards), len(steps)),
            [(step.name, step.type, step.node.shape) for step in shard],
            alignment=options.alignment,
            big_endian=options.big_endian,
        )
        for number, shard in enumerate(shards)
    )
    placed = [
        replace(step, offset=layout.offsets[step.name], shard=number)
        for number, (shard, layout) in enumerate(zip(shards, layouts, strict=True))
        for step in shard
    ]
    return placed, layouts


def cut(steps: Sequence[Step], options: Options) -> list[list[Step]]:
    """The steps of each shard, in order: a shard is full when the next tensor would exceed either limit."""
    shards: list[list[Step]] = [[]] if options.tensor_first_split else [[], []]
    size = 0
    for step in steps:
        full = (options.split_max_tensors and len(shards[-1]) >= options.split_max_tensors) or (
            options.split_max_size and size + step.nbytes > options.split_max_size
        )
        if full and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(step)
        size += step.nbytes
    return shards if options.split_max_tensors or options.split_max_size else [list(steps)]


def shard_metadata(metadata: Mapping[str, Entry], number: int, count: int, tensors: int) -> dict[str, Value]:
    """The keys of one shard: all in the first, `split.*` in every one (llama.cpp's gguf-split; u16, u16, i32)."""
    keys = {key: entry.value for key, entry in metadata.items()} if number == 0 else {}
    if count == 1:
        return keys
    split = {"split.no": u16(number), "split.count": u16(count), "split.tensors.count": i32(tensors)}
    return {**keys, **split}


def type_table(steps: Sequence[Step]) -> dict[str, tuple[str, int]]:
    """Tensor name → (type name, elements) of the matrices, as `quant.file_types` wants it."""
    return {step.name: (step.type.name, step.elements) for step in steps if len(step.node.shape) > 1}


def count_types(refs: Sequence[TensorRef]) -> str:
    """'Q4_0 ×16, F32 ×5': what a file holds, in words."""
    return ", ".join(f"{name} ×{n}" for name, n in Counter(ref.type.name for ref in refs).most_common())


def _step(graph: ModelGraph, node: Node, options: Options) -> Step:
    source = node.inputs[0].type
    if any(ref.type != source for ref in node.inputs):
        names = ", ".join(sorted({ref.type.name for ref in node.inputs}))
        raise UnsupportedTypeError(f"parts of {node.name} have different types", path=graph.checkpoint.path, found=names)
    target, why = _target(graph, node, source, options)
    if not node.layout.block_safe:
        return Step(node, target, TRANSCODE, ROUNDED, why=why)
    if target == source:
        same = node.layout == SAME
        return Step(node, target, COPY if same else GATHER, IDENTICAL if same else PERMUTED, why=why)
    repack = codec(source.name).repack
    if repack is not None and repack.target == target.name:
        return Step(node, target, REPACK, REPACKED, why=why)
    exact = target.name in _EXACT_IN.get(source.name, ()) or (source.quantised and target.name == "F32")
    return Step(node, target, TRANSCODE, REPACKED if exact else ROUNDED, why=why)


def _target(graph: ModelGraph, node: Node, source: BlockType, options: Options) -> tuple[BlockType, str]:
    if node.role.always_f32 or len(node.shape) == 1:
        return block_type("F32"), "" if source.name == "F32" else "norms and vectors are F32 in GGUF"
    if options.outtype == "keep":
        return _kept(source, options)
    target = block_type(options.outtype)
    if target.quantised and source.quantised and not _same_values(source, target) and not options.allow_requantize:
        raise RefusedError(
            f"{node.name} is {source} already: making {target} of it rounds a second time",
            path=graph.checkpoint.path, hint="--allow-requantize, or --outtype keep",
        )  # fmt: skip
    try:
        target.row_bytes(node.shape[-1])
    except BlockError as error:
        return block_type("F16"), f"F16: {error}"
    return target, ""


def _kept(source: BlockType, options: Options) -> tuple[BlockType, str]:
    if source.ggml_id is not None:
        return source, ""
    repack = codec(source.name).repack
    if repack is not None:
        return block_type(repack.target), f"today's form of {source}"
    return block_type(options.expand), f"GGUF has no counterpart of {source}; --expand {options.expand}"


def _same_values(source: BlockType, target: BlockType) -> bool:
    repack = codec(source.name).repack
    return source == target or (repack is not None and repack.target == target.name)
