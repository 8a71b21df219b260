"""What a model of embeddings makes of texts, and a reranker of a query and documents, from text to numbers.

A query and a document become one text by the model's template `rerank`, where it has one, else
`[BOS] query [EOS] [SEP] document [EOS]`, each of the marks where the vocabulary adds it. Sources: llama.cpp
`server-common.cpp` (`format_prompt_rerank`), `server-context.cpp` (`send_rerank`), sentence-transformers'
`SentenceTransformer.encode`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ggferry.converters.forward.evaluate import embedding, forward, result_of
from ggferry.converters.forward.pooling import RANK, SHARED, shares
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.reranking.recognize import TEMPLATE_NAME, is_template, reranks, with_template
from ggferry.converters.tokenizers.tokenizer import Encoder, Tokenizer, encoder
from ggferry.formats.checkpoint_folder.modules import ORDER
from ggferry.formats.errors import RefusedError, UnsupportedError
from ggferry.support.heavy import np

_EOS = {"t5": True}
_SEP_PRE = ("jina-v1-en", "jina-v2-code", "roberta-bpe")
"""Where llama.cpp adds these marks though a file does not say so, by the vocabulary's model and its pre-tokenizer
(`llama-vocab.cpp`); of BOS our encoders know it."""


def vectors(graph: ModelGraph, tokenizer: Tokenizer, texts: Sequence[str]) -> Any:
    """Return one vector a text, float32 `(texts, width)`, pooled and multiplied as the model states.

    They have unit length, except where sentence-transformers' modules beside a checkpoint leave that out.

    Raises UnsupportedError for a model that makes no vectors, or scores in their place, RefusedError where nothing says
    how they are pooled, and what the forward pass raises.
    """
    _check_states(graph)
    if graph.sizes.get("pooling") == RANK:
        raise UnsupportedError("it gives scores, not vectors", path=graph.checkpoint.path, hint="--score QUERY")
    order = graph.checkpoint.metadata.get(ORDER)
    unit = not isinstance(order, str) or "Normalize" in order.split() or "Pooling" not in order.split()
    weights, reads = Weights(graph), encoder(tokenizer)
    found = [_made(graph, weights, reads.encode(text, special=True), unit) for text in texts]
    return np.stack(found) if found else np.zeros((0, 0), np.float32)


def scores(graph: ModelGraph, tokenizer: Tokenizer, query: str, documents: Sequence[str]) -> Any:
    """Return one score a document, float32 `(documents,)`: of a classifier with several labels, that of the first.

    Scores are as the classifier gives them, without a function behind it; those of Qwen3 in GGUF, and of its rerankers,
    are shares of one.

    Raises UnsupportedError for a model that gives no scores, and what the forward pass raises.
    """
    _check_states(graph)
    if graph.sizes.get("pooling") != RANK:
        raise UnsupportedError(
            "the model gives no scores: it is not a reranker",
            path=graph.checkpoint.path,
            found=graph.architecture.name,
            expected="a model with a classifier",
            hint="--rerank yes, for a causal Qwen3 that was trained as one",
        )
    whole = with_template(graph, tokenizer) or tokenizer
    weights, reads, rows = Weights(graph), encoder(whole), []
    for document in documents:
        made = _made(graph, weights, pair(whole, reads, query, document), True)
        rows.append(shares(made)[0] if _shared(graph) else made[0])
    return np.array(rows, np.float32)


def pair(tokenizer: Tokenizer, reads: Encoder, query: str, document: str) -> list[int]:
    """Return the tokens by which a query and a document are scored."""
    template = tokenizer.templates.get(TEMPLATE_NAME, "")
    if is_template(template):
        return list(reads.encode(_filled(template, query, document), bos=False, special=True))
    first, second = ([*reads.encode(text, bos=False)] for text in (query, document))
    begin, end, between = _marks(tokenizer, reads)
    return [*begin, *first, *end, *between, *second, *end]


def segments_note(graph: ModelGraph, tokenizer: Tokenizer) -> str:
    """Return what transformers does otherwise with a pair, '' for nothing."""
    if (graph.sizes.get("n_types") or 0) > 1 and not is_template(tokenizer.templates.get(TEMPLATE_NAME, "")):
        return "both texts have segment 0, as in llama.cpp; transformers gives the document segment 1"
    return ""


def _shared(graph: ModelGraph) -> bool:
    return graph.architecture.name in SHARED and (graph.dialect.name == "gguf" or reranks(graph))


def _filled(template: str, query: str, document: str) -> str:
    """Return the template with both texts in their places; what stands in the texts is no place."""
    texts = {"{query}": query, "{document}": document}
    return re.sub(r"\{query\}|\{document\}", lambda place: texts[place[0]], template)


def _marks(tokenizer: Tokenizer, reads: Encoder) -> Iterator[list[int]]:
    """Yield what stands before a pair, behind each of its texts, and further between them."""
    ids, flags = tokenizer.ids, tokenizer.flags
    bare, whole = reads.encode("a", bos=False), reads.encode("a")
    yield list(whole[:1]) if bare != whole and whole[1 : 1 + len(bare)] == bare else []
    separated = tokenizer.model == "bert" or tokenizer.pre in _SEP_PRE
    end, between = ids.get("eos", ids.get("sep")), ids.get("sep")
    yield [end] if flags.get("add_eos", _EOS.get(tokenizer.model, False)) and end is not None else []
    yield [between] if flags.get("add_sep", separated) and between is not None else []


_POOLED_BY = "--hparam pooling_type=1 for the mean, 2 for the first token, 3 for the last"


def _check_states(graph: ModelGraph) -> None:
    if result_of(graph).ranked:
        able = any(param.name == "pooling" for param in graph.architecture.hparams)
        raise UnsupportedError(
            "the model gives logits of words, and nothing says how a text becomes one vector",
            path=graph.checkpoint.path,
            found=graph.architecture.name,
            expected="a model of embeddings, or a reranker",
            hint=_POOLED_BY if able else None,
        )


def _made(graph: ModelGraph, weights: Weights, tokens: Sequence[int], unit: bool) -> Any:
    found = embedding(graph, forward(graph, tokens, weights=weights), weights, unit=unit)
    if found is None:
        raise RefusedError(
            "nothing says how the states of a text become one vector",
            path=graph.checkpoint.path,
            expected="pooling_type",
            hint=_POOLED_BY,
        )
    return found
