"""The keys that GGUF files have in common, and their types: of gguf-py's constants, and of llama.cpp's loader."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ggferry.converters.proof.runtime_keys import loader

LIST = Path(__file__).with_name("standard_keys.txt")
_PLACEHOLDER = re.compile(r"\\\{(\w+)\\\}")
"""A {name} after `re.escape`."""
_NEAR = 0.85
"""How alike two keys must be for one to be taken for a misspelling of the other (difflib's ratio)."""
_OTHER_SPELLING = {"tokenizer.ggml.separator_token_id": "tokenizer.ggml.seperator_token_id"}
"""The specification's spelling → gguf-py's and llama.cpp's, which read only their own."""


def types_of(key: str, architecture: str) -> tuple[str, ...] | None:
    """Return the types that a standard key may have: ('u32', '[i32]').

    () where it is known without a type, None for a key that is not known.
    """
    found = _types(architecture).get(_OTHER_SPELLING.get(key, key))
    if found is not None:
        return found
    return next((types for form, types in _patterns() if form.fullmatch(key)), None)


def suggestion(key: str, architecture: str) -> str | None:
    """Return the standard key that `key` is likely meant to be; None where none is near."""
    near = difflib.get_close_matches(key, _types(architecture), 1, _NEAR)
    return near[0] if near else None


def other_spelling(key: str) -> str | None:
    """Return the key that means the same in the other of two spellings; None for keys that have one."""
    back = {new: old for old, new in _OTHER_SPELLING.items()}
    return _OTHER_SPELLING.get(key) or back.get(key)


@cache
def _types(architecture: str) -> Mapping[str, tuple[str, ...]]:
    known = {
        key.replace("{arch}", architecture): types
        for key, types in _table().items()
        if "{" not in key or "{arch}" in key
    }
    keys = loader(architecture, "llama")
    for key, request in keys.keys.items() if keys else ():
        if not known.get(key):
            known[key] = tuple(kind for kind in request.types if kind not in ("any", "[]"))
    return known


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
    """Return expressions for keys with a number or a name in them: general.base_model.{id}.name."""
    forms = ((key, types) for key, types in _table().items() if "{" in key and "{arch}" not in key)
    part = {"id": r"\d+"}
    return tuple(
        (re.compile(_PLACEHOLDER.sub(lambda m: part.get(m[1], r"[\w-]+"), re.escape(key))), types)
        for key, types in forms
    )


@cache
def _table() -> Mapping[str, tuple[str, ...]]:
    lines = (line.split(" ") for line in LIST.read_text(encoding="ascii").splitlines() if line[:1] != "#")
    return {key: tuple(kind for kind in kinds.split("|") if kind not in ("any", "array")) for key, kinds in lines}
