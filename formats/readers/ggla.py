"""Read ggla: the LoRA adapters of llama.cpp from April 2023 until the arrival of GGUF adapters.

The file holds the magic, u32 version 1, i32 rank, i32 alpha, then GGJT's tensor records up to the last byte. Pairs are
named `<tensor>.weight.loraA` and `.loraB`; A was written transposed. Source: docs/formats/ggml-era.md,
convert-lora-to-ggml.py and `llama_apply_lora_from_file_internal` of that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    EncodingError,
    MissingError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TruncatedError,
    UnexpectedTensorError,
)
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader
from ggferry.quant.codec import block_type

CONTAINER = "ggla"
MAGIC = b"algg"
ALIGNMENT = 32
HEADER = Struct(
    "ggla header",
    """
    magic    bytes[4]                 'ggla' as a little-endian u32
    version  u32       1..1           no other was ever written
    r        i32       1..MAX_WIDTH   rank of every pair
    alpha    i32                      lora_alpha; the runtime's scale is alpha / r
    """,
)
RECORD = Struct(
    "tensor record",
    """
    dims     i32       2..2           matrices only
    length   i32       1..MAX_NAME    bytes of the name
    type     i32                      0 F32, 1 F16
    """,
)
TYPES = {0: "F32", 1: "F16"}
SIDES = (".loraA", ".loraB")
ERA = "April 2023 – May 2024 (convert-lora-to-ggml.py of llama.cpp)"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files that begin with the magic."""
    if not head.startswith(MAGIC):
        return None
    return Match(CONTAINER, int.from_bytes(head[4:8], "little") if len(head) >= 8 else None)


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the adapter at `path`.

    `loraA` has shape `(r, columns)`: a view of the file's data with swapped strides. `loraB` has shape `(rows, r)`, as
    stored.

    Raises:
        UnexpectedTensorError: A name is not that of half a pair.
        MissingError: The file has no tensors, or half a pair is missing.
        CorruptError: The file is broken (TruncatedError, OutOfRangeError, ShapeError, EncodingError, DuplicateError).
    """
    source = open_source(path)
    try:
        header = HEADER.read(Cursor(source))
        rank = int(header["r"])
        tensors: dict[str, TensorRef] = {}
        for ref, offset in _walk(source, rank):
            if ref.name in tensors:
                raise DuplicateError("duplicate tensor name", path=path, offset=offset, found=ref.name)
            if len(tensors) >= limits.MAX_GGML_TENSORS:
                raise OutOfRangeError("too many tensors", path=path, offset=offset, expected=limits.MAX_GGML_TENSORS)
            tensors[ref.name] = ref
        _check_pairs(source, tensors)
    except BaseException:
        source.close()
        raise
    kept: JSONObject = {"r": rank, "alpha": int(header["alpha"])}
    return Checkpoint(
        CONTAINER, int(header["version"]), (source,), tensors, kept, layout=CONTAINER, era=ERA, alignment=ALIGNMENT
    )


def _walk(source: Source, rank: int) -> Iterator[tuple[TensorRef, int]]:
    """Yield every tensor with the byte at which its record begins.

    Raises a CorruptError where the walk cannot go on.
    """
    offset = HEADER.size
    while offset < source.size:
        ref = _record(source, offset, rank)
        yield ref, offset
        offset = ref.spans[0].offset + ref.nbytes


def _record(source: Source, offset: int, rank: int) -> TensorRef:
    cursor = Cursor(source, offset, end=min(source.size, offset + RECORD.size + 8 + limits.MAX_NAME + ALIGNMENT))
    fields = RECORD.read(cursor)
    if fields["type"] not in TYPES:
        expected = ", ".join(f"{code} {name}" for code, name in TYPES.items())
        raise OutOfRangeError(
            "a tensor's type", path=source.path, offset=offset + 8, found=fields["type"], expected=expected
        )
    kind = block_type(TYPES[int(fields["type"])])
    inner, outer = (cursor.integer("i32", "a tensor's dimension", 1, 2**31 - 1) for _ in range(2))
    at = cursor.offset
    try:
        name = cursor.take(int(fields["length"]), "a tensor's name").decode("utf-8")
    except UnicodeDecodeError:
        raise EncodingError("a tensor's name is not UTF-8", path=source.path, offset=at) from None
    if not name.endswith(SIDES):
        expected = " or ".join(f"…{side}" for side in SIDES)
        raise UnexpectedTensorError(
            "tensor is not part of a pair", path=source.path, offset=at, found=name, expected=expected
        )
    if inner != rank:
        raise ShapeError(f"rank of {name!r}", path=source.path, offset=offset + 12, found=inner, expected=rank)
    padding = -cursor.offset % ALIGNMENT
    at = cursor.offset
    if any(cursor.take(padding, f"padding before tensor {name!r}")):
        raise OverlapError(f"padding before tensor {name!r} is not zero", path=source.path, offset=at)
    data, size = cursor.offset, kind.nbytes((outer, inner))
    if data + size > source.size:
        raise TruncatedError(
            f"the file ends inside tensor {name!r}",
            path=source.path,
            offset=data,
            found=f"{source.size - data} bytes",
            expected=f"{size} bytes",
        )
    if name.endswith(SIDES[0]):
        return TensorRef(name, kind, (inner, outer), (Span(0, data, (inner, outer), strides=(1, inner)),))
    return TensorRef(name, kind, (outer, inner), (Span(0, data, (outer, inner)),))


def _check_pairs(source: Source, tensors: dict[str, TensorRef]) -> None:
    # The records have no count: a file cut between two of them is only seen by the half that is left.
    if not tensors:
        raise MissingError("adapter has no tensors", path=source.path, offset=source.size)
    a, b = SIDES
    for name in tensors:
        other = name.removesuffix(a) + b if name.endswith(a) else name.removesuffix(b) + a
        if other not in tensors:
            raise MissingError(f"tensor {other!r} missing", path=source.path, offset=source.size)


SPEC = Reader(
    CONTAINER, probe, open_checkpoint, (Container(CONTAINER, "GGLA", Kind.ADAPTER, (MAGIC,), (1,)),), (".bin",)
)
