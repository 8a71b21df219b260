"""Changes to the keys and the tensor names of a GGUF file: what is asked for, checked and worked out."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ggferry.converters.rewrite.keys.standard_keys import other_spelling, suggestion, types_of
from ggferry.converters.rewrite.keys.typed_text import is_plain, lines_of_change, parted, type_of, value_of
from ggferry.converters.rewrite.lineage import FILLER
from ggferry.formats.errors import CorruptError, RefusedError, UsageError
from ggferry.formats.files.named_texts import text_of
from ggferry.formats.gguf.shards import SHARD_KEYS
from ggferry.formats.gguf.values import ALIGNMENT_KEY, KEY_PATTERN, Value, ValueType, array, string, u32
from ggferry.formats.json_files.parse import parse_json
from ggferry.support.records import dataclass

TEMPLATE, TEMPLATES = "tokenizer.chat_template", "tokenizer.chat_templates"
_TOKEN_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "unknown": "unknown",
    "sep": "separator",
    "separator": "separator",
    "pad": "padding",
    "padding": "padding",
    "cls": "cls",
    "mask": "mask",
    "eot": "eot",
    "eom": "eom",
    "fim_pre": "fim_pre",
    "fim_suf": "fim_suf",
    "fim_mid": "fim_mid",
    "fim_pad": "fim_pad",
    "fim_rep": "fim_rep",
    "fim_sep": "fim_sep",
}
_ELEMENT = re.compile(r"(?P<key>.+)\[(?P<index>\d{1,9})\]")
_STRUCTURE = {
    ALIGNMENT_KEY: "ggferry convert --alignment lays the tensors out again",
    **dict.fromkeys(SHARD_KEYS, "ggferry split and ggferry merge write them"),
    FILLER: "it comes and goes by itself",
}
"""Keys that say how the file is laid out, and what changes them."""


@dataclass(frozen=True, slots=True)
class RequestedChanges:
    """What `edit` is asked to do.

    Attributes:
        set: KEY=VALUE[:TYPE] items; KEY[INDEX]=VALUE changes one item of an array.
        set_files: KEY=PATH[:TYPE] items; the value is the text of a file.
        remove: Keys, or shell patterns of keys.
        chat_template: A file with a template, or a JSON file with one or several.
        special_tokens: ROLE=ID or ROLE=TEXT items.
        rename: OLD=NEW names of tensors.
        unknown_keys: Whether keys that resemble a standard one are set as they are written.
        strip_mtp: Whether the blocks that predict further tokens are taken off.
    """

    set: Sequence[str] = ()
    set_files: Sequence[str] = ()
    remove: Sequence[str] = ()
    chat_template: str | None = None
    special_tokens: Sequence[str] = ()
    rename: Sequence[str] = ()
    unknown_keys: bool = False
    strip_mtp: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """What `edit` does to a file.

    Attributes:
        before: The keys that change, with the values they have; None for one that is added.
        after: The same keys with their new values; None for one that is removed.
        renamed: Old → new names of tensors.
        notes: What a user should know.
        dropped: Names of the tensors that are taken off.
    """

    before: Mapping[str, Value | None]
    after: Mapping[str, Value | None]
    renamed: Mapping[str, str]
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The changes as a diff: what goes after a minus, what comes after a plus."""
        found = []
        for key, new in self.after.items():
            found += lines_of_change(key, self.before[key], new)
        for old_name, new_name in self.renamed.items():
            found += [f"- tensor {old_name}", f"+ tensor {new_name}"]
        return [*found, *(f"- tensor {name}" for name in self.dropped)]

    def applied(self, metadata: Mapping[str, Value]) -> dict[str, Value]:
        """Return the keys of the file as they will be: changed ones in their place, new ones at the end."""
        merged = {**metadata, **{key: value for key, value in self.after.items() if value is not None}}
        return {key: value for key, value in merged.items() if self.after.get(key, value) is not None}


