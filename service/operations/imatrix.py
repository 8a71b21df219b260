"""Compute an importance matrix of a model on texts, add earlier matrices, continue an interrupted run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind, option
from ggferry.formats.errors import RefusedError, UsageError
from ggferry.service.operation import (
    AsJson,
    Cache,
    Device,
    FollowRedirects,
    Force,
    ReportProgress,
    StrPath,
    argument,
    declare,
    open_source,
)
from ggferry.support.progress import Phase, silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.forward.imatrix_files import ExpertTokens
    from ggferry.converters.forward.importance_matrix import Recorder
    from ggferry.converters.tokenizers.tokenizer import Tokenizer
    from ggferry.service.sources.local_source import LocalSource

MOST = 1e6  # of a text's weight
SHOWN = 8  # experts of a block, and blocks, that a note names


@dataclass(frozen=True, slots=True)
class ImatrixRequest:
    """What is measured."""

    path: Annotated[
        StrPath, argument("Any model ggferry can run; a path or a URL. With --show-statistics: a matrix.")
    ]
    _: KW_ONLY
    texts: Annotated[
        Sequence[StrPath],
        declare(Kind.TEXTS, "A UTF-8 text file to run through the model, and how often it counts (1); repeatable.",
                "--text", metavar="FILE[:WEIGHT]"),
    ] = ()
    conversations: Annotated[
        Sequence[StrPath],
        declare(Kind.TEXTS, "Conversations, a JSON object with messages a line, as the model's chat template renders "
                "them; repeatable.", metavar="FILE.jsonl[:WEIGHT]"),
    ] = ()
    out: Annotated[
        StrPath,
        declare(Kind.TEXT, "The imatrix to write: GGUF, or the older form for a name that ends with .dat.", "--outfile",
                "-o", metavar="FILE"),
    ] = "imatrix.gguf"
    chunk_size: Annotated[int, declare(Kind.NUMBER, "Tokens a chunk.", least=2)] = 512
    chunks: Annotated[int | None, declare(Kind.NUMBER, "At most so many chunks (default: all).", least=1)] = None
    process_output: Annotated[bool, declare(Kind.FLAG, "Measure output.weight, too.")] = False
    in_files: Annotated[
        Sequence[StrPath],
        declare(Kind.TEXTS, "An earlier matrix of this model, to whose sums the new ones are added; repeatable.",
                "--in-file", metavar="FILE"),
    ] = ()
    precision: Annotated[
        str,
        declare(Kind.TEXT, "Of products: f32; bf16, twice as fast where the processor multiplies bfloat16; auto: bf16 "
                "there, for models of more than 67 million weights.", metavar="TYPE", choices=("auto", "f32", "bf16")),
    ] = "auto"
    sketch: Annotated[
        int,
        declare(Kind.NUMBER, "Directions of the sketch of second moments by which --rounding search corrects errors, "
                "as many numbers a column more; 0 for none.", least=0, most=64),
    ] = 32
    resume: Annotated[
        bool, declare(Kind.FLAG, "Continue the same measurement where it was interrupted.")
    ] = False
    arch: Annotated[str | None, option("arch")] = None
    device: Device = "cpu"
    force: Force = False
    cache: Cache = None
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class ImatrixCommand(ImatrixRequest):
    """Compute llama.cpp's importance matrix from a text."""

    _: KW_ONLY
    show_statistics: Annotated[
        bool, declare(Kind.FLAG, "Print the statistics of the matrix FILE as llama-imatrix does.")
    ] = False
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class ImatrixResult:
    """An importance matrix that was written.

    Attributes:
        path: Where.
        entries: How many weights it has.
        chunks: How many chunks are in it.
        notes: What a user should know.
        experts: What the experts of every block saw; empty for a model without any.
    """

    path: str
    entries: int
    chunks: int
    notes: tuple[str, ...]
    experts: tuple[ExpertTokens, ...] = ()


def run(request: ImatrixRequest) -> ImatrixResult:
    """Write the matrix. Raises UsageError where nothing is to be measured, and what computing raises."""
    from ggferry.converters.forward.device import computing_on

    if not request.texts and not request.conversations and not request.in_files:
        raise UsageError("nothing to measure", hint="--text FILE, or --in-file MATRIX to add matrices up")
    with open_source(request.path, request.cache) as path, computing_on(request.device):
        return _measured(path, request)


