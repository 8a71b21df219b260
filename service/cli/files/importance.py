"""The work of `ggferry imatrix`: measure on texts, add earlier matrices, continue, and show what a matrix says."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ggferry.formats.errors import RefusedError
from ggferry.formats.files.named_texts import text_of
from ggferry.formats.files.opened_files import Opened, recorded
from ggferry.service.cli.options import access_of, print_json, say, tell

if TYPE_CHECKING:
    from ggferry.converters.forward.importance_matrix import Recorder
    from ggferry.service.sources.local_source import LocalSource


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is to be measured.

    Attributes:
        texts: Files of text.
        out: The matrix to write.
        chunk_size: Tokens a chunk.
        most: At most so many chunks; None for all.
        output: Whether to write the entry of the output matrix.
        earlier: Matrices whose sums are added.
        resume: Whether an interrupted measurement is continued.
    """

    texts: tuple[str, ...]
    out: str
    chunk_size: int
    most: int | None
    output: bool
    earlier: tuple[str, ...]
    resume: bool


def measured(path: LocalSource, asked: Measurement, given: dict[str, Any]) -> tuple[int, int]:
    """Write the matrix; return how many weights it has, and how many chunks are in it."""
    from ggferry.converters.forward.imatrix_resume import SUFFIX, PartialMatrix
    from ggferry.converters.forward.imatrix_resume import measured as what
    from ggferry.converters.forward.importance_matrix import Recorder, chunks_of, measure, write_imatrix
    from ggferry.converters.forward.weights import prepare
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.partial_files import check_target
    from ggferry.service.cli.progress_bar import progress as shown
    from ggferry.support.allocator import tune_malloc

    tune_malloc(large=True)
    with recorded() as opened:
        graph = graph_of(path, arch=given["arch"])
        prepare(graph)
        tokenizer = load_tokenizer(graph.checkpoint, vocabulary_rows(graph.checkpoint))
        if tokenizer is None:
            raise RefusedError("the file has no vocabulary", path=path)
        parts = [part for text in asked.texts for part in chunks_of(tokenizer, text_of(text), asked.chunk_size)]
        parts, recorder = parts[: asked.most], Recorder(graph)
        names = _add(recorder, asked) + [os.path.basename(text) for text in asked.texts]
    check_target(asked.out, overwrite=given["force"], sources=opened.identities)
    kept = PartialMatrix(asked.out + SUFFIX, what(graph.checkpoint, parts, asked.earlier))
    done = kept.begin(recorder, asked.resume, given["force"])
    if asked.resume:
        say(f"note     {done} of {len(parts)} chunks were done")
    left = sum(map(len, parts[done:]))
    bar = shown("tokens", left, wanted=not given["as_json"], counts=True)
    with bar as progress:
        measure(graph, parts, progress, recorder=recorder, done=done, kept=lambda done: kept.save(recorder, done))
    _check(opened, path)
    chunks = len(parts) + _earlier_chunks(asked)
    count = write_imatrix(
        asked.out, recorder, chunks, asked.chunk_size, names, output=asked.output, force=given["force"],
        sources=opened.identities,
    )  # fmt: skip
    kept.end()
    graph.checkpoint.close()
    return count, chunks


def _check(opened: Opened, path: LocalSource) -> None:
    opened.check_unchanged()
    path.check_unchanged()


def _add(recorder: Recorder, asked: Measurement) -> list[str]:
    """Add the sums of the earlier matrices; return the names of their texts."""
    from ggferry.formats.imatrix import read_imatrix

    names: list[str] = []
    for path in asked.earlier:
        with read_imatrix(path) as matrix:
            recorder.add(matrix, asked.chunk_size)
            names += matrix.datasets
    return names


def _earlier_chunks(asked: Measurement) -> int:
    """Return the chunks behind the earlier matrices, by the largest of their counts, as llama-imatrix takes them."""
    from ggferry.formats.imatrix import read_imatrix

    chunks = 0
    for path in asked.earlier:
        with read_imatrix(path) as matrix:
            most = max(max(entry.counts) for entry in matrix.entries.values())
            chunks += most if matrix.legacy else (most + asked.chunk_size // 2) // asked.chunk_size
    return chunks


def statistics(file: str, given: dict[str, Any]) -> None:
    """Print what an importance matrix says."""
    from ggferry.converters.analysis.imatrix_statistics import describe, lines
    from ggferry.formats.imatrix import read_imatrix
    from ggferry.formats.json_files.kinds import strict

    with access_of(file, given) as path, read_imatrix(path) as matrix:
        found = describe(matrix)
        if given["as_json"]:
            print_json(strict({"path": file, **asdict(found)}))
            return
        for line in lines(found, file):
            tell(line)
