"""Quality of models against a base on a text: perplexity, KL divergence, agreement, as llama-perplexity has them.

Source: llama.cpp b11549, tools/perplexity/perplexity.cpp. The text is cut into chunks of `context` tokens, the first of
each is the token that begins a text where the vocabulary asks for one, and what is said of the second half of a chunk
counts. The weights of a model are read once for several chunks, block by block; the base passes once, however many
models are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Protocol

from ggferry.converters.analysis.quality.figures import Perplexity, Rows, Sums, compared
from ggferry.converters.forward.evaluate import result_of
from ggferry.converters.forward.model import CODES, Places
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.passes import Passes, run_prompts
from ggferry.converters.proof.prompts import Prompt
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.base_logits import BaseLogits, pack, write_head
from ggferry.formats.errors import InconsistentError, UnsupportedError, UsageError
from ggferry.support.heavy import np
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass

CONTEXT, LEAST = 512, 8
HELD = 256 << 20
"""Bytes of logits of the base and one model that are held at once."""
TOGETHER = 8
"""Most chunks that share one reading of the weights."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text as a model reads it.

    Attributes:
        tokens: Its tokens.
        first: The token that begins every chunk, in the place of its own first; None for none.
        context: Tokens of a chunk.
        chunks: How many chunks are read.
    """

    tokens: Sequence[int]
    first: int | None
    context: int
    chunks: int

    def prompt(self, number: int) -> Prompt:
        """Return a chunk, with the places of the predictions that count."""
        own = tuple(self.tokens[number * self.context : (number + 1) * self.context])
        begun = own if self.first is None else (self.first, *own[1:])
        return Prompt(f"chunk {number}", begun, Places(rows=tuple(range(self.context // 2, self.context - 1))))

    def right(self, number: int) -> Any:
        """Return the tokens that came where the predictions count."""
        return np.asarray(self.tokens[number * self.context + self.context // 2 + 1 : (number + 1) * self.context])


class Base(Protocol):
    """What predicts the text as it should be."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens it knows."""

    @property
    def nbytes(self) -> int:
        """Bytes that are read for a group of chunks."""

    def rows(self, numbers: Sequence[int]) -> list[Rows]:
        """Return the predictions of some chunks, which follow those of the call before."""


class ComputedBase:
    """The predictions of a model."""

    def __init__(self, graph: ModelGraph, text: Text, jobs: int | None = None, file: BinaryIO | None = None) -> None:
        """`file`: where the predictions are written; then what is compared is what the file has of them."""
        self.graph, self._text, self._jobs, self._file = graph, text, jobs, file
        self.vocabulary, self.nbytes = vocabulary_of(graph), graph.checkpoint.nbytes
        self.last: list[Any] = []
        if file is not None:
            write_head(file, text.context, self.vocabulary, text.tokens[: text.chunks * text.context])

    def rows(self, numbers: Sequence[int]) -> list[Rows]:
        """Run the chunks through the model."""
        self.last = passed(self.graph, self._text, numbers, self._jobs)
        if self._file is None:
            return [Rows(each) for each in self.last]
        found = []
        for logits in self.last:
            found.append(Rows(pack(logits), self.vocabulary))
            self._file.write(found[-1].values.tobytes())
        return found


class KeptBase:
    """The predictions in a file of base logits."""

    nbytes = 0

    def __init__(self, file: BaseLogits) -> None:
        self._file, self.vocabulary = file, file.vocabulary

    def rows(self, numbers: Sequence[int]) -> list[Rows]:
        """Read the rows of the chunks."""
        return [Rows(self._file.chunk(number), self.vocabulary) for number in numbers]


