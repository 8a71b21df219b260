"""What tells a reranker from the causal model whose class it has: Qwen3-Reranker, Qwen3-VL-Reranker.

Their score of a query and a document is the share of "yes" among the probabilities of "yes" and "no" as the next token.
The weights cannot tell: sentence-transformers' modules do, else the model card and the name, as in llama.cpp's
converter (`conversion/qwen.py`), and `--rerank` decides where they are wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.architectures._embeddings import ANSWERS, RERANKERS
from ggferry.converters.model_graph.graph import Loss, ModelGraph, bind
from ggferry.converters.schema.architecture import Architecture
from ggferry.formats.checkpoint import Checkpoint, Dropped
from ggferry.formats.checkpoint_folder.modules import NO_PLACE, SCORED_BY, SETTINGS
from ggferry.formats.errors import GgferryError, InconsistentError, MissingError
from ggferry.formats.files.local_files import read_start
from ggferry.formats.files.sources import known_by
from ggferry.formats.json_files.text import load_object
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.tokenizers.tokenizer import Tokenizer

OPTION = "--rerank"
_HEADING = re.compile(rb"^[ \t]{0,3}#[ \t]+(qwen3-(?:vl-)?reranker[^\r\n]{0,40})", re.IGNORECASE | re.MULTILINE)
_NAME = re.compile(r"qwen3-(?:vl-)?reranker", re.IGNORECASE)
_MOST_CARD = 1 << 20
TEMPLATE_NAME = "rerank"
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>"
    "\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The text that the published models are asked with (their model cards), in llama.cpp's form."""


@dataclass(frozen=True, slots=True)
class Found:
    """A reranker, bound.

    Attributes:
        architecture: The tables, with the two rows in the dialect.
        dialect: The dialect's name.
        why: What says that it is one.
    """

    architecture: Architecture
    dialect: str
    why: str


def reranks(graph: ModelGraph) -> bool:
    """Return whether the graph is that of a reranker in Hugging Face's form."""
    return graph.dialect.name in RERANKERS.values()


def recognized(
    checkpoint: Checkpoint, architecture: Architecture, hparams: Mapping[str, str] | None, rerank: str, bare: bool
) -> tuple[Found | None, tuple[str, ...]]:
    """Return the dialect of a reranker, None for a causal model, and notes for the user.

    Args:
        checkpoint: The model, of the dialect 'hf', whose architecture has `RERANKERS`.
        architecture: Its tables.
        hparams: `--hparam` values.
        rerank: 'yes', 'no', or 'auto'.
        bare: Whether the vocabulary alone is wanted, and no rows.

    Raises MissingError where 'yes' is asked of a model without the two tokens.
    """
    why = f"{OPTION} yes" if rerank == "yes" else next(_evidence(checkpoint), "")
    if rerank == "no" or not why:
        return None, ()
    try:
        rows = None if bare else _rows(checkpoint)
    except GgferryError as error:
        if rerank == "yes":
            raise
        return None, (f"{why}, which names a reranker, but {error.message}: converted as the causal model it is",)
    tied = bool(bind(checkpoint, architecture, "hf", hparams, tensors=False).sizes.get("tied"))
    dialect = architecture.dialect(RERANKERS[tied])
    given = {f"answer_{answer}": row for answer, row in zip(ANSWERS, rows or (), strict=bool(rows))}
    dialect = replace(dialect, fixed={**dialect.fixed, **given})
    spec = architecture.with_dialect(dialect)
    return Found(spec, dialect.name, why), ()


