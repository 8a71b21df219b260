"""A container of another distribution: magic, u32 length, a JSON table of the tensors in their order, their bytes.

The table: name → [type, shape]. What a safetensors folder has beside it stands beside such a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import TrailingBytesError, TruncatedError
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import open_source
from ggferry.formats.json_files.parse import parse_json
from ggferry.formats.limits import MAX_JSON
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader
from ggferry.quant.codec import block_type

MAGIC = b"TOYC"
CONTAINER = Container("toyc", "Toy", Kind.TRAINING, (MAGIC,))


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claims the magic."""
    return Match(CONTAINER.name) if head.startswith(MAGIC) else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """The checkpoint at `path`. Raises TruncatedError, TrailingBytesError."""
    source = open_source(path)
    try:
        cursor = Cursor(source, len(MAGIC))
        length = cursor.integer("u32", "length of the table", 2, MAX_JSON)
        table = parse_json(cursor.take(length, "the table"), path)
        tensors = {ref.name: ref for ref in _refs(table, cursor.offset)}
        end = max((ref.spans[0].offset + ref.nbytes for ref in tensors.values()), default=cursor.offset)
        if end != source.size:
            kind = TruncatedError if end > source.size else TrailingBytesError
            raise kind("bytes of the tensors", path=path, offset=end, found=source.size, expected=end)
    except BaseException:
        source.close()
        raise
    weights = Weights(CONTAINER.name, os.path.dirname(path), (path,))
    beside = sidecars(weights)
    config, notes = configuration(weights, beside)
    return Checkpoint(CONTAINER.name, None, (source,), tensors, metadata=config, notes=notes, sidecars=beside)


def _refs(table: Mapping[str, Any], offset: int) -> Iterator[TensorRef]:
    for name, (kind, shape) in table.items():
        ref = TensorRef(name, block_type(kind), tuple(shape), (Span(0, offset, tuple(shape)),))
        yield ref
        offset += ref.nbytes


SPEC = Reader("toyc", probe, open_checkpoint, (CONTAINER,), (".toyc",))
