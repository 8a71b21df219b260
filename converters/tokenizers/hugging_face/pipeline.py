"""tokenizer.json's normalizer and pre_tokenizer, interpreted: the source's side of the proof.

Semantics: huggingface/tokenizers 0.2x, tokenizers/src/{normalizers,pre_tokenizers}. Every step is also described by a
pattern where it can be, so that a pre-tokenizer becomes a chain of patterns to be looked up in `pretokenizers`.
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ggferry.converters.tokenizers.building_blocks.byte_level import spell
from ggferry.converters.tokenizers.building_blocks.charsmap import Charsmap
from ggferry.converters.tokenizers.building_blocks.pattern_budget import Budget
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import GPT2, PUNCTUATION
from ggferry.converters.tokenizers.tokenizer import SPACE
from ggferry.formats.errors import CorruptError, GgferryError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import regex
else:
    regex = lazy("regex")

BYTES = "bytes → letters"  # the step that spells bytes, in a chain of patterns
MAX_STEPS = 64

Parts = list[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class Step:
    """One pre-tokenizer step: `apply(word, first)` cuts a word; `pattern` says the same, None where none can."""

    apply: Callable[[str, bool], list[str]]
    pattern: str | None


def _isolated(parts: Parts) -> list[str]:
    return [text for text, _ in parts]


def _removed(parts: Parts) -> list[str]:
    return [text for text, matched in parts if not matched]


def _merged_with_previous(parts: Parts) -> list[str]:
    out: list[str] = []
    before = False
    for text, matched in parts:
        if matched and not before and out:
            out[-1] += text
        else:
            out.append(text)
        before = matched
    return out


def _merged_with_next(parts: Parts) -> list[str]:
    turned = _merged_with_previous([(text[::-1], matched) for text, matched in reversed(parts)])
    return [text[::-1] for text in reversed(turned)]


def _contiguous(parts: Parts) -> list[str]:
    out: list[str] = []
    before = False
    for text, matched in parts:
        if out and matched == before:
            out[-1] += text
        else:
            out.append(text)
        before = matched
    return out


BEHAVIORS: Mapping[str, Callable[[Parts], list[str]]] = {
    "Isolated": _isolated,
    "Removed": _removed,
    "MergedWithPrevious": _merged_with_previous,
    "MergedWithNext": _merged_with_next,
    "Contiguous": _contiguous,
}


def splitting(pattern: str, budget: Budget, behavior: str = "Isolated", invert: bool = False) -> Step:
    """A Split step. Raises UnsupportedError for a behavior nobody knows, and as `budget` says."""
    arrange, matcher = BEHAVIORS.get(behavior), budget.compile(pattern)
    if arrange is None:
        raise UnsupportedError("unknown behavior of a Split", found=behavior, expected=", ".join(BEHAVIORS))

    def apply(word: str, first: bool) -> list[str]:
        return arrange([(text, matched != invert) for text, matched in budget.cut(matcher, word)])

    described: str | None = None
    if behavior == "Isolated":
        described = pattern
    elif behavior == "Contiguous" and not invert and pattern.endswith("]"):
        described = pattern + "+"
    return Step(apply, described)


def pre_tokenizer(spec: Any, budget: Budget) -> list[Step]:
    """The steps of tokenizer.json's `pre_tokenizer`; none for null. Raises UnsupportedError for a step unknown here,
    CorruptError for one that is malformed."""
    path = budget.path
    steps: list[Step] = []
    todo = [spec]
    while todo:
        node = todo.pop(0)
        if node is None:
            continue
        kind = _kind(node, "pre_tokenizer", len(steps) + len(todo), path)
        if kind == "Sequence":
            todo = [*json_kinds.items(node, "pretokenizers", path, required=True), *todo]
            continue
        maker = _STEPS.get(kind)
        if maker is None:
            raise UnsupportedError(
                "a pre-tokenizer step we do not interpret", path=path, found=kind, expected=", ".join(_STEPS),
                hint="--pre NAME",
            )  # fmt: skip
        with _placed(path):
            steps += maker(node, budget)
    return steps


def _kind(node: Any, what: str, steps: int, path: str | None) -> str:
    """The type of a step. Raises CorruptError for what is no step, or one too many."""
    if steps > MAX_STEPS:
        raise OutOfRangeError(f"steps of a {what}", path=path, found=steps, expected=f"≤ {MAX_STEPS}")
    return json_kinds.text(json_kinds.as_object(node, what, path), "type", path, "")


@contextmanager
def _placed(path: str | None) -> Iterator[None]:
    """Errors of a step's own members get the file's path."""
    try:
        yield
    except GgferryError as error:
        error.path = error.path or path
        raise


def run(steps: list[Step], text: str, budget: Budget) -> list[str]:
    """The words that `steps` make of `text`."""
    words = [text] if text else []
    for step in steps:
        words = [piece for at, word in enumerate(words) for piece in step.apply(word, at == 0) if piece]
        budget.check_length(text, sum(map(len, words)))
    return words


def _flag(node: Mapping[str, Any], key: str, default: bool) -> bool:
    return json_kinds.flag(node, key, None, default)


def _text(node: Mapping[str, Any], key: str, default: str) -> str:
    return json_kinds.text(node, key, None, default)


def _pattern(node: Mapping[str, Any]) -> str:
    pattern = node.get("pattern")
    if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
        return str(pattern["Regex"])
    literal = pattern.get("String") if isinstance(pattern, dict) else pattern
    if not isinstance(literal, str):
        raise CorruptError("a pattern that is neither Regex nor String", found=type(literal).__name__)
    return str(regex.escape(literal, special_only=True))


def _byte_level(node: Mapping[str, Any], budget: Budget) -> list[Step]:
    steps = [_prefixed(" ")] if _flag(node, "add_prefix_space", True) else []
    if _flag(node, "use_regex", True):
        steps.append(splitting(GPT2, budget))
    return [*steps, Step(lambda word, _: [spell(word.encode())], BYTES)]


def _prefixed(prefix: str) -> Step:
    return Step(lambda word, _: [word if word.startswith(prefix) else prefix + word], None)


def _metaspace(node: Mapping[str, Any], budget: Budget) -> list[Step]:
    sign = _text(node, "replacement", SPACE) or SPACE
    if len(sign) > 1:
        raise CorruptError("replacement of a Metaspace", found=sign, expected="one character")
    scheme = _text(node, "prepend_scheme", "always" if _flag(node, "add_prefix_space", True) else "never")

    def replace(word: str, first: bool) -> list[str]:
        word = word.replace(" ", sign)
        wanted = scheme == "always" or (scheme == "first" and first)
        return [sign + word if wanted and not word.startswith(sign) else word]

    steps = [Step(replace, None)]
    if _flag(node, "split", True):
        steps.append(splitting(str(regex.escape(sign)), budget, "MergedWithNext"))
    return steps


_STEPS: Mapping[str, Callable[[Mapping[str, Any], Budget], list[Step]]] = {
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
    "Split": lambda node, budget: [
        splitting(_pattern(node), budget, _text(node, "behavior", "Isolated"), _flag(node, "invert", False))
    ],
    "Digits": lambda node, budget: [
        splitting(r"\p{N}" if _flag(node, "individual_digits", False) else r"\p{N}+", budget)
    ],
    "Punctuation": lambda node, budget: [splitting(PUNCTUATION, budget, _text(node, "behavior", "Isolated"))],
    "Whitespace": lambda _, budget: [splitting(r"\w+|[^\w\s]+", budget, "Removed", invert=True)],
    "WhitespaceSplit": lambda _, budget: [splitting(r"\s", budget, "Removed")],
    "CharDelimiterSplit": lambda node, budget: [
        splitting(str(regex.escape(_text(node, "delimiter", " "))), budget, "Removed")
    ],
    "BertPreTokenizer": lambda _, budget: [splitting(r"\s", budget, "Removed"), splitting(PUNCTUATION, budget)],
}


@dataclass(frozen=True, slots=True)
class Normalizer:
    """`apply(text)`; `names`: the types of its steps, in order."""

    steps: tuple[Callable[[str], str], ...]
    names: tuple[str, ...]
    budget: Budget

    def apply(self, text: str) -> str:
        given = text
        for step in self.steps:
            text = step(text)
            self.budget.check_length(given, len(text))
        return text


def normalizer(spec: Any, budget: Budget) -> Normalizer:
    """tokenizer.json's `normalizer`; the identity for null. Raises as `pre_tokenizer` does."""
    path = budget.path
    steps: list[Callable[[str], str]] = []
    names: list[str] = []
    todo = [spec]
    while todo:
        node = todo.pop(0)
        if node is None:
            continue
        kind = _kind(node, "normalizer", len(steps) + len(todo), path)
        if kind == "Sequence":
            todo = [*json_kinds.items(node, "normalizers", path, required=True), *todo]
            continue
        maker = _NORMALIZERS.get(kind)
        if maker is None:
            raise UnsupportedError(
                "a normalizer we do not interpret", path=path, found=kind, expected=", ".join(_NORMALIZERS)
            )
        with _placed(path):
            steps.append(maker(node, budget))
        names.append(kind)
    return Normalizer(tuple(steps), tuple(names), budget)


