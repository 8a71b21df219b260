"""Tokens that were added to a vocabulary after training, as Hugging Face's files list them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ggferry.formats.errors import CorruptError, OutOfRangeError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.limits import MAX_VOCAB
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Added:
    """One entry of added_tokens (tokenizer.json) or added_tokens_decoder (tokenizer_config.json)."""

    id: int
    content: str
    special: bool = False
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


def read_added(token: Any, entry: Any, path: str) -> Added:
    """Return the entry `entry` for id `token`, with its types checked."""
    entry = json_kinds.as_object(entry, f"added token {token}", path)
    content = json_kinds.text(entry, "content", path)
    if not content:
        raise CorruptError("an added token without content", path=path, found=str(token))
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10:
        token = int(token)
    if type(token) is not int or not 0 <= token < MAX_VOCAB:
        raise OutOfRangeError("id of an added token", path=path, found=str(token), expected=f"0 … {MAX_VOCAB - 1}")
    names = ("special", "normalized", "lstrip", "rstrip", "single_word")
    return Added(token, content, **{name: json_kinds.flag(entry, name, path, False) for name in names})


def read_all_added(document: json_kinds.Object, path: str) -> tuple[Added, ...]:
    """Return the list of added tokens in tokenizer.json, checked."""
    entries = json_kinds.objects(document, "added_tokens", path)
    return tuple(read_added(entry.get("id"), entry, path) for entry in entries)


def as_entry(added: Added) -> JSONObject:
    """Return the entry of tokenizer.json for `added`."""
    return asdict(added)
