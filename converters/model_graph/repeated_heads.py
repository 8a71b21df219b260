"""Recognize keys and values that were repeated for every head, and take one copy of them.

ggml's StarCoder script wrote multi-query models as GPT-2 files: c_attn holds the queries, then the one key n_head
times, then the one value n_head times (ggml, examples/starcoder/convert-hf-to-ggml.py). No field states this, but the
rows show it, also when quantized, because each row is quantized by itself.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.schema.architecture import Dialect
from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.errors import InconsistentError

SAMPLE = 2
"""Rows of each head that are compared to recognize such a model; all rows are compared before copies are dropped."""


def is_tiled(checkpoint: Checkpoint, dialect: Dialect) -> bool:
    """Return whether the first fused matrix repeats its keys and values for every head. Reads a few of its rows."""
    heads = int(checkpoint.header.get("n_head", 0))
    refs = [ref for ref in _fused(checkpoint, dialect).values() if len(ref.shape) == 2]
    if heads < 2 or not refs or not _divides(refs[0], heads):
        return False
    ref = refs[0]
    rows = ref.shape[0] // 3 // heads
    for part in (1, 2):
        samples = {
            checkpoint.files[0].read(_offset(ref, (part * heads + head) * rows), min(SAMPLE, rows) * ref.row_bytes)
            for head in range(heads)
        }
        if len(samples) > 1:
            return False
    return True


def untiled(checkpoint: Checkpoint, dialect: Dialect) -> Checkpoint:
    """Return the checkpoint with one copy of keys and values.

    The other copies are dropped on condition that they are equal, which the conversion checks byte for byte. Raises
    InconsistentError for tensors that cannot be divided so.
    """
    heads = int(checkpoint.header.get("n_head", 0))
    tensors, dropped = dict(checkpoint.tensors), list(checkpoint.dropped)
    for name, ref in _fused(checkpoint, dialect).items():
        if not heads or not _divides(ref, heads):
            raise InconsistentError(
                f"tensor {name!r} does not hold queries, keys and values of {heads} heads",
                path=checkpoint.path,
                found=ref.shape,
                hint="--arch gpt2",
            )
        width = ref.shape[0] // 3
        one = width // heads
        kept = [(0, width), (width, width + one), (2 * width, 2 * width + one)]
        spans = tuple(_part(ref, start, stop).spans[0] for start, stop in kept)
        rows = width + 2 * one
        tensors[name] = replace(ref, shape=(rows, *ref.shape[1:]), spans=spans, axis=0 if len(ref.shape) > 1 else -1)
        if heads > 1:
            # Each head's rows repeat those of the head before.
            pairs = [(start + one, start + width, start) for start in (width, 2 * width)]
            dropped += [
                Dropped(_part(ref, start, stop), _REASON.format(heads), same_as=_part(ref, first, stop - one))
                for start, stop, first in pairs
            ]
    note = f"multi-query attention: the keys and values that every file of this kind repeats for its {heads} heads"
    note += " are copied once; --arch gpt2 keeps the copies"
    return replace(checkpoint, tensors=tensors, dropped=tuple(dropped), notes=(*checkpoint.notes, note))


_REASON = "a copy: keys and values are the same for all {0} heads"


def _fused(checkpoint: Checkpoint, dialect: Dialect) -> Mapping[str, TensorRef]:
    return {
        name: ref
        for name, ref in checkpoint.tensors.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in dialect.repeated_kv) and len(ref.spans) == 1
    }


def _divides(ref: TensorRef, heads: int) -> bool:
    whole = len(ref.shape) == 2 or (len(ref.shape) == 1 and ref.type.elements == 1)
    return whole and ref.shape[0] % (3 * heads) == 0


def _offset(ref: TensorRef, row: int) -> int:
    """Return the file offset of row `row`; in a vector, of element `row`."""
    inner = ref.row_bytes if len(ref.shape) > 1 else ref.type.row_bytes(1)
    return ref.spans[0].offset + row * inner


def _part(ref: TensorRef, start: int, stop: int) -> TensorRef:
    shape = (stop - start, *ref.shape[1:])
    span = Span(ref.spans[0].file, _offset(ref, start), shape)
    return replace(ref, name=f"{ref.name}[{start}:{stop}]", shape=shape, spans=(span,))