def strip_accents(text: str) -> str:
    return "".join(sign for sign in unicodedata.normalize("NFD", text) if unicodedata.category(sign) != "Mn")


CJK = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
# 0x2B920 stands in tokenizers' bert.rs where BERT's own code has 0x2B820; ids follow what runs


@cache
def is_cjk(sign: str) -> bool:
    return any(low <= ord(sign) <= high for low, high in CJK)


@cache
def _cleaned(sign: str) -> str:
    """BertNormalizer's clean_text of one character: no NUL, U+FFFD or control characters, white space is a blank."""
    category = unicodedata.category(sign)
    if sign in "\t\n\r\u2028\u2029" or category == "Zs":
        return " "
    return "" if sign in "\x00\ufffd" or category in ("Cc", "Cf", "Co") else sign


def _bert(node: Mapping[str, Any], _: Budget) -> Callable[[str], str]:
    lowercase, accents = _flag(node, "lowercase", True), json_kinds.flag(node, "strip_accents", None)
    clean, apart = _flag(node, "clean_text", True), _flag(node, "handle_chinese_chars", True)

    def apply(text: str) -> str:
        if clean:
            text = "".join(map(_cleaned, text))
        if apart:
            text = "".join(f" {sign} " if is_cjk(sign) else sign for sign in text)
        if accents or (accents is None and lowercase):
            text = strip_accents(text)
        return text.lower() if lowercase else text

    return apply


