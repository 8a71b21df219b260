"""A vocabulary as GGUF holds it: a frozen value, read from and written to metadata, and encoders' interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Protocol

from ggferry.formats.errors import (
    CorruptError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    RefusedError,
    UnsupportedError,
)
from ggferry.formats.gguf.values import Value, ValueType, array, boolean, string, u32
from ggferry.support.records import dataclass
from ggferry.support.registry import scan

SPACE = "\u2581"  # SentencePiece's visible space; GGUF keeps it in the token texts
PREFIX = "tokenizer."
GGML = "tokenizer.ggml."


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`; the numbers are SentencePiece's own (sentencepiece_model.proto)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Role of a special token → the keys that name its id. The first key is read first; all are written. The
# specification spells "separator", gguf-py and llama.cpp "seperator" (gguf-py constants.py, class Keys.Tokenizer).
SPECIAL_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bos": ("bos_token_id",),
        "eos": ("eos_token_id",),
        "eot": ("eot_token_id",),
        "eom": ("eom_token_id",),
        "unk": ("unknown_token_id",),
        "sep": ("separator_token_id", "seperator_token_id"),
        "pad": ("padding_token_id",),
        "cls": ("cls_token_id",),
        "mask": ("mask_token_id",),
        "fim_pre": ("fim_pre_token_id",),
        "fim_suf": ("fim_suf_token_id",),
        "fim_mid": ("fim_mid_token_id",),
        "fim_pad": ("fim_pad_token_id",),
        "fim_rep": ("fim_rep_token_id",),
        "fim_sep": ("fim_sep_token_id",),
    }
)

FLAG_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "add_bos": "add_bos_token",
        "add_eos": "add_eos_token",
        "add_sep": "add_sep_token",
        "add_space_prefix": "add_space_prefix",
        "remove_extra_whitespaces": "remove_extra_whitespaces",
        "lowercase": "normalizer.lowercase",
        "strip_accents": "normalizer.strip_accents",
    }
)

CHAT_TEMPLATE = "tokenizer.chat_template"
CHAT_TEMPLATES = "tokenizer.chat_templates"
HUGGINGFACE_JSON = "tokenizer.huggingface.json"


class Encoder(Protocol):
    """Encodes text to ids and decodes ids, using nothing but what a GGUF file holds."""

    def encode(self, text: str, bos: bool | None = None, special: bool = False) -> list[int]:
        """Return the ids of `text`.

        Args:
            text: The text.
            bos: None follows the file's add_bos and add_eos flags. True and False override add_bos; False leaves out
                everything that is added.
            special: Whether the texts of control tokens become their ids.
        """
        ...

    def decode(self, ids: Sequence[int], special: bool = False) -> bytes:
        """Return the bytes that `ids` stand for; control tokens are left out unless `special`."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerKind:
    """What a module of `encoders/` exposes as SPEC.

    Attributes:
        name: Name of the kind.
        models: Values of `tokenizer.ggml.model` that the encoder understands.
        encoder: Makes an encoder of a tokenizer.
    """

    name: str
    models: tuple[str, ...]
    encoder: Callable[[Tokenizer], Encoder]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary and everything GGUF says about it.

    Attributes:
        model: `tokenizer.ggml.model`.
        tokens: Text of each id as GGUF spells it; bytes that are not UTF-8 are surrogate escapes.
        scores: Score of each id.
        types: TokenType of each id.
        merges: "left right" in rank order.
        pre: `tokenizer.ggml.pre`.
        ids: Role (SPECIAL_KEYS) → id.
        flags: By the names of FLAG_KEYS.
        templates: Chat templates by name, "" for the default one; they are text and never rendered.
        charsmap: SentencePiece's precompiled normalizer.
        token_type_count: `tokenizer.ggml.token_type_count`.
        huggingface_json: The text of tokenizer.json, where it is stored in the output.
        extra: Further metadata, by full key.
        notes: What was repaired or assumed, and why.
        origins: Where the value of a role, a flag or a field came from.
    """

    model: str
    tokens: tuple[str, ...]
    scores: tuple[float, ...] | None = None
    types: tuple[int, ...] | None = None
    merges: tuple[str, ...] | None = None
    pre: str | None = None
    ids: Mapping[str, int] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    charsmap: bytes | None = None
    token_type_count: int | None = None
    huggingface_json: str | None = None
    extra: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def type_of(self, token: int) -> int:
        """Return the TokenType of a token."""
        return TokenType.NORMAL if self.types is None else self.types[token]

    def texts(self) -> tuple[str, ...]:
        """The texts in it, which are all that is large."""
        return (*self.tokens, *(self.merges or ()))

    def noted(self, *notes: str) -> Tokenizer:
        """Return the tokenizer with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def to_kv(self) -> dict[str, Value]:
        """Return its GGUF keys in a fixed order: equal tokenizers give equal bytes."""
        kv: dict[str, Value] = {GGML + "model": string(self.model)} if self.model else {}
        if self.pre is not None:
            kv[GGML + "pre"] = string(self.pre)
        kv[GGML + "tokens"] = array(ValueType.STRING, self.tokens)
        if self.scores is not None:
            kv[GGML + "scores"] = array(ValueType.FLOAT32, self.scores)
        if self.types is not None:
            kv[GGML + "token_type"] = array(ValueType.INT32, map(int, self.types))
        if self.merges is not None:
            kv[GGML + "merges"] = array(ValueType.STRING, self.merges)
        if self.token_type_count is not None:
            kv[GGML + "token_type_count"] = u32(self.token_type_count)
        for role, keys in SPECIAL_KEYS.items():
            kv |= {GGML + key: u32(self.ids[role]) for key in keys if role in self.ids}
        for flag, key in FLAG_KEYS.items():
            if flag in self.flags:
                kv[GGML + key] = boolean(self.flags[flag])
        if self.charsmap is not None:
            kv[GGML + "precompiled_charsmap"] = array(ValueType.UINT8, self.charsmap)
        named = sorted(name for name in self.templates if name)
        if "" in self.templates:
            kv[CHAT_TEMPLATE] = string(self.templates[""])
        if named:
            kv[CHAT_TEMPLATES] = array(ValueType.STRING, named)
        kv |= {f"{CHAT_TEMPLATE}.{name}": string(self.templates[name]) for name in named}
        if self.huggingface_json is not None:
            kv[HUGGINGFACE_JSON] = string(self.huggingface_json)
        return kv | {key: self.extra[key] for key in sorted(self.extra) if key not in kv}

    @staticmethod
    def from_kv(metadata: Mapping[str, Value], *, rows: int | None = None, path: str | None = None) -> Tokenizer:
        """Return the tokenizer that GGUF metadata describe; keys not under `tokenizer.` are ignored.

        Args:
            metadata: The keys of the file.
            rows: Rows of the embedding, when they are to be compared.
            path: The file's path, for errors.

        Raises:
            MissingError: There is no vocabulary.
            CorruptError: A value has the wrong type.
            InconsistentError: Lengths or merges do not fit.
            OutOfRangeError: Ids, types or byte tokens are outside their range.
        """
        return _Keys(metadata, path).tokenizer(rows)

    def padded(self, rows: int, *, trim: bool = False, path: str | None = None) -> Tokenizer:
        """The vocabulary brought to `rows`, the number of embedding rows, by one of three named repairs:

        pad         fewer tokens than rows: `[PADi]` of type UNUSED fills the gap
        trim-added  more tokens than rows, the surplus never came out of training (control, user-defined, unused):
                    dropped, no row holds a value for them
        trim-pieces more tokens than rows, pieces among the surplus: only when `trim` asks for it, else RefusedError
        """
        count = len(self.tokens)
        if rows == count:
            return self
        if rows > count:
            taken = set(self.tokens)
            names = [unique(f"[PAD{i}]", taken) for i in range(count, rows)]
            return self.extended(names, TokenType.UNUSED, -10000.0).noted(
                f"repair 'pad': {rows - count} embedding rows without a token became {names[0]}"
                + (f" … {names[-1]}" if len(names) > 1 else "")
                + ", type unused"
            )
        pieces = [i for i in range(rows, count) if self.type_of(i) in (TokenType.NORMAL, TokenType.BYTE)]
        if pieces and not trim:
            raise RefusedError(
                f"the vocabulary has {count} tokens but the embedding {rows} rows; {len(pieces)} of the surplus are "
                f"pieces of the vocabulary proper, the first is id {pieces[0]}",
                path=path,
                found=self.tokens[pieces[0]],
                hint="--trim-vocab drops them and the merges that make them",
            )
        return self._trimmed(rows, "trim-pieces" if pieces else "trim-added")

    def extended(self, names: Sequence[str], kind: int, score: float) -> Tokenizer:
        """Return the tokenizer with `names` appended as tokens of type `kind`."""
        return replace(
            self,
            tokens=(*self.tokens, *names),
            types=None if self.types is None else (*self.types, *[int(kind)] * len(names)),
            scores=None if self.scores is None else (*self.scores, *[score] * len(names)),
        )

    def _trimmed(self, rows: int, repair: str) -> Tokenizer:
        gone = set(self.tokens[rows:])
        merges = self.merges
        if merges is not None and repair == "trim-pieces":
            merges = tuple(m for m in merges if not gone & {*split_merge(m), "".join(split_merge(m))})
        lost = sorted(role for role, token in self.ids.items() if token >= rows)
        shown = ", ".join(repr(text) for text in self.tokens[rows : rows + 4])
        note = f"repair '{repair}': {len(gone)} tokens without an embedding row dropped ({shown}"
        note += " …)" if len(gone) > 4 else ")"
        if lost:
            note += f"; {', '.join(lost)} pointed at them and is no longer set"
        return replace(
            self,
            tokens=self.tokens[:rows],
            types=None if self.types is None else self.types[:rows],
            scores=None if self.scores is None else self.scores[:rows],
            merges=merges,
            ids={role: token for role, token in self.ids.items() if token < rows},
        ).noted(note)