def perplexity(
    base: Base, others: Sequence[ModelGraph], texts: Sequence[Text], jobs: int | None = None, stage: Stage = silent
) -> list[Perplexity]:
    """Compare models with a base of the same vocabulary on a text.

    Args:
        base: Model A.
        others: The models that are judged; without any, the base is judged against what a file keeps of it.
        texts: The text as each of them reads it.
        jobs: Number of threads; None for the default.
        stage: Opens a progress display.

    Raises:
        InconsistentError: The vocabularies have different sizes.
    """
    for graph in others:
        if vocabulary_of(graph) != base.vocabulary:
            raise InconsistentError(
                "the vocabularies differ",
                path=graph.checkpoint.path,
                found=vocabulary_of(graph),
                expected=base.vocabulary,
            )
    judged = others or ([base.graph] if isinstance(base, ComputedBase) else [])
    text, sums = texts[0], [Sums() for _ in judged]
    group = max(1, min(TOGETHER, HELD // (8 * base.vocabulary * (text.context - 1 - text.context // 2))))
    read = base.nbytes + sum(graph.checkpoint.nbytes for graph in others)
    with stage(Phase.COMPUTING, read * -(-text.chunks // group)) as progress:
        for numbers in _groups(text.chunks, group):
            rows = base.rows(numbers)
            progress(base.nbytes)
            if not others and isinstance(base, ComputedBase):
                _add(sums[0], rows, base.last, text, numbers)
            for graph, own, summed in zip(others, texts, sums, strict=False):
                _add(summed, rows, passed(graph, own, numbers, jobs), text, numbers)
                progress(graph.checkpoint.nbytes)
    return [
        each.figures(len(text.tokens), text.context, **_facts(graph)) for each, graph in zip(sums, judged, strict=True)
    ]


def _add(sums: Sums, rows: Sequence[Rows], logits: Sequence[Any], text: Text, numbers: Sequence[int]) -> None:
    for number, base, other in zip(numbers, rows, logits, strict=True):
        sums.add(*compared(base, other, text.right(number)))


def _facts(graph: ModelGraph) -> dict[str, Any]:
    """Return name, size and bits per weight of a model."""
    tensors = graph.checkpoint.tensors.values()
    elements = sum(ref.elements for ref in tensors)
    return {
        "model": graph.checkpoint.path,
        "bytes": graph.checkpoint.nbytes,
        "bits_per_weight": 8 * sum(ref.nbytes for ref in tensors) / elements if elements else 0.0,
    }


def passed(graph: ModelGraph, text: Text, numbers: Sequence[int], jobs: int | None) -> list[Any]:
    """Return the logits of the predictions that count, float32 `(rows, vocabulary)`, of some chunks."""
    return run_prompts([Passes(Weights(graph, jobs))], [text.prompt(number) for number in numbers])[0]


def vocabulary_of(graph: ModelGraph) -> int:
    """Return the number of tokens a model knows. Raises UnsupportedError where none of them can follow a text."""
    size, result = graph.sizes.get("n_vocab"), result_of(graph)
    if size is not None and (result.name == CODES.name or not result.ranked):
        given = "codes" if result.ranked else result.name
        raise UnsupportedError(f"no text follows a text: the model gives {given}", path=graph.checkpoint.path)
    if size is None:
        raise UnsupportedError("no forward pass is known for this architecture", path=graph.checkpoint.path)
    return int(size)


def _groups(count: int, size: int) -> Iterator[range]:
    return (range(at, min(count, at + size)) for at in range(0, count, size))


def chunks_of(tokens: Sequence[int], context: int, most: int | None) -> int:
    """Return how many chunks of a text are read. Raises UsageError for less than one, or too short a context."""
    if context < LEAST:
        raise UsageError("--ctx", found=context, expected=f"{LEAST} or more")
    count = min(len(tokens) // context, most or len(tokens))
    if count < 1:
        raise UsageError("text is shorter than one chunk", found=f"{len(tokens)} tokens", expected=f"{context} or more")
    return count


def encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the text's tokens."""
    return encoder(tokenizer).encode(text)


def beginning(tokenizer: Tokenizer) -> int | None:
    """Return the token that begins every chunk, where the vocabulary asks for one."""
    return tokenizer.ids.get("bos") if tokenizer.flags.get("add_bos", tokenizer.model == "llama") else None


def check_same(a: Tokenizer, b: Tokenizer, path: str) -> None:
    """Raise InconsistentError for two different vocabularies; `path`: of the second."""
    if a.tokens != b.tokens:
        odd = next((n for n, pair in enumerate(zip(a.tokens, b.tokens, strict=False)) if pair[0] != pair[1]), 0)
        raise InconsistentError("the vocabularies differ", path=path, found=f"token {odd}: {b.tokens[odd]!r}")
