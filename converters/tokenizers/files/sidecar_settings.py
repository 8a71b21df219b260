"""What a checkpoint's sidecar files say about its tokenizer: added tokens, special roles, flags, chat templates."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added, read_added, read_all_added
from ggferry.converters.tokenizers.libraries.cross_check import ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import SPECIAL_KEYS, Tokenizer, TokenType
from ggferry.formats.checkpoint_folder.sidecars import tokenizer_names
from ggferry.formats.errors import NotFoundError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_known
from ggferry.formats.json_files.text import read_text as read_text_bytes
from ggferry.support.records import dataclass

TEMPLATE_FOLDER = "additional_chat_templates"
MAX_TEMPLATES = 256
ROLES = tuple(role for role in SPECIAL_KEYS if role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
STATING = ("tokenizer_config.json", "special_tokens_map.json", "config.json", "generation_config.json")
TEXT_END = "<|endoftext|>"  # GPT-NeoX-20B's, which RWKV's Pile models use: BlinkDL's 20B_tokenizer.json stands alone
TURN_ENDS: Mapping[str, str] = {"<|eot_id|>": "eot", "<|eom_id|>": "eom", "<|im_end|>": "eot", "<end_of_turn>": "eot"}


@dataclass(frozen=True, slots=True)
class TokenizerInputs:
    """What a source is asked for.

    Attributes:
        sidecars: The files.
        added: The tokens added after training.
        rows: Rows of the embedding; None if unknown.
        pre: Name of a pre-tokenizer that overrides the derived one.
    """

    sidecars: Sidecars
    added: tuple[Added, ...]
    rows: int | None = None
    pre: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What a module of this folder exposes as SOURCE.

    Attributes:
        name: Name of the source.
        order: The lowest is asked first.
        files: Names of its files, for the message when none is there.
        probe: Returns whether the files it reads are there.
        load: Returns the tokenizer with added tokens, but without special roles and flags.
        reference: Returns the library that such models are made with and what it reads; None where there is none.
    """

    name: str
    order: int
    files: str
    probe: Callable[[Sidecars], bool]
    load: Callable[[TokenizerInputs], Tokenizer]
    reference: Callable[[TokenizerInputs], ReferenceTokenizer | None] = lambda _: None


