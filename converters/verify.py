"""The proof: what was read is what was written.

Two bound graphs are compared, the source's and the one of the re-read output. Nothing the converter decided is
trusted: the output side knows only what its file says. Levels: `fast` = accounting, hparams, every tensor's values,
tokenizer; `full` = that and the logits of both sides on fixed prompts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ggferry.converters import values
from ggferry.converters.forward.evaluate import forward, result_of
from ggferry.converters.forward.weights import Weights
from ggferry.converters.graph import ModelGraph, Node
from ggferry.converters.layout import SAME
from ggferry.converters.parallel import each, workers
from ggferry.converters.plan import IDENTICAL, PERMUTED, REPACKED, RESCALED, ROUNDED
from ggferry.converters.stages import Progress, Stage, silent
from ggferry.formats.errors import VerificationError
from ggferry.quant.bands import BANDS, beyond_band
from ggferry.quant.bounds import narrowing_bound, rescaling_bound
from ggferry.quant.codec import codec
from ggferry.quant.differences import Bound, Differences, differences
from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy("numpy")

PROMPT_LENGTH = 16
EXACT_LOGITS = 2e-6
"""Relative RMS below which two float32 passes over equal values in another order are the same."""
AMPLIFICATION = 40.0
"""Logits may differ by at most this many times the worst tensor's relative error. Measured on the legacy oracle:
weights 2.1e-4 → logits 9e-4, 5.2e-3 → 2.2e-2 (a factor of 4–5); a wrong layout gives 0.1–1.4."""


_BLOCK = re.compile(r"blk\.\d+")
"""Ends the part of a name that tells blocks apart: blk.0, enc.blk.0."""
_NAMED = 5
"""Outliers that have a line of their own."""


@dataclass(frozen=True, slots=True)
class TensorProof:
    """What became of one tensor: grade, and over all its values max |Δ| and RMS(Δ)/RMS(source)."""

    name: str
    source_type: str
    type: str
    grade: str
    max_error: float = 0.0
    relative_rms: float = 0.0

    @property
    def band(self) -> tuple[float, float] | None:
        """What rounding to its type costs ordinary weights (`quant.bands`); None where nothing was rounded to it."""
        return BANDS.get(self.type) if self.grade == ROUNDED else None

    @property
    def outlier(self) -> bool:
        """Whether it lost more than that."""
        return self.band is not None and beyond_band(self.type, self.relative_rms)


@dataclass(frozen=True, slots=True)
class LogitsProof:
    """The two forward passes compared over all positions of the prompts. `what` the rows are; of states, which are no
    logits, neither order nor softmax is compared."""

    tokens: tuple[int, ...]
    max_error: float
    relative_rms: float
    limit: float
    top1_agreement: float | None
    kl_divergence: float | None
    what: str = "logits"


@dataclass(frozen=True, slots=True)
class DeltaProof:
    """An adapter's pairs applied to fixed vectors, on both sides: the largest relative RMS difference, and whose."""

    pairs: int
    vectors: int
    relative_rms: float
    worst: str
    limit: float


@dataclass(frozen=True, slots=True)
class Proof:
    """The verifier's findings. `tokenizer`: texts compared and equal, or why there was nothing to compare."""

    level: str
    tensors: tuple[TensorProof, ...]
    hparams: Mapping[str, Any]
    logits: LogitsProof | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    deltas: DeltaProof | None = None

    @property
    def worst(self) -> TensorProof | None:
        """The tensor with the largest relative error."""
        return max(self.tensors, key=lambda proof: proof.relative_rms, default=None)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each tensor that lost more than its type's rounding explains, the worst first."""
        outliers = sorted((t for t in self.tensors if t.outlier), key=lambda t: -t.relative_rms / BANDS[t.type][1])
        lines = [
            f"{t.name} lost more than {t.type} costs ordinary weights: relative RMS {t.relative_rms:.3g}, "
            f"band {BANDS[t.type][0]:.3g} to {BANDS[t.type][1]:.3g}"
            for t in outliers[:_NAMED]
        ]
        if outliers[_NAMED:]:
            lines.append(f"and so did {len(outliers) - _NAMED} more tensors, marked as outliers in the receipt")
        return tuple(lines)


def verify(
    source: ModelGraph,
    output: ModelGraph,
    *,
    level: str = "full",
    tokenizer: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    stage: Stage = silent,
) -> Proof:
    """Compare the two sides. Raises VerificationError naming the first thing that differs beyond its bound."""
    hparams = check_hparams(source, output)
    check_accounting(source, output)
    with stage("verifying", output.checkpoint.nbytes) as progress:
        tensors = tuple(check_tensor(source, output, node, jobs, progress) for node in output.nodes)
    computable = bool(output.nodes and output.architecture.recipe)
    logits = check_logits(source, output, tensors, jobs, stage) if level == "full" and computable else None
    return Proof(level, tensors, hparams, logits, tokenizer or {})


