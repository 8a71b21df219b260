"""Read tokenizer.json's pre_tokenizer and normalizer as lists of steps.

A step has a type, and a pattern where one expresses the same. Nothing is run here: that is the library's part
(`converters/tokenizers/libraries/`). Semantics: huggingface/tokenizers 0.2x,
tokenizers/src/{normalizers,pre_tokenizers}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import GPT2, PUNCTUATION
from ggferry.formats.errors import CorruptError, GgferryError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.support.heavy import regex

BYTES = "bytes → letters"  # the step that spells bytes, in a chain of patterns
MAX_STEPS = 64
BEHAVIORS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")

Patterns = list[str | None]


def flattened(spec: Any, what: str, path: str | None) -> list[json_kinds.Object]:
    """Return the steps of tokenizer.json's `what` ("normalizer", "pre_tokenizer"), with sequences taken apart.

    There are none for null. Raises CorruptError for what is no step, OutOfRangeError for too many.
    """
    members = what.replace("_", "") + "s"
    steps: list[json_kinds.Object] = []
    todo = [spec]
    while todo:
        node = todo.pop(0)
        if node is None:
            continue
        if len(steps) + len(todo) > MAX_STEPS:
            raise OutOfRangeError(f"steps of a {what}", path=path, found=len(steps) + len(todo), expected=MAX_STEPS)
        node = json_kinds.as_object(node, what, path)
        if kind_of(node, path) == "Sequence":
            todo = [*json_kinds.items(node, members, path, required=True), *todo]
        else:
            steps.append(node)
    return steps


def kind_of(step: json_kinds.Object, path: str | None) -> str:
    """Return the type of a step."""
    return json_kinds.text(step, "type", path, "")


def names(spec: Any, what: str, path: str | None) -> tuple[str, ...]:
    """Return the types of the steps."""
    return tuple(kind_of(step, path) for step in flattened(spec, what, path))


def patterns(spec: Any, path: str | None) -> Patterns:
    """Return the patterns that tokenizer.json's `pre_tokenizer` cuts by, None for a step that no pattern expresses.

    Raises UnsupportedError for a step unknown here, CorruptError for one that is malformed.
    """
    found: Patterns = []
    for step in flattened(spec, "pre_tokenizer", path):
        described = _STEPS.get(kind_of(step, path))
        if described is None:
            raise UnsupportedError(
                "unknown pre-tokenizer step",
                path=path,
                found=kind_of(step, path),
                expected=", ".join(_STEPS),
                hint="--pre NAME",
            )
        with placed(path):
            found += described(step)
    return found


@contextmanager
def placed(path: str | None) -> Iterator[None]:
    """Add the file's path to errors of a step's own members."""
    try:
        yield
    except GgferryError as error:
        error.path = error.path or path
        raise


def _flag(step: Mapping[str, Any], key: str, default: bool) -> bool:
    return json_kinds.flag(step, key, None, default)


def _split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> Patterns:
    if behavior not in BEHAVIORS:
        raise UnsupportedError("unknown behavior of a Split", found=behavior, expected=", ".join(BEHAVIORS))
    if behavior == "Isolated":
        return [pattern]
    return [pattern + "+" if behavior == "Contiguous" and not invert and pattern.endswith("]") else None]


def _pattern(step: Mapping[str, Any]) -> str:
    pattern = step.get("pattern")
    if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
        return str(pattern["Regex"])
    literal = pattern.get("String") if isinstance(pattern, dict) else pattern
    if not isinstance(literal, str):
        raise CorruptError("pattern is neither Regex nor String", found=type(literal).__name__)
    return str(regex.escape(literal, special_only=True))


def _byte_level(step: Mapping[str, Any]) -> Patterns:
    prefix: Patterns = [None] if _flag(step, "add_prefix_space", True) else []
    return [*prefix, *([GPT2] if _flag(step, "use_regex", True) else []), BYTES]


def _behavior(step: Mapping[str, Any]) -> str:
    return json_kinds.text(step, "behavior", None, "Isolated")


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], Patterns]] = {
    "ByteLevel": _byte_level,
    "Metaspace": lambda _: [None],
    "Split": lambda step: _split(_pattern(step), _behavior(step), _flag(step, "invert", False)),
    "Digits": lambda step: [r"\p{N}" if _flag(step, "individual_digits", False) else r"\p{N}+"],
    "Punctuation": lambda step: _split(PUNCTUATION, _behavior(step)),
    "Whitespace": lambda _: [None],
    "WhitespaceSplit": lambda _: [None],
    "CharDelimiterSplit": lambda _: [None],
    "BertPreTokenizer": lambda _: [None, PUNCTUATION],
}
