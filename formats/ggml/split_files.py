"""Read GGML and GGMF models in several files: `.bin`, `.bin.1`, `.bin.2` … (docs/formats/ggml-era.md "Parts")."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import InconsistentError, NotFoundError, ShapeError
from ggferry.formats.reader import HeaderLayout


def join_parts(base: str, first: Checkpoint, layout: HeaderLayout, read: Callable[[str], Checkpoint]) -> Checkpoint:
    """Return the whole model of which `first` is the first part.

    Args:
        base: Path of the first file.
        first: What was read from it.
        layout: The layout under which it was read.
        read: Reads the part file at a path.

    Raises:
        NotFoundError: A part is missing.
        InconsistentError: The parts do not belong together.
        ShapeError: The parts of a tensor do not fit together.
    """
    count = _part_count(first, layout)
    if count == 1:
        return first
    parts = [first]
    try:
        for number in range(1, count):
            path = f"{base}.{number}"
            if not os.path.exists(path):
                raise NotFoundError(f"part {number} of {count} is missing", path=path)
            parts.append(read(path))
            _check_part(first, parts[-1])
        tensors = {name: _join(name, [part.tensors[name] for part in parts], layout) for name in first.tensors}
    except BaseException:
        for part in parts[1:]:
            part.close()
        raise
    dropped = tuple(
        Dropped(_in_file(part.tensors[name], number), f"part {number} repeats the vector of part 0", same_as=ref)
        for number, part in enumerate(parts)
        if number
        for name, ref in first.tensors.items()
        if len(ref.shape) == 1
    )
    files = tuple(part.files[0] for part in parts)
    return replace(first, files=files, tensors=tensors, dropped=dropped, notes=(*first.notes, f"{count} parts"))


def _part_count(first: Checkpoint, layout: HeaderLayout) -> int:
    """Return the number of parts: the width in the header divided by the columns of the embedding in part 0.

    The table by n_embd that the runtime of March 2023 used is wrong for models in a single file
    (docs/formats/ggml-era.md "Parts").
    """
    ref = first.tensors.get(layout.embedding)
    if ref is None or first.container == "ggjt":
        return 1
    width = int(first.header[layout.width])
    count, rest = divmod(width, ref.columns)
    if rest or not 1 <= count <= limits.MAX_PARTS:
        raise ShapeError(
            f"{ref.name}: columns that do not divide the model's {layout.width}",
            path=first.path,
            offset=ref.spans[0].offset,
            found=ref.columns,
            expected=f"{width} or a part of it",
        )
    return count


def _check_part(first: Checkpoint, part: Checkpoint) -> None:
    if dict(part.header) != dict(first.header):
        name = next(key for key in first.header if first.header[key] != part.header[key])
        raise InconsistentError(
            f"parts of different models: header field {name}",
            path=part.path,
            found=part.header[name],
            expected=first.header[name],
        )
    if part.vocab != first.vocab:
        raise InconsistentError("parts of different models: the vocabularies differ", path=part.path)
    odd = sorted(set(first.tensors) ^ set(part.tensors))
    if odd:
        raise InconsistentError("tensor is missing from some parts", path=part.path, found=odd[0])


def _join(name: str, pieces: Sequence[TensorRef], layout: HeaderLayout) -> TensorRef:
    first = pieces[0]
    if len(first.shape) == 1:
        return first
    axis = -1 if any(fnmatch.fnmatchcase(name, pattern) for pattern in layout.column_split) else 0
    kept = 0 if axis else 1
    for piece in pieces[1:]:
        if piece.type != first.type or len(piece.shape) != 2 or piece.shape[kept] != first.shape[kept]:
            raise InconsistentError(
                f"parts of {name!r} do not fit together",
                found=f"{piece.type} {piece.shape}",
                expected=f"{first.type} {first.shape}",
            )
    total = sum(piece.shape[axis] for piece in pieces)
    shape = (first.shape[0], total) if axis else (total, first.shape[1])
    spans = tuple(replace(piece.spans[0], file=number) for number, piece in enumerate(pieces))
    return TensorRef(name, first.type, shape, spans, axis)


def _in_file(ref: TensorRef, number: int) -> TensorRef:
    return replace(ref, spans=tuple(replace(span, file=number) for span in ref.spans))
