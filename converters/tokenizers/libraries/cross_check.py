"""Compare the output's own encoder with the library that the model was made with.

A text on which the two differ is a difference of the vocabularies, unless GGUF's kind of vocabulary is known to treat
such texts differently; then it is counted with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added
from ggferry.converters.tokenizers.building_blocks.byte_level import unspell
from ggferry.converters.tokenizers.compare import TokenizerCheck, compare_ids
from ggferry.converters.tokenizers.libraries.ask import Answer, ask
from ggferry.converters.tokenizers.libraries.rules import Rules, Side, explained
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import SPACE, Encoder, Tokenizer, TokenType
from ggferry.support.records import dataclass

TOKENIZERS, SENTENCEPIECE, TIKTOKEN, TEKKEN = "tokenizers", "sentencepiece", "tiktoken", "tekken"
QWEN = "qwen"
"""tiktoken, with the pattern and the special tokens of the first QWen models."""
FAIRSEQ = "fairseq"
"""SentencePiece, with its pieces numbered as fairseq does."""
MAX_PIECES = 200_000
MAX_CHARACTERS = 1 << 22  # of all pieces together; 200,000 ordinary ones have a quarter of it
MAX_ADDED = 1 << 14


@dataclass(frozen=True, slots=True)
class ReferenceTokenizer:
    """The library that can say what a source's tokenizer does.

    Attributes:
        library: Name of the library.
        data: The file for it.
        path: The file's path, for errors.
        added: The tokens added after training.
        forced: Whether the user chose another pre-tokenizer than the file's.
    """

    library: str
    data: bytes
    path: str | None
    added: tuple[Added, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing an encoder with a library.

    Attributes:
        by: Library and version.
        check: The comparison of the texts that count.
        excused: Reason → number of differing texts that GGUF cannot express otherwise.
        reached: How many ids came out at least once.
        facts: What the library says about the vocabulary.
    """

    by: str
    check: TokenizerCheck
    excused: Mapping[str, int]
    reached: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> int:
        """Number of all texts, with those that are excused."""
        return self.check.texts + sum(self.excused.values())


def cross_check(
    reference: ReferenceTokenizer,
    made: Tokenizer,
    output: Encoder,
    texts: Sequence[str] = TEXTS,
    *,
    vocabulary: bool = False,
) -> Agreement:
    """Encode `texts` by the library and by the encoder of the output, and compare.

    Args:
        witness: The library and its file.
        made: The vocabulary as it was made from the library's file.
        output: The encoder of the output.
        texts: What to encode.
        vocabulary: Whether to ask for the vocabulary, too.

    Raises UnsupportedError where the library does not read the file.
    """
    answer = ask(reference.library, reference.data, texts, path=reference.path, normalize=True, vocabulary=vocabulary)
    return weigh(reference, made, output, texts, answer)


def weigh(
    reference: ReferenceTokenizer, made: Tokenizer, output: Encoder, texts: Sequence[str], answer: Answer
) -> Agreement:
    """Compare as `hear` does, with an answer of the library that is there already."""
    rules = Rules(_side(reference, made, answer), made, _space_in_front(texts, answer))
    found: list[list[int]] = []
    apart: dict[int, tuple[str, str, list[int]]] = {}
    reached: set[int] = set()
    for number, text in enumerate(texts):
        # no key of a 'gpt2' vocabulary says how text is normalized: its runtimes take it as it is
        given = answer.normalized[number] if made.model == "gpt2" else text
        ids = output.encode(given, bos=False, special=rules.special)
        found.append(ids)
        reached.update(ids)
        if ids != answer.ids(number):
            apart[number] = text, given, ids
    excused = explained(rules, made, output, apart, answer) if apart else {}
    counted = [number for number in range(len(texts)) if number not in excused]
    check = compare_ids(
        [texts[number] for number in counted],
        [answer.ids(number) for number in counted],
        [found[number] for number in counted],
        output,
    )
    return Agreement(answer.library, check, dict(Counter(excused.values())), len(reached), answer.facts)


def _side(reference: ReferenceTokenizer, made: Tokenizer, answer: Answer) -> Side:
    heeding = tuple(one.content for one in reference.added if one.lstrip or one.rstrip or one.single_word)
    added = tuple(one.content for one in reference.added if one.content)
    types = answer.facts.get("types", ()) if reference.library == SENTENCEPIECE else ()
    controls = frozenset(
        token
        for token, kind in enumerate(types[: len(made.tokens)])
        if kind == TokenType.USER_DEFINED and made.type_of(token) == TokenType.CONTROL
    )
    return Side(reference.library, reference.data, reference.path, heeding, added, controls)


def _space_in_front(texts: Sequence[str], answer: Answer) -> bool:
    """Return whether the library's normalizer puts a space before a text that has none."""
    pairs = zip(texts, answer.normalized, strict=True)
    return any(made.startswith(SPACE) for text, made in pairs if text and not text.startswith((" ", SPACE)))


def texts_of(made: Tokenizer, added: Sequence[Added], pieces: bool, own: Sequence[str] = ()) -> list[str]:
    """Return the texts that both sides encode.

    They are the fixed texts, the user's `own`, every added token alone and among words, and, where `pieces` asks for
    it, every piece of the vocabulary as a text that leads to it.
    """
    texts = [*TEXTS, *own]
    contents = dict.fromkeys([one.content for one in added] + _special(made))
    for content in list(contents)[:MAX_ADDED]:
        texts += (content, f"a {content} b", f"{content}{content}")
    if pieces:
        room = MAX_CHARACTERS
        for token in range(min(len(made.tokens), MAX_PIECES)):
            text = _text_of(made, token)
            room -= len(text or "")
            if text and room > 0:
                texts.append(text)
    return list(dict.fromkeys(texts))


def _special(made: Tokenizer) -> list[str]:
    named = (TokenType.CONTROL, TokenType.USER_DEFINED)
    return [text for token, text in enumerate(made.tokens) if made.type_of(token) in named]


def _text_of(made: Tokenizer, token: int) -> str | None:
    """Return a text in which an ordinary piece comes out, as far as its neighbors let it; None for other tokens."""
    text = made.tokens[token]
    if made.type_of(token) != TokenType.NORMAL:
        return None
    if made.model == "gpt2":
        data = unspell(text)
        try:
            return text if data is None else data.decode()
        except UnicodeDecodeError:
            return None
    if text.startswith(SPACE):
        return text[1:].replace(SPACE, " ")
    # what continues a word needs one to continue: a line end is a byte, and merges with nothing
    return {"bert": "x", "llama": "\n"}.get(made.model, ",") + text.replace(SPACE, " ")