def check_hparams(source: ModelGraph, output: ModelGraph) -> dict[str, Any]:
    """Every hparam must have one value on both sides. Raises VerificationError."""
    if source.architecture.name != output.architecture.name:
        raise VerificationError(
            "architecture",
            path=output.checkpoint.path,
            found=output.architecture.name,
            expected=source.architecture.name,
        )
    for name, param in source.hparams.items():
        other = output.hparams.get(name)
        if other is None and source.architecture.hparam(name).key is None:
            continue  # only the source has it: what follows from it is in the other hparams and in the tensors
        if other is None or not _same(param.value, other.value):
            key = next((p.key for p in source.architecture.hparams if p.name == name and p.key), name)
            unstated = "default" in param.origin
            hint = f"the source does not state it ({param.origin}): --hparam {key}=…" if unstated else None
            raise VerificationError(
                f"{key} differs", path=output.checkpoint.path, found=other.value if other else None,
                expected=param.value, hint=hint,
            )  # fmt: skip
    return {name: param.value for name, param in output.hparams.items()}


def _same(a: Any, b: Any) -> bool:
    return bool(np.float32(a) == np.float32(b)) if isinstance(a, float) or isinstance(b, float) else bool(a == b)


def check_accounting(source: ModelGraph, output: ModelGraph) -> None:
    """The same tensors, with the same shapes, on both sides. Raises VerificationError."""
    odd = sorted(set(source.by_name) ^ set(output.by_name))
    if odd:
        side = "source" if odd[0] in source.by_name else "output"
        raise VerificationError(f"tensor {odd[0]!r} is only in the {side}", path=output.checkpoint.path)
    for node in output.nodes:
        if node.shape != source.by_name[node.name].shape:
            raise VerificationError(
                f"shape of {node.name!r}", path=output.checkpoint.path, found=node.shape,
                expected=source.by_name[node.name].shape,
            )  # fmt: skip


class _Sums:
    """Errors of one tensor, gathered by several threads and added in the order of its rows, so that the receipt's
    last digits do not depend on which thread was first."""

    def __init__(self) -> None:
        self.parts: dict[int, Differences] = {}

    @property
    def largest(self) -> float:
        return max((part.largest for part in self.parts.values()), default=0.0)

    @property
    def equal(self) -> bool:
        return self.largest == 0.0

    @property
    def relative_rms(self) -> float:
        parts = self.parts.values()
        error, power = math.fsum(part.error for part in parts), math.fsum(part.power for part in parts)
        return math.sqrt(error / power) if power else math.sqrt(error)