def encoder(tokenizer: Tokenizer) -> Encoder:
    """Return the reference encoder for `tokenizer`. Raises UnsupportedError for a model that has none here."""
    kinds = scan("ggferry.converters.tokenizers.encoders", "SPEC")
    for kind in kinds:
        if tokenizer.model in kind.models:
            found: Encoder = kind.encoder(tokenizer)
            return found
    known = sorted({model for kind in kinds for model in kind.models})
    raise UnsupportedError("no encoder for this tokenizer model", found=tokenizer.model, expected=", ".join(known))


def byte_of(text: str) -> int | None:
    """Return the byte that a token spelled `<0xHH>` stands for, or None."""
    if len(text) == 6 and text.startswith("<0x") and text[5] == ">":
        try:
            return int.from_bytes(bytes.fromhex(text[3:5]), "big")
        except ValueError:
            return None
    return None


def byte_token(value: int) -> str:
    """Return the spelling `<0xHH>` of a byte."""
    return f"<0x{value:02X}>"


def split_merge(merge: str) -> tuple[str, str]:
    """Return both halves of "left right"; a half may itself begin with the blank of a vocabulary with real spaces."""
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, with primes until it is not in `taken`, and add it there (llama.cpp asserts unique texts)."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name


class _Keys:
    """Reads and checks the tokenizer's metadata."""

    def __init__(self, metadata: Mapping[str, Value], path: str | None) -> None:
        self.left = {key: value for key, value in metadata.items() if key.startswith(PREFIX)}
        self.path = path

    def tokenizer(self, rows: int | None) -> Tokenizer:
        tokens = self.array("tokens", str)
        if tokens is None:
            raise MissingError("no vocabulary", path=self.path, expected=GGML + "tokens")
        if rows is not None and rows != len(tokens):
            raise InconsistentError(
                "the vocabulary does not fit the embedding",
                path=self.path,
                found=f"{len(tokens)} tokens",
                expected=f"{rows} rows",
            )
        scores, types = self.array("scores", float), self.array("token_type", int)
        for name, values in (("scores", scores), ("token_type", types)):
            if values is not None and len(values) != len(tokens):
                raise InconsistentError(
                    f"{GGML}{name} has another length than the vocabulary",
                    path=self.path,
                    found=len(values),
                    expected=len(tokens),
                )
        self.check_scores(scores or ())
        self.check_types(tokens, types)
        merges = self.array("merges", str)
        model = self.scalar("model", str)
        if merges and model == "gpt2":
            self.check_merges(tokens, merges)
        charsmap = self.array("precompiled_charsmap", int)
        return Tokenizer(
            model="" if model is None else model,
            tokens=tokens,
            scores=scores,
            types=types,
            merges=merges,
            pre=self.scalar("pre", str),
            ids=self.special_ids(len(tokens)),
            flags={flag: value for flag, key in FLAG_KEYS.items() if (value := self.scalar(key, bool)) is not None},
            templates=self.templates(),
            charsmap=None if charsmap is None else bytes(value & 0xFF for value in charsmap),
            token_type_count=self.scalar("token_type_count", int),
            huggingface_json=self.scalar("huggingface.json", str, prefix=PREFIX),
            extra=self.left,
        )

    def scalar(self, key: str, kind: type, prefix: str = GGML) -> Any:
        value = self.left.pop(prefix + key, None)
        if value is None:
            return None
        # int and bool are kept apart: a flag stored as a number is somebody's mistake, not ours to read
        if type(value.data) is not kind:
            self.wrong_type(prefix + key, value, kind.__name__)
        return value.data

    def array(self, key: str, kind: type) -> Any:
        value = self.left.pop(GGML + key, None)
        if value is None:
            return None
        allowed = (int, float) if kind is float else (kind,)  # llama.cpp reads whole-numbered scores too
        if value.type is not ValueType.ARRAY or any(type(item) not in allowed for item in value.data):
            self.wrong_type(GGML + key, value, f"an array of {kind.__name__}")
        return tuple(map(float, value.data)) if kind is float else tuple(value.data)

    def wrong_type(self, key: str, value: Value, expected: str) -> None:
        found = value.type.name.lower()
        if value.items is not None:
            found += f" of {value.items.name.lower()}"
        raise CorruptError(f"{key} has the wrong type", path=self.path, found=found, expected=expected)

    def special_ids(self, count: int) -> dict[str, int]:
        ids: dict[str, int] = {}
        for role, keys in SPECIAL_KEYS.items():
            for key in keys:
                token = self.scalar(key, int)
                if token is None:
                    continue
                if not 0 <= token < count:
                    raise OutOfRangeError(
                        f"{GGML}{key} is not an id of the vocabulary",
                        path=self.path,
                        found=token,
                        expected=f"0 … {count - 1}",
                    )
                if ids.setdefault(role, token) != token:
                    raise InconsistentError(
                        f"{' and '.join(keys)} name two tokens", path=self.path, found=token, expected=ids[role]
                    )
        return ids

    def templates(self) -> dict[str, str]:
        found = {}
        default = self.scalar("chat_template", str, prefix=PREFIX)
        if default is not None:
            found[""] = default
        names = self.left.get(CHAT_TEMPLATES)
        for key in [key for key in self.left if key.startswith(CHAT_TEMPLATE + ".")]:
            found[key[len(CHAT_TEMPLATE) + 1 :]] = self.scalar(key, str, prefix="")
        if names is not None and sorted(names.data) == sorted(name for name in found if name):
            del self.left[CHAT_TEMPLATES]  # written again from the templates themselves
        return found

    def check_scores(self, scores: Sequence[float]) -> None:
        for token, score in enumerate(scores):
            if math.isnan(score):
                raise OutOfRangeError(f"the score of token {token} is NaN", path=self.path)

    def check_types(self, tokens: Sequence[str], types: Sequence[int] | None) -> None:
        for token, kind in enumerate(types or ()):
            if not 0 <= kind <= TokenType.BYTE:  # 0 is llama.cpp's LLAMA_TOKEN_TYPE_UNDEFINED
                raise OutOfRangeError(f"type of token {token}", path=self.path, found=kind, expected="1 … 6")
            if kind == TokenType.BYTE and byte_of(tokens[token]) is None:
                raise OutOfRangeError(
                    f"token {token} is of type byte but names none",
                    path=self.path,
                    found=tokens[token],
                    expected="<0x00> … <0xFF>",
                )

    def check_merges(self, tokens: Sequence[str], merges: Sequence[str]) -> None:
        known = set(tokens)
        for rank, merge in enumerate(merges):
            left, right = split_merge(merge)
            if left not in known or right not in known or left + right not in known:
                raise InconsistentError(
                    f"merge {rank} refers to a token that the vocabulary does not have", path=self.path, found=merge
                )