def _measured(path: LocalSource, request: ImatrixRequest) -> ImatrixResult:
    from ggferry.converters.forward.imatrix_files import LEGACY, expert_tokens, write_imatrix
    from ggferry.converters.forward.imatrix_resume import SUFFIX, PartialMatrix, measured
    from ggferry.converters.forward.importance_matrix import Recorder, measure
    from ggferry.converters.forward.weights import prepare
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.opened_files import recorded
    from ggferry.formats.files.partial_files import check_target
    from ggferry.support.allocator import tune_malloc

    tune_malloc(large=True)
    out = os.fspath(request.out)
    with recorded() as opened:
        graph = graph_of(path, arch=request.arch)
        prepare(graph, products=request.precision == "f32")
        tokenizer = load_tokenizer(graph.checkpoint, vocabulary_rows(graph.checkpoint))
        if tokenizer is None:
            raise RefusedError("the file has no vocabulary", path=path)
        texts = _texts(request, tokenizer)
        parts = [part for text in texts for part in text.chunks][: request.chunks]
        weights = [text.weight for text in texts for _ in text.chunks][: request.chunks]
        recorder = Recorder(graph, request.precision, 0 if out.lower().endswith(LEGACY) else request.sketch)
        names = _add(recorder, request) + [text.name for text in texts]
    check_target(out, overwrite=request.force, sources=opened.identities)
    unfinished = PartialMatrix(out + SUFFIX, measured(recorder, parts, weights, _earlier(request)))
    done = unfinished.begin(recorder, request.resume, request.force)
    notes: tuple[str, ...] = (f"{done} of {len(parts)} chunks were done",) if request.resume else ()
    if recorder.bfloat16 and request.precision == "auto":
        notes += ("products were computed in bfloat16; --precision f32 computes them in float32",)
    with request.progress(Phase.COMPUTING, sum(map(len, parts[done:]))) as progress:
        measure(
            graph,
            parts,
            progress,
            recorder=recorder,
            done=done,
            weights=weights,
            kept=lambda count: unfinished.save(recorder, count),
        )
    opened.check_unchanged()
    path.check_unchanged()
    chunks = len(parts) + _earlier_chunks(request)
    count = write_imatrix(
        out, recorder, chunks, request.chunk_size, names, output=request.process_output, force=request.force,
        sources=opened.identities,
    )
    unfinished.end()
    graph.checkpoint.close()
    experts = expert_tokens(recorder)
    return ImatrixResult(out, count, chunks, (*notes, *_little(experts)), tuple(experts))


@dataclass(frozen=True, slots=True)
class _Text:
    """A text to measure on.

    Attributes:
        name: Of its file, with its weight where that is not 1.
        weight: How often it counts.
        chunks: Its tokens.
    """

    name: str
    weight: float
    chunks: Sequence[Sequence[int]]


def _texts(request: ImatrixRequest, tokenizer: Tokenizer) -> list[_Text]:
    """Return the texts, then the conversations. Raises UsageError for a weight that is not positive."""
    from ggferry.converters.forward.importance_matrix import chunks_of, cut
    from ggferry.converters.proof.references.render_conversations import rendered_texts
    from ggferry.converters.tokenizers.tokenizer import encoder
    from ggferry.formats.files.named_texts import path_and_number, text_of

    found, size = [], request.chunk_size
    for kind, files in (("--text", request.texts), ("--conversations", request.conversations)):
        for file in files:
            path, weight = path_and_number(os.fspath(file))
            if not 0 < weight <= MOST:
                raise UsageError(f"{kind}: weight", path=path, found=weight, expected=f"more than 0, at most {MOST:g}")
            if kind == "--text":
                chunks = chunks_of(tokenizer, text_of(path), size)
            else:
                texts = rendered_texts(path, tokenizer, os.fspath(request.path))
                reader = encoder(tokenizer)
                ids = [token for text in texts for token in reader.encode(text, bos=False, special=True)]
                chunks = cut(tokenizer, ids, size)
            name = os.path.basename(path)
            found.append(_Text(name if weight == 1 else f"{name}:{weight:g}", weight, chunks))
    return found


def _little(experts: Sequence[ExpertTokens]) -> list[str]:
    """Return what to say of experts that saw few tokens; nothing where all saw enough."""
    from ggferry.formats.imatrix.matrix import LITTLE

    poor = [each for each in experts if each.little]
    if not poor:
        return []
    count, none = sum(len(each.little) for each in poor), sum(each.tokens.count(0) for each in poor)
    places = "; ".join(
        f"{each.name.partition('.ffn')[0]}: {', '.join(map(str, each.little[:SHOWN]))}"
        + (", …" if len(each.little) > SHOWN else "")
        for each in poor[:SHOWN]
    )
    more = f"; and {len(poor) - SHOWN} more blocks" if len(poor) > SHOWN else ""
    total = sum(len(each.tokens) for each in experts)
    return [
        f"{count} of {total} experts saw fewer than {LITTLE} tokens, {none} of them none, and are weighed by little or "
        f"nothing ({places}{more}); a way out: more chunks, texts of other kinds (--text, --conversations), or an "
        "earlier matrix (--in-file)"
    ]


def _earlier(request: ImatrixRequest) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path in request.in_files)


def _add(recorder: Recorder, request: ImatrixRequest) -> list[str]:
    """Add the sums of the earlier matrices; return the names of their texts."""
    from ggferry.formats.imatrix.read import read_imatrix

    names: list[str] = []
    for path in _earlier(request):
        with read_imatrix(path) as matrix:
            recorder.add(matrix, request.chunk_size)
            names += matrix.datasets
    return names


def _earlier_chunks(request: ImatrixRequest) -> int:
    """Return the chunks behind the earlier matrices, by the largest of their counts, as llama-imatrix takes them."""
    from ggferry.formats.imatrix.read import read_imatrix

    chunks = 0
    for path in _earlier(request):
        with read_imatrix(path) as matrix:
            most = max(max(entry.counts) for entry in matrix.entries.values())
            chunks += most if matrix.legacy else (most + request.chunk_size // 2) // request.chunk_size
    return chunks