def check_tensor(
    source: ModelGraph, output: ModelGraph, node: Node, jobs: int | None = None, progress: Progress | None = None
) -> TensorProof:
    """One tensor's values on both sides, through the source's layout. Raises VerificationError."""
    origin = source.by_name[node.name]
    before, after = origin.inputs[0].type, node.inputs[0].type
    origin = values.view_for_streaming(origin, after)
    mirror = values.view_for_streaming(node, before) if origin.shape != node.shape else node
    bitwise = before == after and origin.layout.block_safe
    pair = codec(before.name).repack
    rescaled = pair is not None and pair.target == after.name
    sums = _Sums()

    runs = (values.run_of_bytes(origin), values.run_of_bytes(mirror)) if bitwise else (None, None)

    def compare_run(part: tuple[int, int]) -> None:
        for start, stop in values.cuts(*part, values.COPY):
            compare_bytes(start, stop)

    def compare_bytes(start: int, stop: int) -> None:
        sides = []
        for number, (graph, run) in enumerate(zip((source, output), runs, strict=True)):
            assert run is not None
            buffer = values.scratch(stop - start, number)
            graph.checkpoint.files[run[0]].read_into(run[1] + start, buffer)
            sides.append(np.frombuffer(buffer, np.uint8))
        if not _equal_bytes(*sides):
            at = start + int(np.flatnonzero(sides[0] != sides[1])[0])
            row = at // after.row_bytes(node.shape[-1])
            raise _difference(output, node, row, "bytes differ from the source's")
        if progress:
            progress(stop - start)

    def bound_of(start: int, stop: int) -> Bound:
        if not rescaled:
            return lambda expected, _: narrowing_bound(after.name, expected)
        scales = values.laid_out(
            source.checkpoint, origin, start, stop, lambda r, c: rescaling_bound(before.name, r, c)
        ).reshape(-1)  # fmt: skip
        return lambda _, here: scales[here]

    def compare(chunk: tuple[int, int]) -> None:
        start, stop = chunk
        if bitwise:
            expected = values.laid_out(source.checkpoint, origin, start, stop)
            found = values.laid_out(output.checkpoint, mirror, start, stop)
            if not np.array_equal(expected, found):
                row = start + int(np.flatnonzero((expected != found).any(axis=1))[0])
                raise _difference(output, node, row, "bytes differ from the source's")
        else:
            expected = values.laid_out_values(source.checkpoint, origin, start, stop)
            found = values.laid_out_values(output.checkpoint, mirror, start, stop)
            apart = differences(expected, found, bound_of(start, stop))
            if apart.outside is not None:
                row, column = divmod(apart.outside, expected.shape[1])
                raise _difference(
                    output, node, start + row, "lies further from the source than its type rounds",
                    f"{found[row, column]!r}", f"{expected[row, column]!r}",
                )  # fmt: skip
            sums.parts[start] = apart
        if progress:
            progress(expected.nbytes if bitwise else (stop - start) * after.row_bytes(mirror.shape[-1]))

    if runs[0] and runs[1]:
        each(values.cuts(0, runs[0][2], values.RUN), compare_run, workers(jobs))
    else:
        each(values.row_chunks(origin, after, values.CHUNK // 4), compare, workers(jobs))
    if bitwise and not origin.inputs[0].derived:
        grade = IDENTICAL if origin.layout == SAME else PERMUTED
    elif sums.equal:
        grade = REPACKED
    else:
        grade = RESCALED if rescaled else ROUNDED
    return TensorProof(node.name, before.name, after.name, grade, sums.largest, 0.0 if bitwise else sums.relative_rms)


def _equal_bytes(a: Any, b: Any) -> bool:
    whole = len(a) // 8 * 8
    return bool((a[:whole].view(np.uint64) == b[:whole].view(np.uint64)).all() and (a[whole:] == b[whole:]).all())


def _difference(
    output: ModelGraph, node: Node, row: int, message: str, found: object = None, expected: object = None
) -> VerificationError:
    span = node.inputs[0].spans[0]
    return VerificationError(
        f"tensor {node.name!r}, row {row}: {message}", path=output.checkpoint.path, offset=span.offset,
        found=found, expected=expected,
    )  # fmt: skip


def prompt(n_vocab: int, length: int = PROMPT_LENGTH) -> list[int]:
    """Token ids spread over the whole vocabulary, the same for every model of that size."""
    return [(1 + i * 0x9E3779B1) % n_vocab for i in range(length)]


def check_logits(
    source: ModelGraph,
    output: ModelGraph,
    tensors: tuple[TensorProof, ...] = (),
    jobs: int | None = None,
    stage: Stage = silent,
) -> LogitsProof:
    """Both forward passes on the fixed prompt. Raises VerificationError when they differ by more than the tensors'
    own rounding explains."""
    tokens = prompt(source.sizes["n_vocab"], min(PROMPT_LENGTH, source.sizes.get("n_ctx") or PROMPT_LENGTH))
    result = result_of(output)
    with stage("computing logits", source.checkpoint.nbytes + output.checkpoint.nbytes) as progress:
        sides = [
            forward(graph, tokens, _by_block(graph, progress), Weights(graph, jobs)) for graph in (source, output)
        ]
    proof = compare_logits(*sides)
    worst = max((tensor.relative_rms for tensor in tensors), default=0.0)
    limit = EXACT_LOGITS + AMPLIFICATION * worst
    proof = replace(proof, tokens=tuple(tokens), limit=limit, what=result.what)
    if not result.ranked:
        proof = replace(proof, top1_agreement=None, kl_divergence=None)
    if not proof.relative_rms <= limit:
        raise VerificationError(
            "the forward pass of the output differs from the source's", path=output.checkpoint.path,
            found=f"relative RMS {proof.relative_rms:.3g}", expected=f"at most {limit:.3g}",
        )  # fmt: skip
    return proof


def _by_block(graph: ModelGraph, progress: Progress) -> Progress:
    """What a pass tells its blocks to: each is its share of the file."""
    blocks = {name[: found.end()] for name in graph.by_name if (found := _BLOCK.search(name))}
    share = graph.checkpoint.nbytes // max(1, len(blocks))
    return lambda done: progress(done * share)


def compare_logits(expected: Any, found: Any) -> LogitsProof:
    """Figures of two logits arrays `(tokens, n_vocab)`: max |Δ|, relative RMS, top-1 agreement, mean KL in nats."""
    a, b = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    delta = b - a
    scale = math.sqrt(float(np.square(a).mean())) or 1.0

    def log_softmax(x: Any) -> Any:
        x = x - x.max(axis=-1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    p, q = log_softmax(a), log_softmax(b)
    return LogitsProof(
        tokens=(),
        max_error=float(np.abs(delta).max()),
        relative_rms=math.sqrt(float(np.square(delta).mean())) / scale,
        limit=math.inf,
        top1_agreement=float((a.argmax(-1) == b.argmax(-1)).mean()),
        kl_divergence=float((np.exp(p) * (p - q)).sum(-1).mean()),
    )