def _strip(node: Mapping[str, Any], _: Budget) -> Callable[[str], str]:
    left, right = _flag(node, "strip_left", True), _flag(node, "strip_right", True)
    return lambda text: (text.strip() if right else text.lstrip()) if left else text.rstrip() if right else text


def _replace(node: Mapping[str, Any], budget: Budget) -> Callable[[str], str]:
    matcher, content = budget.compile(_pattern(node)), _text(node, "content", "")
    return lambda text: budget.replace(matcher, content, text)


def _precompiled(node: Mapping[str, Any], _: Budget) -> Callable[[str], str]:
    try:
        data = base64.b64decode(_text(node, "precompiled_charsmap", ""), validate=True)
    except (binascii.Error, ValueError):
        raise CorruptError("precompiled_charsmap is not base64") from None
    return Charsmap(data).normalize if data else lambda text: text


def _prepend(node: Mapping[str, Any], _: Budget) -> Callable[[str], str]:
    prefix = _text(node, "prepend", "")
    return lambda text: prefix + text if text else text


Maker = Callable[[Mapping[str, Any], Budget], Callable[[str], str]]


def _form(form: Any) -> Maker:
    return lambda *_: lambda text: unicodedata.normalize(form, text)


_NORMALIZERS: Mapping[str, Maker] = {
    **{form: _form(form) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "Lowercase": lambda *_: str.lower,
    "StripAccents": lambda *_: lambda text: "".join(s for s in text if not unicodedata.category(s).startswith("M")),
    "Strip": _strip,
    "Prepend": _prepend,
    "Replace": _replace,
    "Precompiled": _precompiled,
    "BertNormalizer": _bert,
}
