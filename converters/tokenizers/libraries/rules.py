"""What GGUF's kinds of vocabulary do with a text otherwise than the library, as rules; the library computes the result.

A runtime cuts the texts of special tokens out of a text first, and every run between them is a text of its own. A
'llama' vocabulary has no normalizer, and puts its space before a run whatever that begins with. A 't5' vocabulary has
its charsmap and two flags. So where a rule applies to a text, the library is asked about the runs, with the steps that
GGUF has in place of its own: the runtime must give exactly these ids.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ggferry.converters.tokenizers.building_blocks.special_tokens import SpecialSplitter, splitters, well_formed
from ggferry.converters.tokenizers.building_blocks.steps import flattened, kind_of
from ggferry.converters.tokenizers.encoders.unigram import UnigramEncoder
from ggferry.converters.tokenizers.libraries.ask import Answer, ask
from ggferry.converters.tokenizers.tokenizer import SPACE, Encoder, Tokenizer, TokenType, byte_of
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.records import dataclass

SENTENCEPIECE_FILES = ("sentencepiece", "fairseq")
WITHOUT_NORMALIZER = b"\x1a\x0e\x0a\x08identity\x12\x00\x20\x00"
"""normalizer_spec with name identity, no charsmap and remove_extra_whitespaces = false: appended to a model file, it
takes the place of what the file states (sentencepiece_model.proto, fields 1, 2 and 4)."""
WITHOUT_SUFFIX = b"\x12\x03\xc0\x01\x00"
"""trainer_spec.treat_whitespace_as_suffix = false (field 24): no runtime of a 'llama' vocabulary has it."""

_BETWEEN_BLANKS = re.compile(f"(?<=[ {SPACE}])(?=[ {SPACE}])")

BESIDE = "a token that takes in, or heeds, what stands beside it"
FOUND = "special tokens, which a runtime finds in plain text"
CONTROLS = "control tokens, which SentencePiece finds in plain text and a runtime where it is asked to"
BLANKS = "blanks at the beginning and behind special tokens"
BEHIND = "blanks behind special tokens"
NORMALIZER = "the normalizer of tokenizer.model"
BETWEEN = "blanks other than one between words"
LITERAL = "the sign ▁ itself, which libraries take for a blank of a token that is several blanks"
BYTE = "the text of a byte token, which tokenizers finds in plain text"
ROWLESS = "tokens without a row of the embedding, which are left out, as the model knows nothing of them"
SUMS = "two ways to cut whose scores have one sum, but for rounding"


@dataclass(frozen=True, slots=True)
class Side:
    """A source's tokenizer, as far as the rules ask.

    Attributes:
        library: Name of its library.
        data: The file for it.
        path: The file's path, for errors.
        beside: Texts of the added tokens that heed what stands beside them.
        added: Texts of all added tokens.
        controls: Control tokens of GGUF that the library finds in plain text: they are user-defined pieces.
    """

    library: str
    data: bytes
    path: str | None
    beside: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    controls: frozenset[int] = frozenset()


class Rules:
    """The rules for one source and one vocabulary.

    Attributes:
        special: Whether texts of control tokens are special on both sides, as in tokenizers.
    """

    def __init__(self, side: Side, made: Tokenizer, space: bool) -> None:
        self.special = side.library == "tokenizers"
        self._side, self._made, self._space = side, made, space
        self._splitters: Mapping[bool, SpecialSplitter] = splitters(made)
        kinds = (TokenType.USER_DEFINED,) if made.model != "gpt2" else (TokenType.USER_DEFINED, TokenType.CONTROL)
        self._bytes = [text for token, text in enumerate(made.tokens) if made.type_of(token) == TokenType.BYTE]
        self._placed = [text for token, text in enumerate(made.tokens) if made.type_of(token) in kinds and text]
        self._blanks = made.model == "llama" and any("  " in text for text in self._placed)
        self._blanks &= not any(2 * SPACE in text for text in made.tokens)

    def reason(self, text: str, normalized: str) -> str | None:
        """Return the rule by which a runtime may give other ids for a text than the library; None where none applies.

        Args:
            text: The text.
            normalized: What the library's normalizer makes of it.
        """
        side, model = self._side, self._made.model
        if _holds(text, side.beside):
            return BESIDE
        if self._has_controls(text):
            return CONTROLS
        if self._blanks and SPACE in text:
            return LITERAL
        if model == "llama" and self.special:
            if text.startswith((" ", SPACE)) or _holds(text, side.added):
                return BLANKS
            return FOUND if _holds(text, self._placed) else None
        if model == "t5" and self.special:
            if " ".join(text.split()) != text or SPACE in text or _holds(text, side.added):
                return BETWEEN
            return BYTE if _holds(text, self._bytes) else None
        if model in ("llama", "t5") and _holds(text, self._placed):
            return BEHIND
        if model == "llama":
            plain = " " + text if self._space and text else text
            return None if normalized == plain.replace(" ", SPACE) else NORMALIZER
        if not self.special and _holds(text, self._placed):
            return FOUND
        return None

    def agreeing(self, apart: Mapping[int, tuple[str, list[int]]]) -> set[int]:
        """Return the texts whose ids are those that the library gives with the steps of GGUF in place of its own.

        Args:
            apart: Texts, and what the output's encoder makes of each, by number.
        """
        literal = {number for number, (text, _) in apart.items() if self._spells_bytes(text)}
        found = set()
        for some, data in ((literal, without_bytes), (set(apart) - literal, bytes)):
            texts = {number: apart[number][0] for number in some}
            expected = self.expected(list(texts.values()), data(self._data())) if texts else []
            for number, theirs in zip(texts, expected, strict=True):
                ids = apart[number][1]
                if (self._without_bytes(ids) if number in literal else ids) == theirs:
                    found.add(number)
        return found

    def expected(self, texts: Sequence[str], data: bytes | None = None) -> list[list[int]]:
        """Return the ids that the library gives for each text once it has the steps of GGUF in place of its own."""
        parts = [self._runs(text) for text in texts]
        runs = list(dict.fromkeys(part for found in parts for part in found if isinstance(part, str)))
        side, given = self._side, runs
        if self.special and self._made.model == "t5":  # tokenizers applies a charsmap to graphemes, runtimes do not
            normalize = UnigramEncoder(self._made).normalize
            given = [normalize(well_formed(run)) for run in runs]
        answer = ask(side.library, self._data() if data is None else data, given, path=side.path)
        ids = {run: answer.ids(number) for number, run in enumerate(runs)}
        return [
            [token for part in found for token in ([part] if isinstance(part, int) else ids[part])] for found in parts
        ]

    def _runs(self, text: str) -> list[int | str]:
        """Return special tokens and the runs between them, as a runtime cuts a text.

        Where tokens of several blanks are special, a runtime has cut them out already, and joins no two blanks that
        are left, of which one is the sign ▁ itself: no other token has two. The library is asked about either side.
        """
        found = self._splitters[self.special or self._has_controls(text)].split(text)
        if not self._blanks:
            return found
        return [own for part in found for own in ([part] if isinstance(part, int) else _BETWEEN_BLANKS.split(part))]

    def _has_controls(self, text: str) -> bool:
        return bool(self._side.controls) and not self._side.controls.isdisjoint(self._splitters[True].split(text))

    def _spells_bytes(self, text: str) -> bool:
        """Return whether the library finds the text of a byte token in plain text, which runtimes do not."""
        return self._made.model == "t5" and self.special and _holds(text, self._bytes)

    def _without_bytes(self, ids: Sequence[int]) -> list[int]:
        """Return the ids with the unknown token in place of each run of bytes."""
        unknown, found, within = self._made.ids.get("unk", 0), [], False
        for token in ids:
            is_byte = self._made.type_of(token) == TokenType.BYTE
            if not (is_byte and within):
                found.append(unknown if is_byte else token)
            within = is_byte
        return found

    def _data(self) -> bytes:
        side, model = self._side, self._made.model
        if model == "llama" and side.library in SENTENCEPIECE_FILES:
            return side.data + WITHOUT_NORMALIZER + WITHOUT_SUFFIX
        return with_steps(side.data, self._made) if model in ("llama", "t5") and self.special else side.data


def explained(
    rules: Rules, made: Tokenizer, output: Encoder, apart: Mapping[int, tuple[str, str, list[int]]], answer: Answer
) -> dict[int, str]:
    """Return the texts whose difference a rule explains, by number, with the rule.

    Args:
        rules: The rules.
        made: The vocabulary.
        output: The encoder of the output.
        apart: The texts that differ, by number: the text, what the encoder was given, and its ids.
        answer: The library's answer.
    """
    rowless = {number for number in apart if max(answer.ids(number), default=0) >= len(made.tokens)}
    apart = {number: parts for number, parts in apart.items() if number not in rowless}
    named = {
        number: why for number, (text, _, _) in apart.items() if (why := rules.reason(text, answer.normalized[number]))
    }
    runtime = {number: apart[number][1:] for number in named}
    for number in (number for number, why in named.items() if why == CONTROLS):
        given = apart[number][1]
        runtime[number] = given, output.encode(given, bos=False, special=True)
    agreeing = rules.agreeing(runtime) if named else set()
    found = {number: named[number] for number in named if number in agreeing}
    if isinstance(output, UnigramEncoder) and len(found) < len(apart):
        left = [number for number in apart if number not in found]
        theirs = rules.expected([apart[number][1] for number in left])
        for number, expected in zip(left, theirs, strict=True):
            _, given, ids = apart[number]
            if _tied(output, given, ids, expected if number in named else answer.ids(number), rules.special):
                found[number] = SUMS
    return found | dict.fromkeys(rowless, ROWLESS)


def _tied(output: UnigramEncoder, given: str, ids: Sequence[int], theirs: Sequence[int], special: bool) -> bool:
    """Return whether both ids spell one text and have one sum of scores, or are what sums in float32 lead to."""
    if not special and output.in_single(given) == theirs:
        return True
    tokens, scores = output.tokenizer.tokens, output.tokenizer.scores or ()
    if [tokens[token] for token in ids] == [tokens[token] for token in theirs] or not scores:
        return False
    one_text = "".join(tokens[token] for token in ids) == "".join(tokens[token] for token in theirs)
    return one_text and math.fsum(scores[token] for token in ids) == math.fsum(scores[token] for token in theirs)


def with_steps(data: bytes, made: Tokenizer) -> bytes:
    """Return a tokenizer.json that normalizes as GGUF's kind of vocabulary does and cuts at blanks as before."""
    document: JSONObject = json.loads(data)
    document["normalizer"] = None  # of a 't5' vocabulary: its texts come normalized
    if made.model == "llama":
        prefix = [{"type": "Prepend", "prepend": SPACE}] if made.flags.get("add_space_prefix", True) else []
        blanks = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        document["normalizer"] = {"type": "Sequence", "normalizers": [*prefix, blanks]}
    cutting = [
        {**step, "prepend_scheme": "never", "add_prefix_space": False} if kind_of(step, None) == "Metaspace" else step
        for step in flattened(document.get("pre_tokenizer"), "pre_tokenizer", None)
        if kind_of(step, None) != "WhitespaceSplit"
    ]
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": cutting} if cutting else None
    return json.dumps(document).encode()


def without_bytes(data: bytes) -> bytes:
    """Return a unigram's tokenizer.json in which no piece is a byte: what has no piece is unknown."""
    document: JSONObject = json.loads(data)
    model = document["model"]
    model["byte_fallback"] = False
    model["vocab"] = [[f"\uf8ff{text}" if byte_of(text) is not None else text, score] for text, score in model["vocab"]]
    return json.dumps(document).encode()


def _holds(text: str, contents: Iterable[str]) -> bool:
    return any(content in text for content in contents)
