"""Plan what will happen to every tensor, before any tensor data is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ggferry.converters.conversion_plan.carried_blocks import own_scales
from ggferry.converters.conversion_plan.choose_types import Decision, TypeOptions, choose_types
from ggferry.converters.conversion_plan.grades import Grade, Route, promised
from ggferry.converters.metadata.general_keys import Entry
from ggferry.converters.metadata.receipt_fields import TensorRecord
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.prequantized.own_scales import INPUT_SCALE, SCALE
from ggferry.converters.schema.architecture import Role
from ggferry.converters.schema.layouts.base import SAME
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import UnsupportedTypeError
from ggferry.formats.gguf import shards
from ggferry.formats.gguf.values import Value, string
from ggferry.formats.gguf.write import FileLayout, GGUFLayout, lay_out
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Options(TypeOptions):
    """What the user asked for: the types, and how the file is laid out.

    Attributes:
        alignment: Bytes to whose multiples the tensors are aligned.
        big_endian: Whether to write the most significant byte first.
        vocab_only: Whether to write no tensors.
        split_max_tensors: Most tensors in a shard; 0 for no limit.
        split_max_size: Most bytes of tensors in a shard; 0 for no limit.
        tensor_first_split: Whether the first shard holds tensors.
        keep_split: Whether to keep the shards of the source.
        allow_nonfinite: Whether to copy NaN and infinities.
    """

    alignment: int = 32
    big_endian: bool = False
    vocab_only: bool = False
    split_max_tensors: int = 0
    split_max_size: int = 0
    tensor_first_split: bool = True
    keep_split: bool = False
    allow_nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One output tensor: where its bytes come from, by which route they are made, and how exact they will be.

    Attributes:
        node: The tensor, its sources and its layout.
        type: Its type in the output.
        route: What is done with its bytes.
        grade: The promise. A `repacked` tensor whose scales turn out not to be float16 is `rescaled` in the receipt.
        offset: First byte in its output file, from the beginning of that file.
        why: The reason, where the type is not the one asked for.
        shard: Number of its output file, from 0.
        ragged: Whether that reason is rows that are no whole blocks of the type asked for.
    """

    node: Node
    type: BlockType
    route: Route
    grade: Grade
    offset: int = 0
    why: str = ""
    shard: int = 0
    ragged: bool = False

    def at(self, shard: int, offset: int) -> Step:
        """Return the step with its place in the output."""
        return Step(self.node, self.type, self.route, self.grade, offset, self.why, shard, self.ragged)

    @property
    def name(self) -> str:
        """Name of the tensor in the output."""
        return self.node.name

    @property
    def source_type(self) -> BlockType:
        """Type of its first input."""
        return self.node.inputs[0].type

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the output."""
        return self.type.nbytes(self.node.shape)

    @property
    def elements(self) -> int:
        """Elements of all its inputs."""
        return sum(ref.elements for ref in self.node.inputs)


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversion as decided.

    Attributes:
        graph: The model.
        options: What the user asked for.
        metadata: The output's keys, each with its origin.
        steps: What happens to each tensor, in file order.
        layouts: The layout of each output file.
        imatrix: The importance matrix, if any.
        notes: What the user should know.
        objections: Why llama.cpp would not load the output, beside what its keys and tensors say.
        calibration: Token ids, in chunks of one length, by which values are rounded with feedback.
        set_digest: What the shards hold as the digest of all tensors: zeros until these are written, empty for shards
            that hold none, as those of earlier versions. One file that holds everything never has it.
    """

    graph: ModelGraph
    options: Options
    metadata: Mapping[str, Entry]
    steps: Sequence[Step]
    layouts: tuple[FileLayout, ...]
    imatrix: Imatrix | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
    objections: tuple[str, ...] = ()
    calibration: tuple[tuple[int, ...], ...] = ()
    set_digest: str = shards.UNKNOWN_DIGEST

    @property
    def bytes_read(self) -> int:
        """Bytes of all the tensors that are read."""
        return sum(ref.nbytes for step in self.steps for ref in step.node.inputs)

    @property
    def bytes_written(self) -> int:
        """Bytes of all output files."""
        return sum(layout.size for layout in self.layouts)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--json`: a record for each tensor, the metadata with origins, notes, totals in bytes."""
        return {
            "source": self.graph.checkpoint.path,
            "architecture": self.graph.architecture.name,
            "tensors": [step_record(step) for step in self.steps],
            "notes": list(dict.fromkeys((*self.graph.checkpoint.notes, *self.graph.notes, *self.notes))),
            "dropped": [
                {"name": drop.ref.name, "reason": drop.reason, "loses": drop.loses} for drop in self.graph.dropped
            ],
            "metadata": {k: {"type": e.value.type.name.lower(), "origin": e.origin} for k, e in self.metadata.items()},
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
        }


def step_record(step: Step) -> TensorRecord:
    """Return a step as plain data."""
    record: TensorRecord = {
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
    if derived := step.node.inputs[0].derived:
        if derived.merged:
            record["merged_from"] = derived.merged
        else:
            record["repacked_from" if step.source_type.quantized else "dequantized_from"] = derived.scheme
    if step.node.layout.formula:
        record["computed_as"] = step.node.layout.formula
    if step.why:
        record["why"] = step.why
    return record


def plan_steps(graph: ModelGraph, options: Options, imatrix: Imatrix | None = None) -> list[Step]:
    """Return type, route and promised grade of every tensor, in file order; `place` sets the offsets."""
    types = choose_types(graph, options, None if imatrix is None else imatrix.entries.keys())
    steps = []
    for node in graph.nodes:
        steps.append(_step(graph, node, types[node.name]))
        if types[node.name].blocks is not None:
            steps += _scale_steps(graph, node)
    return steps


def _scale_steps(graph: ModelGraph, node: Node) -> list[Step]:
    """Return the steps of the scales that stand beside a matrix, of the names under which llama.cpp reads them."""
    own = own_scales(graph, node)
    if not own:
        return []
    span, derived = node.inputs[0].spans[0], node.inputs[0].derived
    file = graph.checkpoint.files[span.file]
    assert isinstance(file, Dequantized) and derived is not None
    stem, grade = node.name.removesuffix(".weight"), Grade.REPACKED if all(one.exact for one in own) else Grade.ROUNDED
    numbers = {SCALE: np.concatenate([one.scales for one in own])}
    inputs = [one.inputs for one in own if one.inputs is not None]
    if len(inputs) == len(own):
        numbers[INPUT_SCALE] = np.concatenate(inputs)
    steps = []
    for end, values in numbers.items():
        ref = file.numbers(f"{node.inputs[0].name} ({end[1:]})", values, span.file, derived)
        role = Role(f"{stem}{end}", (str(len(values)),), {}, always_f32=True)
        made = Node(f"{stem}{end}", role, values.shape, (ref,), SAME)
        steps.append(Step(made, block_type("F32"), Route.COPY, grade))
    return steps


def type_in_file(node: Node) -> BlockType:
    """Return the type that a tensor of an output has there: that of its blocks, where a scale stands beside them."""
    ref = node.inputs[0]
    return block_type(ref.derived.exact[0]) if ref.derived is not None and ref.derived.exact else ref.type


def steps_of_types(graph: ModelGraph, types: Mapping[str, BlockType]) -> list[Step]:
    """Return the steps that lead to tensors of the given types, by name."""
    return [_step(graph, node, Decision(types[node.name])) for node in graph.nodes]


def place(
    steps: Sequence[Step], metadata: Mapping[str, Entry], options: Options, set_digest: str = shards.UNKNOWN_DIGEST
) -> tuple[list[Step], tuple[GGUFLayout, ...]]:
    """Lay out the output file or shards: return the steps with their offsets, and the layout of each file."""
    files = cut(steps, options)
    layouts = tuple(
        lay_out(
            shard_metadata(metadata, number, len(files), len(steps), set_digest),
            [(step.name, step.type, step.node.shape) for step in shard],
            alignment=options.alignment,
            big_endian=options.big_endian,
        )
        for number, shard in enumerate(files)
    )
    placed = [
        step.at(number, layout.tensors[step.name].offset)
        for number, (shard, layout) in enumerate(zip(files, layouts, strict=True))
        for step in shard
    ]
    return placed, layouts


def cut(steps: Sequence[Step], options: Options) -> list[list[Step]]:
    """Return the steps of each shard, in order."""
    if options.keep_split:
        files = sorted({step.node.inputs[0].spans[0].file for step in steps})
        return [[step for step in steps if step.node.inputs[0].spans[0].file == file] for file in files]
    return shards.cut(
        steps, lambda step: step.nbytes, options.split_max_tensors, options.split_max_size, options.tensor_first_split
    )


def with_set_digest(plan: Plan, digest: str) -> Plan:
    """Return a plan whose shards hold this digest of all tensors; nothing changes its place."""
    _, layouts = place(plan.steps, plan.metadata, plan.options, digest)
    return replace(plan, layouts=layouts, set_digest=digest)


def shard_metadata(
    metadata: Mapping[str, Entry], number: int, count: int, tensors: int, set_digest: str
) -> dict[str, Value]:
    """Return the keys of one shard: all in the first; in every one `split.*` and, unless empty, the set's digest."""
    keys = {key: entry.value for key, entry in metadata.items()} if number == 0 else {}
    if count == 1:
        return keys
    own = {shards.SET_DIGEST: string(set_digest)} if set_digest else {}
    return {**keys, **shards.split_keys(number, count, tensors), **own}


def type_table(steps: Sequence[Step]) -> dict[str, tuple[str, int]]:
    """Return (type name, elements) of the matrices by tensor name, as `quant.recipes.file_types` expects it."""
    return {step.name: (step.type.name, step.elements) for step in steps if len(step.node.shape) > 1}


def count_types(refs: Sequence[TensorRef]) -> str:
    """Return what a file holds in words: 'Q4_0 ×16, F32 ×5'."""
    return ", ".join(f"{name} ×{n}" for name, n in Counter(ref.type.name for ref in refs).most_common())


def _step(graph: ModelGraph, node: Node, decided: Decision) -> Step:
    first = node.inputs[0]
    if not node.layout.formula and any(ref.type != first.type for ref in node.inputs):
        names = ", ".join(sorted({ref.type.name for ref in node.inputs}))
        raise UnsupportedTypeError(f"{node.name}: parts of different types", path=graph.checkpoint.path, found=names)
    if decided.blocks is not None:
        node, first = replace(node, inputs=decided.blocks), decided.blocks[0]
    merged = any(ref.derived is not None and ref.derived.merged for ref in node.inputs)
    route, grade = promised(first.type, decided.type, node.layout, derived=first.derived is not None, merged=merged)
    return Step(node, decided.type, route, grade, why=decided.why, ragged=decided.ragged)