class Editor:
    """Works out what is asked for. Every method raises UsageError for what cannot be understood or does not fit."""

    def __init__(self, metadata: Mapping[str, Value], tensors: Sequence[str], unknown_keys: bool) -> None:
        self.metadata, self.tensors, self.unknown_keys = metadata, tensors, unknown_keys
        declared = metadata.get("general.architecture")
        self.architecture = str(declared.data) if declared is not None else ""
        self.after: dict[str, Value | None] = {}
        self.items: dict[str, dict[int, object]] = {}
        self.notes: list[str] = []

    def remove(self, pattern: str) -> None:
        """Remove a key, or all keys that match a shell pattern."""
        wild = any(mark in pattern for mark in "*?")
        names = [key for key in self.metadata if fnmatch.fnmatchcase(key, pattern)] if wild else [pattern]
        kept = [key for key in names if not (wild and key in _STRUCTURE)]
        if not kept or kept[0] not in self.metadata:
            near = suggestion_among(pattern, self.metadata)
            raise UsageError("--remove: no such key", found=pattern, hint=f"did you mean {near}?" if near else None)
        for key in kept:
            if key == "general.architecture":
                raise RefusedError("--remove: without it nothing says what model this is", found=key)
            self._put(key, None, "--remove")

    def set(self, item: str, option: str = "--set", text: str | None = None) -> None:
        """Set a key by KEY=VALUE[:TYPE]; `text`, where it is given, is the value instead of VALUE."""
        key, mark, declared = item.partition("=")
        if not mark or not key:
            raise UsageError(option, found=item, expected="KEY=VALUE or KEY=VALUE:TYPE")
        element = _ELEMENT.fullmatch(key)
        if element and text is None:
            self._set_item(element["key"], int(element["index"]), declared, option)
            return
        self._guard(key, option)
        value, kind = parted(declared)
        what = f"{option} {key}"
        if text is not None:
            value = text
        kind = self._checked_type(key, kind, value, what)
        self._put(key, value_of(value, kind, what), option)

    def set_file(self, item: str) -> None:
        """Set a key to the text of a file by KEY=PATH[:TYPE]."""
        key, mark, declared = item.partition("=")
        path, kind = parted(declared)
        if not mark or not path:
            raise UsageError("--set-file", found=item, expected="KEY=PATH or KEY=PATH:TYPE")
        text = text_of(path)
        known = kind or (type_of(self.metadata[key]) if key in self.metadata else None)
        standard = (types_of(key, self.architecture) or ("str",))[0]
        self.set(f"{key}=:{kind or known or standard}", "--set-file", text)

    def _checked_type(self, key: str, kind: str | None, text: str, what: str) -> str:
        """Return the type of a key: as stated, as it is now, as is standard, or text where only that can be meant."""
        if not re.fullmatch(KEY_PATTERN, key):
            raise UsageError(f"{what}: not a key", found=key, expected="lower_snake_case.parts in ASCII")
        old = type_of(self.metadata[key]) if key in self.metadata else None
        standard = types_of(key, self.architecture)
        if key not in self.metadata and standard is None and not self.unknown_keys:
            near = suggestion(key, self.architecture)
            if near:
                raise UsageError(
                    f"{what}: no standard key",
                    found=key,
                    expected=near,
                    hint="--allow-unknown-keys sets it as it is written",
                )
        allowed = tuple(dict.fromkeys((*(standard or ()), *((old,) if old else ()))))
        if kind is not None:
            if standard and kind not in allowed:
                raise UsageError(f"{what}: type", found=kind, expected=" or ".join(allowed))
            return kind
        likely: list[str] = [each for each in allowed if each.startswith("[") == text.startswith("[")] or list(allowed)
        if old is not None and old in likely:
            return old
        if likely:
            return likely[0]
        if is_plain(text):
            return "str"
        raise UsageError(
            f"{what}: its type is not stated", found=text, hint=f"{key}={text}:str, or :u32, :f32, :bool, :[i32] …"
        )

    def _set_item(self, key: str, index: int, declared: str, option: str) -> None:
        old = self.metadata.get(key)
        if old is None or old.type is not ValueType.ARRAY or old.items in (None, ValueType.ARRAY):
            raise UsageError(f"{option}: no array of plain items", found=key)
        if index >= len(old):
            raise UsageError(f"{option} {key}: item", found=index, expected=f"0..{len(old) - 1}")
        text, kind = parted(declared)
        own = (type_of(old) or "")[1:-1]
        if kind not in (None, own):
            raise UsageError(f"{option} {key}: type of an item", found=kind, expected=own)
        self._guard(key, option)
        if key in self.after:
            raise UsageError(f"{option}: key is changed twice", found=key)
        self.items.setdefault(key, {})[index] = value_of(text, own, f"{option} {key}[{index}]").data

    def _guard(self, key: str, option: str) -> None:
        if key in _STRUCTURE:
            raise RefusedError(f"{option}: {key} says how the file is laid out", hint=_STRUCTURE[key])
        if key.startswith("GGUF."):
            raise RefusedError(f"{option}: {key} is a field of the header, and is counted, not set")

    def _put(self, key: str, value: Value | None, option: str) -> None:
        self._guard(key, option)
        if key in self.after or key in self.items:
            raise UsageError(f"{option}: key is changed twice", found=key)
        self.after[key] = value

    def chat_template(self, path: str) -> None:
        """Set the chat templates to those of a file: one, or a JSON file's. Others that the file holds are removed."""
        text = text_of(path)
        declared: object = parse_json(text.encode(), path) if path.endswith(".json") else text
        declared = declared.get("chat_template") if isinstance(declared, dict) else declared
        named = {"default": declared} if isinstance(declared, str) else _named(declared, path)
        templates = {TEMPLATE: string(named["default"])} if "default" in named else {}
        others = {name: text for name, text in named.items() if name != "default"}
        templates |= {f"{TEMPLATE}.{name}": string(text) for name, text in others.items()}
        if others:
            templates[TEMPLATES] = array(ValueType.STRING, others)
        stale = [key for key in self.metadata if key.startswith(f"{TEMPLATE}.") or key in (TEMPLATE, TEMPLATES)]
        for key in dict.fromkeys((*stale, *templates)):
            if key not in templates or key not in self.metadata or self.metadata[key] != templates[key]:
                self._put(key, templates.get(key), "--chat-template")

    def special_token(self, item: str) -> None:
        """Set the id of a special token by ROLE=ID or ROLE=TEXT."""
        role, mark, declared = item.partition("=")
        if not mark or role not in _TOKEN_ROLES:
            raise UsageError("--special-token", found=item, expected=f"ROLE=ID or ROLE=TEXT; {', '.join(_TOKEN_ROLES)}")
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if tokens is None or tokens.items is not ValueType.STRING:
            raise UsageError("--special-token: the file has no vocabulary", found=item)
        number = _id_of(declared, tokens, item)
        key = f"tokenizer.ggml.{_TOKEN_ROLES[role]}_token_id"
        for each in (key, other_spelling(key)):
            if each:
                self._put(each, u32(number), "--special-token")

    def finished(self, rename: Sequence[str]) -> Changes:
        """Return all changes, without those that change nothing."""
        for key, items in self.items.items():
            old = self.metadata[key]
            data = list(old.data)
            for index, item in items.items():
                data[index] = item
            self.after[key] = replace(old, data=tuple(data))
        after = {key: value for key, value in self.after.items() if value != self.metadata.get(key)}
        for key in after:
            other = other_spelling(key)
            if other and other not in after and after[key] != self.metadata.get(other):
                self.notes.append(
                    f"{key} is also spelt {other}, which is not changed; --special-token sep=ID sets both"
                )
        before = {key: self.metadata.get(key) for key in after}
        return Changes(before, after, self._renamed(rename), tuple(self.notes))

    def _renamed(self, items: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for item in items:
            old, mark, new = item.partition("=")
            if not mark or not new or old in found:
                raise UsageError("--rename-tensor", found=item, expected="OLD=NEW, each tensor once")
            if old not in self.tensors:
                near = suggestion_among(old, self.tensors)
                raise UsageError(
                    "--rename-tensor: no such tensor", found=old, hint=f"did you mean {near}?" if near else None
                )
            found[old] = new
        names = [found.get(name, name) for name in self.tensors]
        twice = next((name for name in found.values() if names.count(name) > 1), None)
        if twice:
            raise UsageError("--rename-tensor: the name is taken", found=twice)
        return {old: new for old, new in found.items() if old != new}


def suggestion_among(text: str, names: Sequence[str] | Mapping[str, object]) -> str | None:
    """Return the name that is most like `text`; None where none is."""
    import difflib

    near = difflib.get_close_matches(text, list(names), 1)
    return near[0] if near else None


def _id_of(declared: str, tokens: Value, item: str) -> int:
    """Return a token's id, stated as a number or as its text."""
    if declared.isdecimal() and declared.isascii():
        if int(declared) >= len(tokens):
            raise UsageError("--special-token: no such token", found=item, expected=f"0..{len(tokens) - 1}")
        return int(declared)
    places = [number for number, text in enumerate(tokens.data) if text == declared]
    if len(places) != 1:
        found = f"{item}: {len(places)} tokens of this text"
        raise UsageError("--special-token", found=found, expected="one", hint="give its id" if places else None)
    return places[0]


def _named(declared: object, path: str) -> dict[str, str]:
    """Return the templates of a tokenizer_config.json that names several."""
    entries = declared if isinstance(declared, list) else []
    found = {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }
    wrong = [name for name in found if not re.fullmatch(r"[A-Za-z0-9_-]+", name)]
    if not found or len(found) != len(entries) or wrong:
        raise CorruptError(
            "no chat template, or none that has a name and a text", path=path, found=wrong[0] if wrong else None
        )
    return found


def changes_of(requested: RequestedChanges, metadata: Mapping[str, Value], tensors: Sequence[str]) -> Changes:
    """Return what is to be done. Raises UsageError, RefusedError for keys of the file's layout."""
    editor = Editor(metadata, tensors, requested.unknown_keys)
    for pattern in requested.remove:
        editor.remove(pattern)
    for item in requested.set:
        editor.set(item)
    for item in requested.set_files:
        editor.set_file(item)
    for item in requested.special_tokens:
        editor.special_token(item)
    if requested.chat_template is not None:
        editor.chat_template(requested.chat_template)
    return editor.finished(requested.rename)
