"""Prove that the output holds what was read from the source.

Two bound graphs are compared: the source's, and that of the output as it was read again. Nothing the converter decided
is trusted: the output side knows only what its file states. The level `fast` compares the accounting, the hparams,
every tensor's values and the tokenizer; `full` also compares the logits of both sides on fixed prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from ggferry.converters.metadata.receipt_fields import TokenizerRecord
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known
from ggferry.converters.proof.logits import LogitsProof, check_all_logits
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.proof.second_reader.check import SecondReading
from ggferry.converters.proof.tensors import Sides, TensorProof, check_tensor
from ggferry.formats.errors import VerificationError
from ggferry.quant.accuracy import differences, similarity
from ggferry.quant.accuracy.known_values import decodes_as_known
from ggferry.quant.codec import codec
from ggferry.quant.types import BlockType
from ggferry.support.allocator import TRIMMED_FROM, trim_heap
from ggferry.support.heavy import np
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass

_NAMED = 5
"""How many outliers have a line of their own."""


@dataclass(frozen=True, slots=True)
class DeltaProof:
    """An adapter's pairs applied to fixed vectors on both sides.

    Attributes:
        pairs: Number of pairs.
        vectors: Number of vectors.
        relative_rms: The largest relative RMS difference.
        worst: Name of the weight with that difference.
        limit: The largest difference allowed for it.
    """

    pairs: int
    vectors: int
    relative_rms: float
    worst: str
    limit: float


@dataclass(frozen=True, slots=True)
class Proof:
    """The verifier's findings.

    Attributes:
        level: 'none', 'fast' or 'full'.
        tensors: What was found for each tensor.
        hparams: The output's hparams by short name.
        logits: The comparison of forward passes; None where there was none.
        tokenizer: Numbers of texts compared and equal, or why there was nothing to compare.
        deltas: The comparison of an adapter's products; None for a model.
        testimonies: Comparisons with independent programs.
        second_reader: What the libraries that the source is made with read of it.
    """

    level: str
    tensors: tuple[TensorProof, ...]
    hparams: Mapping[str, Any]
    logits: LogitsProof | None = None
    tokenizer: TokenizerRecord = field(default_factory=TokenizerRecord)
    deltas: DeltaProof | None = None
    testimonies: tuple[CrossCheck, ...] = ()
    second_reader: SecondReading = SecondReading()

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as plain data, for JSON."""
        return {**asdict(self), "logits": self.logits.as_dict() if self.logits else None}

    @property
    def worst(self) -> TensorProof | None:
        """The tensor with the largest relative error."""
        return max(self.tensors, key=lambda proof: proof.relative_rms, default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each tensor that lost more than its type's rounding explains, the worst first.

        A line about tensors with other bytes than our encoders', which are llama-quantize's, and lines about witnesses
        that was not compared follow.
        """
        banded = [(t, t.band) for t in self.tensors if t.band is not None and t.outlier]
        outliers = sorted(banded, key=lambda pair: -pair[0].relative_rms / pair[1][1])
        lines = [
            f"{t.name} lost more than {t.type} costs ordinary weights: relative RMS {t.relative_rms:.3g}, "
            f"band {least:.3g} to {most:.3g}"
            for t, (least, most) in outliers[:_NAMED]
        ]
        if outliers[_NAMED:]:
            lines.append(f"and so did {len(outliers) - _NAMED} more tensors, marked as outliers in the receipt")
        lines += self.second_reader.notes
        if others := [t.name for t in self.tensors if t.other_bytes]:
            more = f" and {len(others) - _NAMED} more" if others[_NAMED:] else ""
            lines.append(
                f"not the bytes that llama-quantize writes of the source: {', '.join(others[:_NAMED])}{more} (rounded "
                "by another program or build, with another importance matrix, or changed since)"
            )
        lines += [note for check in self.testimonies if (note := check.note)]
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class Case:
    """An output to compare with its source.

    Attributes:
        sides: The source's graph, that of the output as it was read again, and how rounded tensors were made.
        level: 'fast', or 'full' to compare logits, too.
        tokenizer: What `check_tokenizer` found.
    """

    sides: Sides
    level: str
    tokenizer: TokenizerRecord = field(default_factory=TokenizerRecord)


def compare_outputs(cases: Sequence[Case], *, jobs: int | None = None, stage: Stage = silent) -> list[Proof]:
    """Compare outputs with their source, whose values are read and decoded once for all.

    Args:
        cases: The outputs.
        jobs: Number of threads; None for the default.
        stage: Opens a progress display for each phase.

    Raises VerificationError naming the first thing that differs beyond its bound.
    """
    hparams = []
    for case in cases:
        source, output = case.sides.source, case.sides.output
        hparams.append(check_hparams(source, output))
        check_accounting(source, output)
        check_decoders(source, output)
    prefetch_comparing(kinds for case in cases for kinds in _kinds(case))
    found: list[list[TensorProof]] = [[] for _ in cases]
    with stage(Phase.VERIFYING, sum(case.sides.output.checkpoint.nbytes for case in cases)) as progress:
        for node in cases[0].sides.output.nodes:
            for tensors, tensor in zip(
                found, check_tensor([c.sides for c in cases], node.name, jobs, progress), strict=True
            ):
                tensors.append(tensor)
    if sum(case.sides.output.checkpoint.nbytes for case in cases) >= TRIMMED_FROM:
        trim_heap()
    computable = [
        number
        for number, case in enumerate(cases)
        if case.level == "full" and case.sides.output.nodes and case.sides.output.architecture.recipe
    ]
    outputs = [(cases[number].sides.output, found[number]) for number in computable]
    source = cases[0].sides.source
    logits = dict(zip(computable, check_all_logits(source, outputs, jobs, stage) if outputs else (), strict=True))
    return [
        Proof(
            case.level, tuple(tensors), values, logits.get(number), case.tokenizer, testimonies=of_texts(case.tokenizer)
        )
        for number, (case, values, tensors) in enumerate(zip(cases, hparams, found, strict=True))
    ]


def prefetch_comparing(kinds: Iterable[tuple[BlockType, BlockType, int]]) -> None:
    """Announce what will be compared, so that what it takes is loaded meanwhile.

    `kinds`: a tensor's type in the source, its type in the output, and its elements.
    """
    for before, after, elements in kinds:
        if before != after:
            codec(before.name).prefetch(elements)
            codec(after.name).prefetch(elements)
            differences.prefetch(elements)
            if codec(after.name).searches:
                similarity.prefetch(after.name, elements)


def _kinds(case: Case) -> Iterator[tuple[BlockType, BlockType, int]]:
    for node in case.sides.output.nodes:
        yield case.sides.source.by_name[node.name].inputs[0].type, node.inputs[0].type, node.inputs[0].elements


def of_texts(tokenizer: Mapping[str, Any]) -> tuple[CrossCheck, ...]:
    """Return the comparison with the library that encoded the texts on the source's side, where there was one."""
    name, _, version = tokenizer.get("by", "").partition(" ")
    return (CrossCheck(name, version, "texts", "source", tokenizer["equal"]),) if name else ()


def check_hparams(source: ModelGraph, output: ModelGraph) -> dict[str, Any]:
    """Check that every hparam has one value on both sides; return the output's. Raises VerificationError."""
    if source.architecture.name != output.architecture.name:
        raise VerificationError(
            "architecture",
            path=output.checkpoint.path,
            found=output.architecture.name,
            expected=source.architecture.name,
        )
    for name, param in source.hparams.items():
        other = output.hparams.get(name)
        unsaid = other is None or other.known is Known.ASSUMED
        if unsaid and source.architecture.hparam(name).key is None:
            continue  # only the source states it; what follows from it is in the other hparams and the tensors
        if other is None or not same(param.value, other.value):
            key = next((p.key for p in source.architecture.hparams if p.name == name and p.key), name)
            assumed = param.known is Known.ASSUMED
            hint = f"the source does not state it ({param.origin}): --hparam {key}=…" if assumed else None
            raise VerificationError(
                f"{key} differs",
                path=output.checkpoint.path,
                found=other.value if other else None,
                expected=param.value,
                hint=hint,
            )
    return {name: param.value for name, param in output.hparams.items()}


def same(a: Any, b: Any) -> bool:
    """Return whether two values of an hparam are equal as GGUF stores them (floats as float32)."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.float32(a) == np.float32(b)) if isinstance(a, float) or isinstance(b, float) else bool(a == b)


def check_decoders(source: ModelGraph, output: ModelGraph) -> None:
    """Check that our decoders of both sides' types decode known blocks as other programs do.

    Raises VerificationError.
    """
    refs = [ref for side in (source, output) for node in side.nodes for ref in node.inputs]
    for name in sorted({ref.type.name for ref in refs}):
        if not decodes_as_known(name):
            raise VerificationError(f"our decoder of {name} is wrong: known blocks", path=output.checkpoint.path)


def check_accounting(source: ModelGraph, output: ModelGraph) -> None:
    """Check that both sides have the same tensors with the same shapes. Raises VerificationError."""
    odd = sorted(set(source.by_name) ^ set(output.by_name))
    if odd:
        side = "source" if odd[0] in source.by_name else "output"
        raise VerificationError(f"tensor {odd[0]!r} is only in the {side}", path=output.checkpoint.path)
    for node in output.nodes:
        if node.shape != source.by_name[node.name].shape:
            raise VerificationError(
                f"shape of {node.name!r}",
                path=output.checkpoint.path,
                found=node.shape,
                expected=source.by_name[node.name].shape,
            )
