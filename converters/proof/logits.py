"""The proof by forward passes: names, order, layout and hparams of the output, seen by what its model computes.

The source is run in its own conventions, with no layout applied, the output by what its file says. Where values were
rounded the passes differ by what rounding costs; the *structure* is then proved by a third pass, of the output's model
over the source's values in the output's layout, which must agree with the source's as two float32 passes do. What the
file really holds of those values is proved tensor by tensor (`proof_tensors`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.evaluate import forward, result_of
from ggferry.converters.forward.lockstep import in_lockstep
from ggferry.converters.forward.model import LOGITS, Choices, Result
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.prompts import Prompt, prompts, reach
from ggferry.converters.proof.tensors import TensorProof
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import VerificationError
from ggferry.support.lazy_import import lazy
from ggferry.support.progress import Phase, Progress, Stage, silent

if TYPE_CHECKING:
    import numpy as np

    from ggferry.quant.codec import Floats
else:
    np = lazy("numpy")

EXACT_LOGITS = 2e-6
"""Relative RMS below which two float32 passes over equal values in another order are the same, for a few blocks."""
_FEW_BLOCKS = 3

_BLOCK = re.compile(r"blk\.\d+")
"""Ends the part of a name that tells blocks apart: blk.0, enc.blk.0."""


@dataclass(frozen=True, slots=True)
class LogitsProof:
    """The two forward passes compared over the prompts; the figures are those of the worst prompt. `what` the rows
    are; of states, which are no logits, neither order nor softmax is compared. `structure`: relative RMS between the
    source's pass and the output's model over the source's values, where the output's own values are rounded; it, or
    else `relative_rms`, is held to `limit`. `reached`, `not_reached`: what the prompts came to in the model."""

    max_error: float
    relative_rms: float
    limit: float
    top1_agreement: float | None
    kl_divergence: float | None
    what: Result = LOGITS
    structure: float | None = None
    prompts: tuple[Mapping[str, Any], ...] = ()
    reached: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The figures as receipts hold them; `what` in words."""
        return {**asdict(self), "what": str(self.what)}


class SourceValues(Weights):
    """The output's tensors with the values that the source has for them, laid out as the output has them."""

    def __init__(self, output: ModelGraph, source: ModelGraph, threads: int | None = None) -> None:
        super().__init__(output, threads)
        self._source = source
        self._nodes = {node.inputs[0].name: source.by_name[node.name] for node in output.nodes}

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        return rows.laid_out_values(self._source.checkpoint, self._nodes[ref.name], start, stop)


def check_logits(
    source: ModelGraph,
    output: ModelGraph,
    tensors: Sequence[TensorProof] = (),
    jobs: int | None = None,
    stage: Stage = silent,
) -> LogitsProof:
    """Run both sides on the fixed prompts. Raises VerificationError when they differ by more than two float32 passes
    over the same values do."""
    texts = prompts(source)
    first = [Choices() for _ in texts]
    sides: list[Weights] = [Weights(source, jobs), Weights(output, jobs)]
    if any(tensor.max_error for tensor in tensors):
        sides.append(SourceValues(output, source, jobs))
    read = sum(side.graph.checkpoint.nbytes for side in sides)
    result = result_of(output)
    with stage(Phase.COMPUTING, read) as progress:
        expected = run_prompts(sides[0], texts, _by_block(source, progress), first)
        found = [
            run_prompts(side, texts, _by_block(side.graph, progress), [Choices(earlier=c.chosen) for c in first])
            for side in sides[1:]
        ]
    proof = replace(_worst(expected, found[0]), limit=exact_limit(source), what=result)
    if not result.ranked:
        proof = replace(proof, top1_agreement=None, kl_divergence=None)
    if found[1:]:
        proof = replace(proof, structure=_worst(expected, found[1]).relative_rms)
    apart = proof.relative_rms if proof.structure is None else proof.structure
    if not (apart <= proof.limit and math.isfinite(proof.relative_rms)):
        raise VerificationError(
            "the forward pass of the output differs from the source's", path=output.checkpoint.path,
            found=f"relative RMS {apart:.3g}", expected=f"at most {proof.limit:.3g}",
        )  # fmt: skip
    come_to = reach(source, texts, [choices.chosen for choices in first])
    said = tuple(text.as_dict() for text in texts)
    return replace(proof, prompts=said, reached=come_to.reached, not_reached=come_to.missed)


def exact_limit(graph: ModelGraph) -> float:
    """Relative RMS to which two float32 passes over equal values agree in a model of that many blocks: with lively
    random weights 2.0e-6 at 8 blocks, 3.4e-6 at 22, 4.1e-6 at 48 (docs/decisions/verify-limit.md). Twice that where
    weights are products, which were rounded once more."""
    products = 2 if any(node.layout.widens for node in graph.nodes) else 1
    return EXACT_LOGITS * products * growth(graph)


def growth(graph: ModelGraph) -> float:
    """By how much rounding errors of a few blocks grow in all of a model's: they add up as a random walk does."""
    blocks = sum(graph.sizes.get(name) or 0 for name in ("n_layer", "n_layer_enc", "n_layer_dec"))
    return math.sqrt(max(1.0, blocks / _FEW_BLOCKS))


def run_prompts(
    weights: Weights,
    texts: Sequence[Prompt],
    progress: Progress | None = None,
    choices: Sequence[Choices] | None = None,
) -> list[Any]:
    """The wanted rows of every prompt, over one reading of the weights. `choices`: `forward`'s, of each."""
    found: list[Any] = [None] * len(texts)

    def run(number: int, shared: Weights) -> None:
        text = texts[number]
        told = progress if number == 0 else None
        chosen = choices[number] if choices else None
        found[number] = forward(weights.graph, text.tokens, told, shared, places=text.places, choices=chosen)

    if len(texts) == 1:
        run(0, weights)
    else:
        in_lockstep(weights, [partial(run, number) for number in range(len(texts))])
    return found


def _worst(expected: Sequence[Any], found: Sequence[Any]) -> LogitsProof:
    """The figures of the prompt whose rows differ most."""
    figures = [compare_logits(a, b) for a, b in zip(expected, found, strict=True)]
    return max(figures, key=lambda figure: figure.relative_rms if math.isfinite(figure.relative_rms) else math.inf)


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
        max_error=float(np.abs(delta).max()),
        relative_rms=math.sqrt(float(np.square(delta).mean())) / scale,
        limit=math.inf,
        top1_agreement=float((a.argmax(-1) == b.argmax(-1)).mean()),
        kl_divergence=float((np.exp(p) * (p - q)).sum(-1).mean()),
    )