class Sidecars:
    """Files by base name (`files`: base name → path), whose JSON is read once."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)
        self._json: JSONObject = {}
        self._digests: dict[str, bytes] = {}
        self._preset: set[str] = set()

    @classmethod
    def of(cls, where: str | Mapping[str, str]) -> Sidecars:
        """Return the sidecars of a directory, or of a mapping whose values are paths (`Checkpoint.sidecars`).

        A key that is a known file name stands for it, whatever the file is called.
        """
        if not isinstance(where, str):
            where = {role: path for role, path in where.items() if "/" not in role}  # those in folders of modules
            files = {os.path.basename(path): path for path in where.values()}
            files |= {name: path for name, path in where.items() if name in tokenizer_names()}
            folders = {os.path.dirname(path) for path in where.values()}
            return cls(files | _templates(folders))
        if not os.path.isdir(where):
            raise NotFoundError("no such directory", path=where)
        files = {name: os.path.join(where, name) for name in tokenizer_names()}
        return cls({name: path for name, path in files.items() if os.path.lexists(path)} | _templates([where]))

    def path(self, name: str) -> str | None:
        return self.files.get(name)

    def object(self, name: str) -> JSONObject:
        """Return the JSON object in file `name`; empty when there is no such file."""
        if name not in self.files:
            return {}
        if name not in self._json:
            self._json[name], self._digests[name] = load_known(self.files[name])
        found: JSONObject = self._json[name]
        return found

    def text(self, name: str, key: str) -> str:
        """Return the text under `key` of the JSON object in file `name`; "" where there is none."""
        return json_kinds.text(self.object(name), key, self.path(name), "")

    def digest(self, name: str) -> bytes | None:
        """Return the digest of the bytes that hold `object(name)`; None where no file holds it."""
        self.object(name)
        return self._digests.get(name)

    def raw(self, name: str) -> bytes:
        """Return the bytes that hold `object(name)`, without a byte-order mark."""
        if name in self._preset:
            return json.dumps(self._json[name]).encode()
        return read_text_bytes(self.files[name])[0]

    def preset(self, name: str, value: JSONObject) -> None:
        """Make `value` what `object(name)` returns."""
        self._json[name] = value
        self._preset.add(name)

    @property
    def place(self) -> str | None:
        """Return a path to name in errors about what is missing."""
        path = next(iter(self.files.values()), None)
        return None if path is None else os.path.dirname(path)


def _templates(folders: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in sorted(folders):
        inner = os.path.join(folder, TEMPLATE_FOLDER)
        names = sorted(os.listdir(inner))[:MAX_TEMPLATES] if os.path.isdir(inner) else []
        found |= {f"{TEMPLATE_FOLDER}/{name}": os.path.join(inner, name) for name in names if name.endswith(".jinja")}
    return found


def added_tokens(sidecars: Sidecars) -> tuple[Added, ...]:
    """Return the added tokens of tokenizer.json, else tokenizer_config.json, else added_tokens.json; by id."""
    found: dict[int, Added] = {}
    plain = sidecars.path("added_tokens.json")
    if plain is not None:
        for content, token in sidecars.object("added_tokens.json").items():
            one = read_added(token, {"content": content}, plain)
            found[one.id] = one
    config = sidecars.path("tokenizer_config.json") or ""
    decoder = json_kinds.members(sidecars.object("tokenizer_config.json"), "added_tokens_decoder", config)
    for token, entry in decoder.items():
        one = read_added(token, entry, config)
        found[one.id] = one
    whole = read_all_added(sidecars.object("tokenizer.json"), sidecars.path("tokenizer.json") or "")
    found |= {one.id: one for one in whole}
    return tuple(found[token] for token in sorted(found))


def with_roles(tokenizer: Tokenizer, sidecars: Sidecars) -> Tokenizer:
    """Return `tokenizer` with the ids of its special tokens.

    A token named in tokenizer_config.json or special_tokens_map.json wins over an id in config.json or
    generation_config.json. Such an id counts only where it is a special token, because many configs have the defaults
    of their class, which point at ordinary pieces.
    """
    last = len(tokenizer.tokens) - 1
    by_text = dict(zip(reversed(tokenizer.tokens), range(last, -1, -1), strict=True))  # of equal texts the first
    ids, origins, notes = dict(tokenizer.ids), dict(tokenizer.origins), []
    for role in ROLES:
        named = _named(role, by_text, sidecars)
        numbered = _numbered(role, sidecars, len(tokenizer.tokens))
        if named is not None:
            ids[role], origins[role] = named
        elif numbered is not None and role not in ids:
            token, origin = numbered
            if tokenizer.type_of(token) == TokenType.NORMAL:
                notes.append(
                    f"{role}_token_id {token} of {origin} is the ordinary piece {tokenizer.tokens[token]!r}: not taken"
                )
            else:
                ids[role], origins[role] = token, origin
        if numbered is not None and role in ids and ids[role] != numbered[0] and named is not None:
            notes.append(
                f"{numbered[1]} gives {role} as {numbered[0]}, {origins[role]} as {ids[role]} "
                f"({tokenizer.tokens[ids[role]]!r}): the latter is taken"
            )
    if not any(sidecars.path(name) for name in STATING) and not {"bos", "eos"} <= ids.keys():
        end = by_text.get(TEXT_END, -1)
        if end >= 0 and tokenizer.type_of(end) == TokenType.CONTROL:
            ids, origins = {"bos": end, "eos": end} | ids, {"bos": TEXT_END, "eos": TEXT_END} | origins
            notes.append(f"no file states special tokens: {TEXT_END} begins and ends a text, as GPT-NeoX's does")
    for role, token in _turn_ends(tokenizer, sidecars, ids.get("eos")).items():
        if role not in ids:
            ids[role], origins[role] = token, "generation_config.json"
    return replace(tokenizer, ids=ids, origins=origins, notes=(*tokenizer.notes, *notes))


def _named(role: str, by_text: Mapping[str, int], sidecars: Sidecars) -> tuple[int, str] | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        content = special_text(sidecars.object(name), f"{role}_token", sidecars.path(name))
        if content is not None and content in by_text:
            return by_text[content], name
    return None


def special_text(of: json_kinds.Object, key: str, path: str | None) -> str | None:
    """Return the text of a special token, which such files state as a string or as an object that holds it."""
    entry = of.get(key)
    return json_kinds.text(entry, "content", path) if isinstance(entry, dict) else json_kinds.text(of, key, path)


def token_ids(of: json_kinds.Object, key: str, path: str | None) -> list[int]:
    """Return the ids under `key`, which is one id or a list. Many files state -1 for none."""
    declared = of.get(key)
    listed = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(type(token) is int for token in listed):
        raise json_kinds.wrong_kind(key, declared, path, "a token's id, or a list of them")
    return listed


def _numbered(role: str, sidecars: Sidecars, count: int) -> tuple[int, str] | None:
    for name in ("config.json", "generation_config.json"):
        for token in token_ids(sidecars.object(name), f"{role}_token_id", sidecars.path(name))[:1]:
            if 0 <= token < count:
                return token, name
    return None


def _turn_ends(tokenizer: Tokenizer, sidecars: Sidecars, eos: int | None) -> dict[str, int]:
    """Return the ends of turn among the several end tokens of generation_config.json, identified by their texts."""
    name = "generation_config.json"
    found: dict[str, int] = {}
    for token in token_ids(sidecars.object(name), "eos_token_id", sidecars.path(name)):
        if 0 <= token < len(tokenizer.tokens) and token != eos:
            role = TURN_ENDS.get(tokenizer.tokens[token])
            if role is not None:
                found.setdefault(role, token)
    return found


_WHERE = {"add_bos": "before", "add_eos": "behind"}


def with_flags(tokenizer: Tokenizer, sidecars: Sidecars) -> Tokenizer:
    """Return `tokenizer` with add_bos and add_eos.

    They come from tokenizer.json's post_processor, else tokenizer_config.json, else what `tokenizer` already states,
    else they are False.
    """
    flags, origins, notes = dict(tokenizer.flags), dict(tokenizer.origins), list(tokenizer.notes)
    ids = dict(tokenizer.ids)
    processor = sidecars.object("tokenizer.json").get("post_processor")
    before, after, between = framing(processor, sidecars.path("tokenizer.json"))
    config, place = sidecars.object("tokenizer_config.json"), sidecars.path("tokenizer_config.json")
    for flag, role, around in (("add_bos", "bos", before), ("add_eos", "eos", after)):
        declared = json_kinds.flag(config, f"{flag}_token", place)
        if around is not None:
            flags[flag], origins[flag] = bool(around), "tokenizer.json's post_processor"
            found = _id(around[0], tokenizer) if around else None
            if found is not None and role not in ids:
                ids[role], origins[role] = found, origins[flag]
            if around and (len(around) > 1 or ids.get(role) != found):
                flags[flag] = flags[flag] and ids.get(role) == found
                done = f"{flag} sets the first of them alone" if flags[flag] else f"{flag} is not set"
                put = f"{' '.join(around)} {_WHERE[flag]} a text"
                notes.append(f"the tokenizer puts {put}, which GGUF cannot say: {done}")
        elif declared is not None:
            flags[flag], origins[flag] = declared, "tokenizer_config.json"
        else:
            flags.setdefault(flag, False)
        if flags[flag] and role not in ids:
            flags[flag] = False
            notes.append(f"{flag} is asked for but no {role} token is known: not set, runtimes would refuse the file")
    if between is not None:
        flags["add_sep"] = len(between) > 1
    return replace(tokenizer, flags=flags, ids=ids, origins=origins, notes=tuple(notes))


def _id(text: str, tokenizer: Tokenizer) -> int | None:
    return tokenizer.tokens.index(text) if text in tokenizer.tokens else None


def framing(node: Any, path: str | None) -> tuple[list[str] | None, list[str] | None, list[str] | None]:
    """Return the special tokens that a post_processor puts before, after and between texts.

    They are None where it says nothing.
    """
    nodes = [node]
    while nodes:
        node = nodes.pop(0)
        if node is None:
            continue
        kind = json_kinds.text(json_kinds.as_object(node, "post_processor", path), "type", path)
        if kind == "Sequence":
            nodes += json_kinds.items(node, "processors", path)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            cls, sep = (_first_text(node, name, path) for name in ("cls", "sep"))
            return [cls], [sep], [sep] * (2 if kind == "RobertaProcessing" else 1)
        elif kind == "TemplateProcessing":
            single, pair = _items(node, "single", path), _items(node, "pair", path)
            at = single.index(None) if None in single else len(single)
            holes = [i for i, item in enumerate(pair) if item is None]
            between = pair[holes[0] + 1 : holes[1]] if len(holes) == 2 else []
            return (
                [item for item in single[:at] if item],
                [item for item in single[at + 1 :] if item],
                [item for item in between if item],
            )
    return None, None, None


def _first_text(of: json_kinds.Object, key: str, path: str | None) -> str:
    """Return the text of a pair ["[SEP]", 102]."""
    pair = json_kinds.items(of, key, path)
    if not pair or not isinstance(pair[0], str):
        raise json_kinds.wrong_kind(key, pair, path, "a token's text and id")
    return pair[0]


def _items(of: json_kinds.Object, key: str, path: str | None) -> list[str | None]:
    """Return a template as texts of special tokens, with None for the text itself."""
    templates = (json_kinds.members(item, "SpecialToken", path) for item in json_kinds.objects(of, key, path))
    return [json_kinds.text(special, "id", path, "") if special else None for special in templates]


def with_templates(tokenizer: Tokenizer, sidecars: Sidecars) -> Tokenizer:
    """Return `tokenizer` with all chat templates, as text: they are never parsed and never rendered."""
    found: dict[str, str] = {}
    origins, notes = dict(tokenizer.origins), list[str]()

    def add(name: str, text: str | None, origin: str) -> None:
        key = "" if name == "default" else re.sub(r"[^A-Za-z0-9_-]", "_", name)
        if text is not None and len(found) < MAX_TEMPLATES:
            place = f"chat_template.{key}" if key else "chat_template"
            if found.get(key, text) != text:
                notes.append(f"{origins[place]} and {origin} have different chat templates: the latter's is taken")
            found[key] = text
            origins[place] = origin

    for file in ("tokenizer_config.json", "chat_template.json"):
        declared, path = sidecars.object(file), sidecars.path(file)
        if isinstance(declared.get("chat_template"), list):
            for entry in json_kinds.objects(declared, "chat_template", path):
                name = json_kinds.text(entry, "name", path)
                if name is None:
                    raise json_kinds.wrong_kind("chat_template", entry, path, "templates with a name each")
                add(name, json_kinds.text(entry, "template", path), file)
        else:
            add("default", json_kinds.text(declared, "chat_template", path), file)
    for name in sorted(sidecars.files):
        if name == "chat_template.jinja":
            add("default", read_text(sidecars.files[name]), name)
        elif name.startswith(TEMPLATE_FOLDER + "/"):
            path = sidecars.files[name]
            text = read_text(path, root=os.path.dirname(os.path.dirname(path)))
            add(os.path.basename(name).removesuffix(".jinja"), text, name)
    tokenizer = replace(tokenizer, templates=found or tokenizer.templates, origins=origins)
    return tokenizer.noted(*notes)
