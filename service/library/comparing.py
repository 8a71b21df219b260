"""`compare`: the quality of two models on a text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ggferry.converters.forward.device import computing_on
from ggferry.service.library.keywords import StrPath
from ggferry.service.sources.local_source import local_source
from ggferry.support.progress import Stage, silent

if TYPE_CHECKING:
    from ggferry.converters.analysis.perplexity import Perplexity


def compare(
    first: StrPath, second: StrPath, text: StrPath, *, context: int = 512, chunks: int | None = None,
    jobs: int | None = None, device: str = "cpu", progress: Stage = silent,
) -> Perplexity:  # fmt: skip
    """Compare two models of one vocabulary on a text, as `ggferry compare` does.

    Args:
        first: The base: a model of any container.
        second: The model that is judged.
        text: A file of text.
        context: Tokens of a chunk.
        chunks: The most chunks; None for all.
        jobs: Worker threads; None: one per core.
        device: Where it is computed: 'cpu', 'cuda', 'cuda:N', or 'auto' for a GPU if there is one.
        progress: As for `convert`.

    Returns:
        Perplexities, KL divergence and agreement after every chunk, as llama-perplexity defines them.

    Raises:
        InconsistentError: The vocabularies differ.
        GgferryError: As `open_model`.

    Example:
        >>> ggferry.compare("a.gguf", "b.gguf", "text.txt", context=64).chunks[-1].same_top.value > 0.5
        True
    """
    with local_source(os.fspath(first)) as a, local_source(os.fspath(second)) as b, computing_on(device):
        stage = b.staged(a.staged(progress))
        return quality_of(a, b, os.fspath(text), context=context, chunks=chunks, jobs=jobs, stage=stage)


def quality_of(
    first: str, second: str, text: str, *, context: int, chunks: int | None, jobs: int | None, stage: Stage
) -> Perplexity:
    """Return the comparison of two local models. Raises as `compare`."""
    from ggferry.converters.analysis.perplexity import perplexity, tokens_of
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
    from ggferry.converters.understand import graph_of
    from ggferry.formats.errors import MissingError
    from ggferry.formats.files.local_files import Named
    from ggferry.formats.files.named_texts import lines_of

    a, b = graph_of(first), graph_of(second)
    try:
        sides = [load_tokenizer(graph.checkpoint, graph.sizes.get("n_vocab", 0)) for graph in (a, b)]
        if sides[0] is None or sides[1] is None:
            raise MissingError("a model without a vocabulary reads no text", path=first if sides[0] is None else second)
        tokens, begin = tokens_of("\n".join(lines_of(Named(text))), sides[0], sides[1], second)
        return perplexity(a, b, tokens, first=begin, context=context, chunks=chunks, jobs=jobs, stage=stage)
    finally:
        a.checkpoint.close()
        b.checkpoint.close()
