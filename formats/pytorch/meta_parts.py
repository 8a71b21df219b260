"""Join Meta's `consolidated.NN.pth`: one model cut into as many files as it ran on devices.

Which matrices are cut along the columns is data of the architecture (a `HeaderLayout` for the container
`pytorch-meta`), because it changed: LLaMA 1 and 2 cut the embedding along its columns, LLaMA 3 along its rows
(`ParallelEmbedding` and `VocabParallelEmbedding` in the respective model.py). The sizes in params.json show which.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats.checkpoint import Dropped, TensorRef
from ggferry.formats.errors import (
    InconsistentError,
    MissingError,
    NotFoundError,
    ShapeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.reader import HeaderLayout, Kind, kind_of

Parts = Sequence[Mapping[str, TensorRef]]


def join_parts(
    paths: Sequence[str], parts: Parts, layouts: Sequence[HeaderLayout], params: Mapping[str, Any]
) -> tuple[dict[str, TensorRef], tuple[Dropped, ...], str | None]:
    """Return the whole tensors, the copies that are not needed, and the name of the layout that fits.

    A layout fits when the joined `embedding` has `width` (a field of params.json) columns and at least `vocab_size`
    rows, as far as params.json states them. Three of its `options` are used: `repeated` holds shell patterns of
    matrices that every part has in full, `split_vectors` those of vectors that are cut, `square` those of matrices that
    have as many rows as columns once they are joined: where the embedding is cut along its rows and params.json states
    no `vocab_size`, only they show that a part is missing or is another model's.

    Args:
        paths: Paths of the parts, in order.
        parts: Their tensors by name.
        layouts: The layouts to try.
        params: The content of params.json.

    Raises:
        MissingError: A tensor of the first part is absent from another.
        UnexpectedTensorError: A part has a tensor that the first lacks.
        ShapeError: The parts of a tensor differ in type or shape.
        NotFoundError: The embedding is smaller than params.json says, or a square matrix has too few rows: parts are
            missing.
        InconsistentError: It is larger or has too many, or byte orders differ.
        UnsupportedError: There are several parts and no layout describes them.
    """
    _check_alike(paths, parts)
    known = [layout for layout in layouts if _describes(layout, parts[0])]
    fitting = [layout for layout in known if not _misfit(layout, parts, params)]
    if known and not fitting:
        _refuse(paths, known, parts, params)
    if len(parts) == 1:
        return dict(parts[0]), (), fitting[0].name if fitting else None
    if not fitting:
        found = f"{len(parts)} parts"
        hint = "only Meta's LLaMA family was ever published like this"
        raise UnsupportedError("how this model was cut into parts is not known", path=paths[0], found=found, hint=hint)
    layout, tensors, dropped = fitting[0], {}, []
    for name in parts[0]:
        refs = [part[name] for part in parts]
        axis = _axis(layout, refs[0])
        if axis is None:
            tensors[name] = refs[0]
            dropped += [Dropped(ref, "every part repeats it", same_as=refs[0]) for ref in refs[1:]]
        else:
            tensors[name] = _joined(refs, axis)
    return tensors, tuple(dropped), layout.name


def _check_alike(paths: Sequence[str], parts: Parts) -> None:
    first = parts[0]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        for name, ref in first.items():
            if name not in part:
                raise MissingError("tensor is in the first part only", path=path, expected=name)
            if part[name].type != ref.type or part[name].shape != ref.shape:
                found, expected = (
                    f"{part[name].type} {part[name].shape}",
                    f"{ref.type} {ref.shape} as in the first part",
                )
                raise ShapeError(f"this part of {name!r}", path=path, found=found, expected=expected)
            if part[name].big_endian != ref.big_endian:
                raise InconsistentError("byte order of the parts", path=path)
        extra = next((name for name in part if name not in first), None)
        if extra is not None:
            raise UnexpectedTensorError("tensor is missing from the first part", path=path, found=extra)


def _describes(layout: HeaderLayout, part: Mapping[str, TensorRef]) -> bool:
    if not any(kind_of(container) is Kind.META for container, _ in layout.containers):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in layout.names for name in part)


def _axis(layout: HeaderLayout, ref: TensorRef) -> int | None:
    """Return the axis along which the parts of a tensor are joined; None when each part holds the whole tensor."""
    if _matches(ref.name, layout.options.get("repeated", ())):
        return None
    if len(ref.shape) < 2:
        return -1 if ref.shape and _matches(ref.name, layout.options.get("split_vectors", ())) else None
    return -1 if _matches(ref.name, layout.column_split) else 0


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _joined(refs: Sequence[TensorRef], axis: int) -> TensorRef:
    first = refs[0]
    sizes = list(first.shape)
    sizes[axis] = sum(ref.shape[axis] for ref in refs)
    spans = tuple(ref.spans[0] for ref in refs)
    return TensorRef(first.name, first.type, tuple(sizes), spans, axis, first.big_endian)


def _misfit(layout: HeaderLayout, parts: Parts, params: Mapping[str, Any]) -> tuple[str, str, int, int] | None:
    """Return (tensor, what, found, expected) where a joined tensor contradicts params.json or itself."""
    whole = _whole(layout, layout.embedding, parts)
    if whole is None:
        return None
    rows, columns = whole
    width, height = params.get(layout.width), params.get("vocab_size")
    if isinstance(width, int) and columns != width:
        return layout.embedding, f"{layout.width} of params.json", columns, width
    if isinstance(height, int) and rows < height:
        return layout.embedding, "vocab_size of params.json", rows, height
    for name in parts[0]:
        if _matches(name, layout.options.get("square", ())) and (whole := _whole(layout, name, parts)):
            rows, columns = whole
            if rows != columns:
                return name, "its columns", rows, columns
    return None


def _whole(layout: HeaderLayout, name: str, parts: Parts) -> tuple[int, int] | None:
    """Return the rows and columns of a joined matrix; None where there is none of this name."""
    refs = [part[name] for part in parts if name in part]
    if len(refs) < len(parts) or len(refs[0].shape) != 2:
        return None
    axis = _axis(layout, refs[0]) if len(parts) > 1 else None
    rows, columns = refs[0].shape if axis is None else _joined(refs, axis).shape
    return rows, columns


def _refuse(paths: Sequence[str], known: Sequence[HeaderLayout], parts: Parts, params: Mapping[str, Any]) -> None:
    misfits = [misfit for layout in known if (misfit := _misfit(layout, parts, params))]
    small = next((misfit for misfit in misfits if misfit[2] < misfit[3]), None)
    name, what, found, expected = small or misfits[0]
    message = f"{name} of {len(parts)} part(s) against {what}"
    if small is None:
        raise InconsistentError(message, path=paths[0], found=found, expected=expected)
    more = f"; {expected // found * len(parts)} parts would fit" if found and expected % found == 0 else ""
    raise NotFoundError(
        f"parts of the model are missing{more}: {message}",
        path=paths[-1],
        found=found,
        expected=expected,
        hint="fetch all consolidated.NN.pth of the model, and the params.json that came with them",
    )
