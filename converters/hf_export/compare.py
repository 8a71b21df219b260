"""Hold a written folder against its source, tensor by tensor, in the form that GGUF has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.grades import Grade
from ggferry.converters.metadata.receipt_fields import TokenizerRecord
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.model_graph.rows import laid_out_values, row_chunks
from ggferry.converters.proof.compare import Proof, check_accounting, check_decoders, check_hparams, of_texts
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.proof.tensors import Sides, TensorProof, check_tensor
from ggferry.converters.schema.layouts.base import SAME
from ggferry.formats.errors import VerificationError
from ggferry.quant.accuracy.bounds import narrowing_bound
from ggferry.quant.codec import block_type, codec
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.progress import Phase, Progress, Stage
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats


@dataclass(frozen=True, slots=True)
class Rounded:
    """What the values of a tensor were rounded to.

    Attributes:
        kind: The type.
        encoded: Whether that is one of blocks, which our encoder made.
    """

    kind: BlockType
    encoded: bool = False


def compare(
    folder: ModelGraph,
    source: ModelGraph,
    rounded: Mapping[str, Rounded],
    *,
    level: str,
    tokenizer: TokenizerRecord,
    jobs: int | None,
    stage: Stage,
) -> Proof:
    """Compare a folder, as it was read again, with its source.

    Args:
        folder: The folder's graph.
        source: The source's.
        rounded: The tensors that another type was asked for, and that type.
        level: 'fast', or 'full' to compare logits, too.
        tokenizer: What was found about the vocabulary.
        jobs: Number of threads; None for the default.
        stage: Opens a progress bar for each stage.

    Raises VerificationError naming the first thing that differs beyond what its type rounds.
    """
    hparams, values = check_hparams(folder, source), Rounded(block_type("F32"))
    check_accounting(folder, source)
    check_decoders(folder, source)
    with stage(Phase.VERIFYING, source.checkpoint.nbytes) as progress:
        tensors = tuple(
            _rounded(folder, source, node, rounded.get(node.name, values), progress)
            if node.name in rounded or not node.layout.block_safe  # computed there, as BioGPT's scaled embedding is
            else check_tensor([Sides(folder, source)], node.name, jobs, progress)[0]
            for node in source.nodes
        )
    computable = bool(source.nodes and source.architecture.recipe)
    logits = check_logits(folder, source, tensors, jobs, stage) if level == "full" and computable else None
    return Proof(level, tensors, hparams, logits, tokenizer, testimonies=of_texts(tokenizer))


def _rounded(folder: ModelGraph, source: ModelGraph, node: Node, to: Rounded, progress: Progress) -> TensorProof:
    """Compare a tensor whose values were rounded. Raises VerificationError beyond what that type rounds.

    Blocks are encoded again from the source: a folder's values must be those of the same blocks.
    """
    ours, largest, error, power = folder.by_name[node.name], 0.0, 0.0, 0.0
    sides = [(node, ours)] if to.encoded or ours.layout.lossless else _before_layout(node, ours)
    for original, written, start, stop in ((*side, *rows) for side in sides for rows in row_chunks(side[0], to.kind)):
        expected = laid_out_values(source.checkpoint, original, start, stop)
        found = laid_out_values(folder.checkpoint, written, start, stop)
        apart = np.abs(found.astype(np.float64) - expected)
        if to.encoded:
            differs = not np.array_equal(_as_encoded(to.kind, expected), found)
        else:
            allowed: Any = narrowing_bound(to.kind.name, np.abs(expected) + (0 if written.layout.lossless else 1))
            differs = not (apart <= allowed).all()
        if differs:
            raise VerificationError(
                f"tensor {node.name!r} lies further from its source than {to.kind} rounds",
                path=folder.checkpoint.path,
                found=f"{float(apart.max()):g}",
            )
        largest = max(largest, float(apart.max(initial=0.0)))
        error, power = error + float((apart**2).sum()), power + float((expected.astype(np.float64) ** 2).sum())
        progress(expected.nbytes)
    relative = (error / power) ** 0.5 if power else error**0.5
    _check_error(folder, node, to, relative)
    grade = Grade.ROUNDED if largest else Grade.REPACKED
    return TensorProof(node.name, node.inputs[0].type.name, to.kind.name, grade, largest, relative)


def _before_layout(node: Node, ours: Node) -> list[tuple[Node, Node]]:
    """Return the tensors that two nodes are made of, pair by pair, where they are made of them alike; else the nodes.

    A bound of rounded values says nothing of what is computed of them, as of the exponential of a decay.
    """
    shapes = [[ref.shape for ref in each.inputs] for each in (node, ours)]
    if node.layout != ours.layout or shapes[0] != shapes[1]:
        return [(node, ours)]
    sides = [
        [replace(each, shape=ref.shape, inputs=(ref,), layout=SAME) for ref in each.inputs] for each in (node, ours)
    ]
    return list(zip(*sides, strict=True))


def _as_encoded(kind: BlockType, values: Floats) -> Floats:
    """Return the values of the blocks that values are encoded to."""
    one = codec(kind.name)
    assert one.encode is not None
    return one.values(one.encode(np.ascontiguousarray(values), None), values.shape[1])


def _check_error(folder: ModelGraph, node: Node, to: Rounded, relative: float) -> None:
    """Raise VerificationError for a tensor further from its source than a row of that type may lie."""
    limit = codec(to.kind.name).accuracy.row_limit
    if to.encoded and relative > limit:
        raise VerificationError(
            f"tensor {node.name!r} lies further from its source than {to.kind} explains",
            path=folder.checkpoint.path,
            found=f"relative RMS {relative:.3g}",
            expected=f"at most {limit:g}",
        )
