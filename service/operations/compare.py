"""Compare the predictions of two models on a text."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.files.local_files import Named
from ggferry.service.operation import (
    AsJson,
    Cache,
    Device,
    FollowRedirects,
    Force,
    Jobs,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
    open_source,
)
from ggferry.support.progress import Stage, silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.analysis.perplexity import Perplexity
    from ggferry.converters.model_graph.graph import ModelGraph

_MODEL = "A model of any container and any dialect; a path or a URL."


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Which models are compared, and on what."""

    first: Annotated[StrPath, argument(f"The base. {_MODEL}", metavar="A")]
    second: Annotated[StrPath, argument(f"What is judged. {_MODEL}", metavar="B")]
    text: Annotated[StrPath, declare(Kind.TEXT, "The text.", "--text", "-f", metavar="FILE", python="A file of text.")]
    _: KW_ONLY
    context: Annotated[int, declare(Kind.NUMBER, "Tokens of a chunk.", "--ctx", "-c")] = 512
    chunks: Annotated[int | None, declare(Kind.NUMBER, "The most chunks (default: all).", least=1)] = None
    jobs: Jobs = None
    device: Device = "cpu"
    cache: Cache = None
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class CompareCommand(CompareRequest):
    """Compare two models of one vocabulary on a text: perplexity, KL divergence, agreement, as llama-perplexity.

    Files need not be GGUF: a checkpoint's folder or a GGML-era file may be either of them.
    """

    _: KW_ONLY
    html: Annotated[StrPath | None, declare(Kind.TEXT, "Write a page with the curves.", metavar="FILE")] = None
    force: Force = False
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False


def run(request: CompareRequest) -> Perplexity:
    """Compare two models of one vocabulary on a text, as `ggferry compare` does.

    Returns:
        Perplexities, KL divergence and agreement after every chunk, as llama-perplexity defines them.

    Raises:
        InconsistentError: The vocabularies differ.
        GgferryError: As `open_model`.

    Example:
        >>> ggferry.compare("a.gguf", "b.gguf", "text.txt", context=64).chunks[-1].same_top.value > 0.5
        True
    """
    from ggferry.converters.forward.device import computing_on

    with (
        open_source(request.first, request.cache) as first,
        open_source(request.second, request.cache) as second,
        computing_on(request.device),
    ):
        return _quality(first, second, request, second.staged(first.staged(request.progress)))


def _quality(first: str, second: str, request: CompareRequest, stage: Stage) -> Perplexity:
    """Return the comparison of two local models."""
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.named_texts import lines_of

    a, b = graph_of(first), graph_of(second)
    try:
        text = "\n".join(lines_of(Named(os.fspath(request.text))))
        return on_text(a, b, text, context=request.context, chunks=request.chunks, jobs=request.jobs, stage=stage)
    finally:
        a.checkpoint.close()
        b.checkpoint.close()


def on_text(
    a: ModelGraph,
    b: ModelGraph,
    text: str,
    *,
    context: int,
    chunks: int | None,
    jobs: int | None,
    stage: Stage = silent,
) -> Perplexity:
    """Return how two open models predict a text; the arguments are those of `CompareRequest`. Raises as `run`."""
    from ggferry.converters.analysis.perplexity import perplexity, tokens_of
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
    from ggferry.formats.errors import MissingError

    sides = [load_tokenizer(graph.checkpoint, graph.sizes.get("n_vocab", 0)) for graph in (a, b)]
    if sides[0] is None or sides[1] is None:
        path = (a if sides[0] is None else b).checkpoint.path
        raise MissingError("the model has no vocabulary, so it reads no text", path=path)
    tokens, begin = tokens_of(text, sides[0], sides[1], b.checkpoint.path)
    return perplexity(a, b, tokens, first=begin, context=context, chunks=chunks, jobs=jobs, stage=stage)


compare = library_function("compare", CompareRequest, run)
