"""Compare the predictions of models with those of a base on a text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Annotated, BinaryIO

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import InconsistentError, MissingError, UsageError
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
    from ggferry.converters.analysis.quality.figures import Perplexity
    from ggferry.converters.model_graph.graph import ModelGraph
    from ggferry.converters.tokenizers.tokenizer import Tokenizer
    from ggferry.formats.files.opened_files import Identity

_MODEL = "A model in any format; a path or a URL."


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Which models are compared, and on what."""

    first: Annotated[StrPath, argument(f"The base. {_MODEL}", metavar="A")]
    second: Annotated[
        StrPath | None,
        argument("The model to judge. Without it, only --kl-divergence-base is written.", metavar="B"),
    ] = None
    text: Annotated[
        StrPath | None, declare(Kind.TEXT, "The text.", "--text", "-f", metavar="FILE", python="A file of text.")
    ] = None
    _: KW_ONLY
    others: Annotated[
        Sequence[StrPath], argument(
                "Further models to judge; the base is computed once for all.",
                Kind.FILES, metavar="C")
    ] = ()
    context: Annotated[int, declare(Kind.NUMBER, "Tokens of a chunk.", "--ctx", "-c")] = 512
    chunks: Annotated[int | None, declare(Kind.NUMBER, "The most chunks (default: all).", least=1)] = None
    kl_divergence_base: Annotated[
        StrPath | None,
        declare(Kind.TEXT, "Write the base's predictions to FILE, as llama-perplexity does.", metavar="FILE"),
    ] = None
    kl_divergence: Annotated[
        bool,
        declare(Kind.FLAG,
                "Take the base's predictions from --kl-divergence-base: A is judged, too, and "
                "--text is not needed."),
    ] = False
    jobs: Jobs = None
    device: Device = "cpu"
    cache: Cache = None
    force: Force = False
    progress: ReportProgress = silent

    @property
    def models(self) -> list[str]:
        """Return all models, the base first where there is one."""
        return [os.fspath(each) for each in (self.first, self.second, *self.others) if each is not None]


@dataclass(frozen=True, slots=True)
class CompareCommand(CompareRequest):
    """Compare models with a base of their vocabulary on a text: perplexity, KL divergence, as llama-perplexity.

    Files need not be GGUF: a checkpoint's folder or a GGML-era file may be any of them.
    """

    _: KW_ONLY
    html: Annotated[StrPath | None, declare(Kind.TEXT, "Write a page with the curves.", metavar="FILE")] = None
    markdown: Annotated[
        StrPath | None,
        declare(Kind.TEXT, "Write the table for a model card; - prints it alone.", metavar="FILE"),
    ] = None
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False


def run(request: CompareRequest) -> Perplexity:
    """Compare models with a base of their vocabulary on a text, as `ggferry compare` does.

    Returns:
        Perplexities, KL divergence and agreement after every chunk, as llama-perplexity defines them; `others` has
        those of further models.

    Raises:
        InconsistentError: The vocabularies differ, or the text is not that of the base's file.
        GgferryError: As `open_model`.

    Example:
        >>> ggferry.compare("a.gguf", "b.gguf", "text.txt", context=64).chunks[-1].same_top.value > 0.5
        True
    """
    from ggferry.converters.forward.device import computing_on
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.opened_files import recorded

    _check(request)
    stage = request.progress
    with ExitStack() as stack, computing_on(request.device), recorded() as opened:
        graphs = []
        for model in request.models:
            path = stack.enter_context(open_source(model, request.cache))
            stage = path.staged(stage)
            graphs.append(graph_of(path))
            stack.callback(graphs[-1].checkpoint.close)
        if request.kl_divergence:
            found = _kept(graphs, request, stage)
        elif request.kl_divergence_base is not None:
            found = _written(graphs, request, stage, opened.identities)
        else:
            found = _compared(graphs, request, stage, None)
    names = request.models if request.kl_divergence or len(request.models) == 1 else request.models[1:]
    named = [replace(each, model=name) for each, name in zip(found, names, strict=True)]
    return replace(named[0], others=tuple(named[1:]))


def _check(request: CompareRequest) -> None:
    """Raise UsageError where there is nothing to compare, or nothing to compare on."""
    base = request.kl_divergence_base
    if request.kl_divergence and base is None:
        raise UsageError("no file of a base's predictions", hint="--kl-divergence-base FILE")
    if request.text is None and not request.kl_divergence:
        raise UsageError("no text to compare on", hint="--text FILE")
    if request.second is None and base is None:
        raise UsageError("one model, and nothing to compare it with", hint="ggferry compare BASE MODEL --text FILE")


