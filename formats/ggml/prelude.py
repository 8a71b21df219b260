"""Read what precedes the tensors of a GGML-era file: header, filters, vocabulary and merges."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats import limits
from ggferry.formats.checkpoint import RawVocab, Span, TensorRef
from ggferry.formats.errors import BadValueError, InconsistentError, OutOfRangeError
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import Source
from ggferry.formats.ggml.types import Version
from ggferry.formats.reader import HeaderLayout
from ggferry.quant.codec import block_type
from ggferry.support.content_cache import Recent, held
from ggferry.support.records import dataclass

SCORE_BYTES = 32  # of memory: a float and its place
HEAD = 4096  # bytes that are compared before a whole vocabulary is
SCORED = frozenset({"ggmf", "ggjt", "ggcc"})
"""Containers whose tokens are each followed by a float32, whatever the architecture (docs/formats/ggml-era.md)."""


Runs = dict[tuple[int, bool], tuple[Sequence[bytes], Sequence[float], int]]
"""The vocabularies read from one file: (offset, whether scores follow) → tokens, scores, end offset.

The layouts of a container lead to the same offset again and again, and 32,000 tokens take longer than all the rest.
"""

_KNOWN: Recent[tuple[bytes, Sequence[bytes], Sequence[float]]] = Recent(32 << 20)
"""(Offset, number of tokens, whether scores follow) → the bytes of such a vocabulary, and what was read from them."""


@dataclass(frozen=True, slots=True)
class Prelude:
    """What precedes the tensors of a GGML-era file, read under one layout.

    Attributes:
        version: Container and version.
        layout: The layout.
        header: The header fields as found.
        vocab: The vocabulary; None where the layout has none.
        records: Byte at which the tensor records begin.
        matrix: The matrix before the vocabulary, where there is one.
        notes: What a user should know.
    """

    version: Version
    layout: HeaderLayout
    header: Mapping[str, Any]
    vocab: RawVocab | None
    records: int
    matrix: TensorRef | None = None
    notes: tuple[str, ...] = ()


def read_prelude(source: Source, version: Version, layout: HeaderLayout, runs: Runs, known: bytes = b"") -> Prelude:
    """Read the prelude of a file under one layout.

    Args:
        source: The file.
        version: Its container and version.
        layout: The layout to try.
        runs: Vocabularies of this file that were read under other layouts; this one is added.
        known: The first bytes of the file, if they were read already.

    Raises:
        CorruptError: The bytes are no such prelude.
    """
    cursor = Cursor(source, 4 if version[0] == "ggml" else 8, known=known)
    header = layout.header.read(cursor)
    matrix = _matrix(cursor, layout.matrix) if layout.matrix else None
    vocab, notes = None, list[str]()
    if layout.vocab.count != "none":
        vocab, notes = _vocabulary(cursor, version, layout, header, runs)
    return Prelude(version, layout, header, vocab, cursor.offset, matrix, tuple(notes))


def _matrix(cursor: Cursor, name: str) -> TensorRef:
    rows = cursor.integer("i32", f"rows of {name}", 1, limits.MAX_WIDTH)
    columns = cursor.integer("i32", f"columns of {name}", 1, limits.MAX_WIDTH)
    kind, shape = block_type("F32"), (rows, columns)
    ref = TensorRef(name, kind, shape, (Span(0, cursor.offset, shape),))
    cursor.skip(ref.nbytes, name)
    return ref


def _vocabulary(
    cursor: Cursor, version: Version, layout: HeaderLayout, header: Mapping[str, Any], runs: Runs
) -> tuple[RawVocab, list[str]]:
    count, notes = int(header["n_vocab"]), []
    rule = layout.vocab
    if rule.count != "header":
        at = cursor.offset
        declared = cursor.integer("i32", "number of tokens", 1, limits.MAX_GGML_VOCAB)
        if declared > count or (rule.count == "again" and declared != count):
            raise InconsistentError(
                "the vocabulary has another size than the header says",
                path=cursor.path,
                offset=at,
                found=declared,
                expected=count,
            )
        count = declared
    scored = version[0] in SCORED if rule.scored is None else rule.scored
    begin = cursor.offset
    tokens, scores = _tokens(cursor, count - rule.short, scored, runs)
    if rule.short and _is_record(cursor.source, cursor.offset, layout.embedding):
        # GPT4All's unversioned files declare 32001 tokens and hold 32000 (docs/formats/ggml-era.md).
        notes.append(
            f"the header declares {count} tokens, the vocabulary holds {count - 1}: the last one was never written"
        )
    elif rule.short:
        last = _tokens(cursor, 1, scored, runs)
        tokens, scores = [*tokens, *last[0]], [*scores, *last[1]]
    if not all(map(math.isfinite, scores)):
        index, score = next((i, score) for i, score in enumerate(scores) if not math.isfinite(score))
        at = begin + sum(8 + len(token) for token in tokens[: index + 1]) - 4  # behind its own token
        raise BadValueError(f"score of token {index} is not a number", path=cursor.path, offset=at, found=score)
    merges = _merges(cursor, header) if version[0] == "ggcc" else _merge_lines(cursor) if rule.merges else None
    return RawVocab(tuple(tokens), tuple(scores) if scored else None, merges), notes


def _tokens(cursor: Cursor, count: int, scored: bool, runs: Runs) -> tuple[Sequence[bytes], Sequence[float]]:
    place = cursor.offset, scored
    tokens, scores, end = runs.get(place, ((), (), cursor.offset))
    if len(tokens) < count:
        tokens, scores = _known(cursor, count, scored) or _read(cursor, count, scored)
        runs[place] = tokens, scores, cursor.offset
        return tokens, scores
    behind = sum(len(token) + (8 if scored else 4) for token in tokens[count:])
    cursor.skip(end - behind - cursor.offset, f"{count} tokens")
    return tokens[:count], scores[:count]


def _known(cursor: Cursor, count: int, scored: bool) -> tuple[Sequence[bytes], Sequence[float]] | None:
    """Return the tokens at the cursor if another file had exactly the same bytes there."""
    at = cursor.offset
    data, tokens, scores = _KNOWN.get((at, count, scored)) or (b"", (), ())
    size = len(data)
    if not size or at + size > cursor.end or cursor.source.read(at, min(size, HEAD)) != data[:HEAD]:
        return None
    if cursor.source.read(at, size) != data:
        return None
    cursor.skip(size, f"{count} tokens")
    return tokens, scores


def _read(cursor: Cursor, count: int, scored: bool) -> tuple[Sequence[bytes], Sequence[float]]:
    begin, scores = cursor.offset, list[float]()
    if scored:
        tokens, scores = cursor.strings_with(count, "i32", "f32", "token", limits.MAX_TOKEN_BYTES)
    else:
        tokens = cursor.strings(count, "i32", "token", limits.MAX_TOKEN_BYTES)
    size = cursor.offset - begin
    if _KNOWN.takes(room := size + held(tokens) + SCORE_BYTES * len(scores)):
        _KNOWN.put((begin, count, scored), (cursor.source.read(begin, size), tokens, scores), room)
    return tokens, scores


def _merges(cursor: Cursor, header: Mapping[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
    """Read GGCC's merges: a count that repeats the header's, then both parts of every merge as raw bytes."""
    at, expected = cursor.offset, int(header["n_merges"])
    count = cursor.integer("i32", "number of merges")
    if count != expected:
        raise InconsistentError(
            "the merges are not as many as the header says", path=cursor.path, offset=at, found=count, expected=expected
        )
    if not 0 <= count <= limits.MAX_GGML_VOCAB:
        raise OutOfRangeError("number of merges", path=cursor.path, offset=at, found=count)
    parts = cursor.strings(2 * count, "i32", "part of a merge", limits.MAX_TOKEN_BYTES)
    return tuple(zip(parts[::2], parts[1::2], strict=True))


def _merge_lines(cursor: Cursor) -> tuple[tuple[bytes, bytes], ...]:
    """Read biogpt.cpp's merges: their number, then a line of merges.txt each, without the count that ends it there."""
    count, begin = cursor.integer("i32", "number of merges", 0, limits.MAX_GGML_VOCAB), cursor.offset
    lines = cursor.strings(count, "i32", "merge", 2 * limits.MAX_TOKEN_BYTES + 1)
    pairs = tuple((left, right) for left, _, right in (line.partition(b" ") for line in lines))
    for index, (left, right) in enumerate(pairs):
        if not left or not right or b" " in right:
            at = begin + sum(4 + len(line) for line in lines[:index])
            raise BadValueError(f"merge {index} has not two parts", path=cursor.path, offset=at, found=lines[index])
    return pairs


def _is_record(source: Source, offset: int, name: str) -> bool:
    """Return whether the record of the 2-D tensor `name` begins at `offset`."""
    expected = name.encode()
    if not name or offset + 20 + len(expected) > source.size:
        return False
    head = source.read(offset, 20 + len(expected))
    return struct.unpack_from("<2i", head) == (2, len(expected)) and head[20:] == expected
