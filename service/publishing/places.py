"""Keep local paths, tokens and what is secret in URLs out of what is published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ggferry.converters.metadata.key_table import is_local
from ggferry.formats.gguf.values import Value
from ggferry.service.storage.urls import mask

_TOKEN = re.compile(r"\b(?:hf|hf_oauth|sk|ghp|github_pat)_[A-Za-z0-9_]{16,}")
_ROOTS = "home|Users|root|tmp|mnt|media|data|var|work|workspace|scratch|srv|opt|Volumes|private"
_PATH = re.compile(rf"(?<![\w/:.])(?:/(?:{_ROOTS})/|~/|[A-Za-z]:\\)[^\s'\"`,;:()<>|]*")
_LONGEST = 4096
"""Characters of a metadata value that is examined; a longer one is a template or a list."""


def published_text(text: str) -> str:
    """Return a text with file names in place of local paths, and without tokens and secrets of URLs."""
    if is_local(text) and "\n" not in text:
        return _last_part(text.strip())
    return without_tokens(_PATH.sub(lambda found: _last_part(found[0]), mask(text)))


def without_tokens(text: str) -> str:
    """Return a text without the access tokens in it."""
    return _TOKEN.sub("[token]", text)


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def published_json(value: Any, place: str = "") -> tuple[Any, list[str]]:
    """Return a JSON value whose texts are as `published_text` makes them, and the places of those that were changed."""
    if isinstance(value, str):
        text = published_text(value)
        return text, [place] if text != value else []
    changed: list[str] = []
    if isinstance(value, dict):
        members = {}
        for key, item in value.items():
            members[key], found = published_json(item, f"{place}.{key}" if place else key)
            changed += found
        return members, changed
    if isinstance(value, list):
        items = []
        for number, item in enumerate(value):
            made, found = published_json(item, f"{place}[{number}]")
            items.append(made)
            changed += found
        return items, changed
    return value, changed


def secret_keys(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a GGUF file whose values are local paths or hold tokens."""
    for key, value in metadata.items():
        data = value.data if isinstance(value, Value) else value
        short = isinstance(data, str) and len(data) <= _LONGEST and not key.startswith("tokenizer.")
        if short and (_TOKEN.search(data) or (is_local(data) and len(data.strip()) > 1)):
            yield key