def explained(graph: ModelGraph, why: str) -> ModelGraph:
    """Return the graph of a reranker with what became of its output matrix."""
    rows = " and ".join(map(repr, ANSWERS))
    notes = [f"a reranker ({why}): its scores are the shares of {rows} as the next token; {OPTION} no keeps all tokens"]
    dropped = graph.dropped
    taken = graph.by_name.get("cls.output.weight")
    if taken is not None and graph.dialect.name == RERANKERS[False]:
        reason = f"the output matrix but for the rows of {rows}, which became cls.output.weight ({OPTION} no keeps it)"
        dropped = (*dropped, Dropped(taken.inputs[0], reason))
        notes.append(Loss(reason, 1, taken.inputs[0].nbytes, taken.inputs[0].name).note)
    source = replace(graph.checkpoint, notes=tuple(note for note in graph.checkpoint.notes if note != NO_PLACE))
    return replace(graph, checkpoint=source, dropped=dropped, notes=(*graph.notes, *notes))


def rerank_template(graph: ModelGraph) -> str:
    """Return the text that a reranker in Hugging Face's form is asked with, '' for other models."""
    return TEMPLATE if reranks(graph) else ""


def with_template(graph: ModelGraph, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """Return the vocabulary with the text that a reranker is asked with, unless it has one of that name and form."""
    if tokenizer is None or not reranks(graph) or is_template(tokenizer.templates.get(TEMPLATE_NAME, "")):
        return tokenizer
    return replace(tokenizer, templates={**tokenizer.templates, TEMPLATE_NAME: TEMPLATE})


def is_template(text: str) -> bool:
    """Return whether a text has places for a query and a document, as llama.cpp fills them."""
    return "{query}" in text and "{document}" in text


def _evidence(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what says that the model is a reranker, the surest first."""
    beside = checkpoint.sidecars
    if SCORED_BY in checkpoint.metadata:
        yield "modules.json has LogitScore"
    if SETTINGS in beside and load_object(beside[SETTINGS]).get("model_type") == "CrossEncoder":
        yield f"{SETTINGS} names a CrossEncoder"
    if "README.md" in beside and (found := _HEADING.search(read_start(beside["README.md"], _MOST_CARD))):
        yield f"README.md is headed {found[1].decode('utf-8', 'replace').strip()!r}"
    declared = checkpoint.metadata.get("_name_or_path")
    if isinstance(declared, str) and _NAME.search(os.path.basename(declared.rstrip("/\\"))):
        yield f"config.json's _name_or_path is {declared[:80]!r}"
    for name in _called(checkpoint.path):
        yield f"the folder is called {name[:80]!r}"


def _called(path: str) -> Iterator[str]:
    """Yield the names of a model's folder, here and where it is from, that are a reranker's."""
    place = os.path.abspath(path)
    folder = place if os.path.isdir(place) else os.path.dirname(place)
    for each in dict.fromkeys((folder, known_by(folder).rstrip("/" + os.sep))):
        if _NAME.search(os.path.basename(each)):
            yield os.path.basename(each)


def is_called_like_one(path: str) -> bool:
    """Return whether the folder of a model has a reranker's name."""
    return any(_called(path))


def _rows(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the ids of `ANSWERS`: those that sentence-transformers' module states, else those of the vocabulary.

    Raises MissingError without such tokens, InconsistentError where one token alone is asked, and what reading the
    vocabulary raises.
    """
    declared = checkpoint.metadata.get(SCORED_BY)
    if isinstance(declared, Mapping):
        return _declared(declared, checkpoint.path)
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer

    tokenizer = load_tokenizer(checkpoint, 0)
    places: dict[str, int] = {} if tokenizer is None else {text: n for n, text in enumerate(tokenizer.tokens)}
    absent = [answer for answer in ANSWERS if answer not in places]
    if absent:
        raise MissingError(f"the vocabulary has no token {absent[0]!r}", path=checkpoint.path, hint=f"{OPTION} no")
    return tuple(places[answer] for answer in ANSWERS)


def _declared(settings: Mapping[str, Any], path: str) -> tuple[int, ...]:
    found = (settings.get("true_token_id"), settings.get("false_token_id"))
    rows = tuple(row for row in found if type(row) is int and row >= 0)
    if len(rows) != len(found):
        raise InconsistentError(
            "the scores of LogitScore are not the shares of two tokens", path=path, found=found, hint=f"{OPTION} no"
        )
    return rows
