"""Tokens that were added to a vocabulary after training, as Hugging Face's files list them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ggferry.formats.errors import CorruptError, InconsistentError, OutOfRangeError
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
        raise CorruptError("added token has no content", path=path, found=str(token))
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


def ids_in_tokenizers(vocabulary: Mapping[str, int], size: int, contents: Iterable[str]) -> dict[str, int]:
    """Return the ids that Hugging Face's tokenizers gives the added tokens of a tokenizer.json, which states others.

    It does not read the ids that the file states: a token of the vocabulary keeps its id there, and any other gets the
    next one (tokenizers 0.23.3, tokenizer/added_vocabulary.rs, add_tokens).

    Args:
        vocabulary: The ids of those trained tokens that are added tokens too, by text.
        size: How many trained tokens there are, whatever their ids.
        contents: The texts of the added tokens, in the order of the file.
    """
    texts = dict.fromkeys(contents)
    new = (text for text in texts if text not in vocabulary)
    return {text: vocabulary[text] for text in texts if text in vocabulary} | {
        text: size + number for number, text in enumerate(new)
    }


def check_ids(added: Sequence[Added], vocabulary: Any, rows: int | None, path: str) -> None:
    """Check that every added token of a tokenizer.json states the id at which tokenizers has it.

    Trained tokens whose ids have gaps are left to the proof: versions of the library continue them differently.

    Args:
        added: The added tokens in the order in which they are added.
        vocabulary: The trained tokens as the file has them: ids by text, or a unigram vocabulary's pieces in order.
        rows: Rows of the embedding, if known; tokens that have no row do not count.
        path: The file.

    Raises InconsistentError naming the first that differs.
    """
    ids = vocabulary if isinstance(vocabulary, dict) else _numbered(vocabulary)
    size = len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    if max((token for token in ids.values() if type(token) is int), default=-1) >= size:
        return
    trained = {one.content: ids[one.content] for one in added if type(ids.get(one.content)) is int}
    given = ids_in_tokenizers(trained, size, [one.content for one in added])
    for one in added:
        expected = given[one.content]
        if one.id != expected and min(one.id, expected) < (MAX_VOCAB if rows is None else rows):
            message = f"the added token {one.content!r} has another id than the tokenizers library gives it"
            hint = f"state the id {expected}, or restore the tokens that are missing"
            raise InconsistentError(message, path=path, found=one.id, expected=expected, hint=hint)


def _numbered(entries: Any) -> dict[str, int]:
    """Return the pieces of a unigram vocabulary with their ids, of equal ones the last; what is no piece has none."""
    many = entries if isinstance(entries, list) else []
    return {
        entry[0]: token
        for token, entry in enumerate(many)
        if isinstance(entry, list) and entry and isinstance(entry[0], str)
    }


def as_entry(added: Added) -> JSONObject:
    """Return the entry of tokenizer.json for `added`."""
    return asdict(added)