def _text(request: CompareRequest) -> str:
    from ggferry.formats.files.named_texts import lines_of

    return "\n".join(lines_of(Named(os.fspath(request.text or ""))))


def _kept(graphs: Sequence[ModelGraph], request: CompareRequest, stage: Stage) -> list[Perplexity]:
    """Compare models with the predictions in a file."""
    from ggferry.converters.analysis.quality.perplexity import KeptBase, Text, beginning, encoded, perplexity
    from ggferry.formats.base_logits import BaseLogits

    tokenizers = _tokenizers(graphs)
    with BaseLogits(os.fspath(request.kl_divergence_base or "")) as file:
        if request.text is not None:
            tokens = encoded(_text(request), tokenizers[0])[: len(file.tokens)]
            odd = next((n for n, pair in enumerate(zip(tokens, file.tokens, strict=False)) if pair[0] != pair[1]), None)
            if odd is not None or len(tokens) < len(file.tokens):
                raise InconsistentError(
                    "the predictions are of another text",
                    path=file.path,
                    found=f"token {file.tokens[odd]} at {odd}" if odd is not None else f"{len(file.tokens)} tokens",
                    expected=f"{tokens[odd]}" if odd is not None else f"at most {len(tokens)}",
                    hint="leave --text out: the file has the tokens",
                )
        chunks = min(file.chunks, request.chunks or file.chunks)
        texts = [Text(file.tokens, beginning(each), file.context, chunks) for each in tokenizers]
        return perplexity(KeptBase(file), graphs, texts, request.jobs, stage)


def _written(
    graphs: Sequence[ModelGraph], request: CompareRequest, stage: Stage, sources: dict[Identity, str]
) -> list[Perplexity]:
    """Compare models with the first of them, and write its predictions; the file gets its name when all are done."""
    from ggferry.formats.files.partial_files import write_file

    found: list[Perplexity] = []
    write_file(
        os.fspath(request.kl_divergence_base or ""),
        lambda file: found.extend(_compared(graphs, request, stage, file)),
        overwrite=request.force,
        sources=sources,
    )
    return found


def _compared(
    graphs: Sequence[ModelGraph], request: CompareRequest, stage: Stage, file: BinaryIO | None
) -> list[Perplexity]:
    return models_on_text(
        graphs[0],
        graphs[1:],
        _text(request),
        context=request.context,
        chunks=request.chunks,
        jobs=request.jobs,
        stage=stage,
        file=file,
    )


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
    return models_on_text(a, [b], text, context=context, chunks=chunks, jobs=jobs, stage=stage)[0]


def models_on_text(
    base: ModelGraph,
    others: Sequence[ModelGraph],
    text: str,
    *,
    context: int,
    chunks: int | None,
    jobs: int | None,
    stage: Stage = silent,
    file: BinaryIO | None = None,
) -> list[Perplexity]:
    """Return how open models predict a text beside their base, whose predictions go to `file`. Raises as `run`."""
    from ggferry.converters.analysis.quality.perplexity import (
        ComputedBase,
        Text,
        beginning,
        chunks_of,
        encoded,
        perplexity,
    )

    tokenizers = _tokenizers([base, *others])
    tokens = encoded(text, tokenizers[0])
    count = chunks_of(tokens, context, chunks)
    texts = [Text(tokens, beginning(each), context, count) for each in tokenizers]
    return perplexity(ComputedBase(base, texts[0], jobs, file), others, texts[1:] or texts, jobs, stage)


def _tokenizers(graphs: Sequence[ModelGraph]) -> list[Tokenizer]:
    """Return the vocabularies of models. Raises MissingError, and InconsistentError for one unlike the first."""
    from ggferry.converters.analysis.quality.perplexity import check_same
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer

    found: list[Tokenizer] = []
    for graph in graphs:
        tokenizer = load_tokenizer(graph.checkpoint, graph.sizes.get("n_vocab", 0))
        if tokenizer is None:
            raise MissingError("the model has no vocabulary, so it reads no text", path=graph.checkpoint.path)
        found.append(tokenizer)
        check_same(found[0], tokenizer, graph.checkpoint.path)
    return found


compare = library_function("compare", CompareRequest, run)
