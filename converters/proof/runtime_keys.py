"""Compare what llama.cpp's loader reads from a GGUF file with the keys and tensors that a file has.

The list (`llama_cpp_keys.txt`, made by `tools/llama_cpp_keys.py` from llama.cpp's sources) shares nothing with the
architecture tables. So a misspelled key, a missing one or a value of a type that the loader refuses is seen here,
although both sides of our own proof read the same table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path

from ggferry.converters.proof.runtime_rules.broken import broken
from ggferry.formats.gguf.values import TYPE_NAMES, Value, ValueType
from ggferry.support.records import dataclass

LOADERS = 64  # architectures and tokenizers that are kept: a file may name any
LIST = Path(__file__).with_name("llama_cpp_keys.txt")
OTHER = ("adapter", "mmproj", "imatrix")  # values of general.type: files for other loaders than the model's
NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the list.

    Attributes:
        name: The key or tensor.
        types: Types that the loader takes: 'u32', '[f32]' (an array), '[]' (any array), 'any'; empty for a tensor.
        state: 'required', 'sometimes' (required under a condition) or 'optional'.
        default: What the loader assumes without the key, where its source says that plainly.
        note: The condition, in llama.cpp's words, under which the loader reads it at all.
    """

    name: str
    types: tuple[str, ...]
    state: str
    default: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Loader:
    """All that llama.cpp reads from a file of one architecture and tokenizer.

    Attributes:
        version: The build of llama.cpp.
        tokenizer: Whether llama.cpp knows the tokenizer.
        keys: The keys, by their full names.
        tensors: The tensors, by names with {n} for the block and {e} for the expert.
    """

    version: str
    tokenizer: bool
    keys: Mapping[str, Request]
    tensors: Mapping[str, Request]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in which the loader and a file do not fit.

    Attributes:
        kind: 'no loader', 'missing', 'type', 'unread', 'unknown' (a value), 'missing tensor', 'unread tensor', or that
            of a rule (`runtime_rules`): 'aborts', 'unsafe' or 'otherwise'.
        architecture: The file's architecture.
        what: The key, or the tensor with {n} for its block.
        text: The finding in words.
    """

    kind: str
    architecture: str
    what: str
    text: str


def check(
    architecture: str, metadata: Mapping[str, Value], tensors: Iterable[str] = (), *, vocab_only: bool = False
) -> tuple[Finding, ...]:
    """Return where llama.cpp's loader and a file with these keys and tensors do not fit.

    With `vocab_only`, nothing of the model is expected to be there.
    """
    if architecture == "clip" or _text(metadata, "general.type") in OTHER:
        return ()
    found = loader(architecture, _text(metadata, "tokenizer.ggml.model") or "none")
    if found is None:
        return (
            Finding("no loader", architecture, architecture, f"llama.cpp {version()} has no loader for {architecture}"),
        )
    fitting = _findings(found, architecture, metadata, set(tensors), vocab_only)
    return (*fitting, *_unknown(metadata, architecture))


def _unknown(metadata: Mapping[str, Value], architecture: str) -> Iterator[Finding]:
    """Yield a finding for a kind of vocabulary or a pre-tokenizer that llama.cpp does not know by that name."""
    model, pre = (_text(metadata, f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    for key, value, known in (("model", model, tokenizers()), ("pre", pre, pre_tokenizers())):
        if value and value not in known and (key == "model" or model == "gpt2"):
            text = f"llama.cpp {version()} does not know tokenizer.ggml.{key} {value!r}"
            yield Finding("unknown", architecture, f"tokenizer.ggml.{key}", text)


def _text(metadata: Mapping[str, Value], key: str) -> str:
    value = metadata.get(key)
    return value.data if value is not None and value.type is ValueType.STRING else ""


def _findings(
    loader: Loader, architecture: str, metadata: Mapping[str, Value], tensors: set[str], vocab_only: bool
) -> Iterator[Finding]:
    who = f"llama.cpp {loader.version}"
    for key, request in loader.keys.items():
        ours = not vocab_only or not key.startswith(f"{architecture}.")
        if request.state == "required" and ours and key not in metadata:
            yield Finding("missing", architecture, key, f"{who} requires {key}, which is not written")
        if key not in metadata and _is_required(request, metadata):
            text = f"{who} would not load this file: its vocabulary needs {key}, which is not written"
            yield Finding("aborts", architecture, key, text)
    for key, value in metadata.items():
        read = loader.keys.get(key)
        if read is None:
            known = not key.startswith("tokenizer.") or loader.tokenizer
            if known and not key.startswith(("general.", "ggferry.")):  # they describe the model to people and catalogs
                yield Finding("unread", architecture, key, f"{who} does not read {key}")
        elif not takes(read, value):
            types = " or ".join(read.types)
            yield Finding("type", architecture, key, f"{who} reads {key} as {types}, and {spelt(value)} is written")
    if tensors and not vocab_only:
        yield from _tensor_findings(loader, architecture, metadata, tensors)
        for kind, words in broken(architecture, metadata, tensors):
            yield Finding(kind, architecture, architecture, f"{who} {_DOES[kind]}: {words}")


_DOES = {
    "aborts": "would not run this file",
    "otherwise": "computes otherwise",
    "unsafe": "may compute what are no numbers",
}
_UNLESS_PRE = re.compile(r'not\(tokenizer_pre == "(?P<pre>[^"]+)"\)')


def _is_required(request: Request, metadata: Mapping[str, Value]) -> bool:
    """Return whether a key is required of a file by its pre-tokenizer: the merges of a vocabulary of byte pairs."""
    condition = _UNLESS_PRE.fullmatch(request.note) if request.state == "sometimes" else None
    return condition is not None and _text(metadata, "tokenizer.ggml.pre") != condition["pre"]


def _tensor_findings(
    loader: Loader, architecture: str, metadata: Mapping[str, Value], tensors: set[str]
) -> Iterator[Finding]:
    who = f"llama.cpp {loader.version}"
    blocks, extra = (_count(metadata.get(f"{architecture}.{key}")) for key in ("block_count", "nextn_predict_layers"))
    blocks = min(blocks - extra, len(tensors))  # a header may claim any number
    if extra and not any(name.startswith("blk.0.") for name in tensors):
        blocks = 0  # of a file of the others alone (`nextn_flags` in llama-model.cpp) the decoder's are not required
    for name, request in loader.tensors.items():
        if request.state == "required" and "{e}" not in name:
            expected = (name.replace("{n}", str(n)) for n in range(blocks)) if "{n}" in name else (name,)
            missing = next((tensor for tensor in expected if tensor not in tensors), None)
            if missing:
                text = f"{who} requires the tensor {missing}, which is not written"
                yield Finding("missing tensor", architecture, name, text)
    known = {name.replace("{e}", "{n}") for name in loader.tensors}
    unread = {NUMBER.sub(".{n}", name): name for name in sorted(tensors, reverse=True)}
    for name, example in sorted(unread.items()):
        if name not in known:
            text = f"{who} makes nothing of the tensor {example} and would refuse the file"
            yield Finding("unread tensor", architecture, name, text)


def _count(value: Value | None) -> int:
    whole = value is not None and value.type is not ValueType.ARRAY and isinstance(value.data, int)
    return value.data if whole and value is not None else 0


def takes(request: Request, value: Value) -> bool:
    """Return whether the loader takes a value of this type for the key."""
    return (
        "any" in request.types or spelt(value) in request.types or ("[]" in request.types and value.items is not None)
    )


def spelt(value: Value) -> str:
    """Return the value's type as the list writes it: 'u32', '[str]'."""
    if value.type is not ValueType.ARRAY:
        return TYPE_NAMES[value.type]
    return f"[{TYPE_NAMES.get(value.items, 'array')}]" if value.items is not None else "[]"


def version() -> str:
    """Return the build of llama.cpp that the list was made from: 'b11549'."""
    return _parts()[""][0].partition(" ")[2]


@lru_cache(LOADERS)
def loader(architecture: str, tokenizer: str = "none") -> Loader | None:
    """Return what llama.cpp reads from a file of this architecture with this tokenizer.ggml.model.

    None where llama.cpp cannot load the architecture. Nobody may change it: a plan asks for the same ones for every
    model.
    """
    parts = _parts()
    if architecture not in architectures():
        return None
    keys: dict[str, Request] = {}
    tensors: dict[str, Request] = {}
    for section in ("*", architecture, f"tokenizer {tokenizer}"):
        for request in map(_request, parts.get(section, ())):
            if not request.types:
                tensors[request.name] = request
            else:
                keys[architecture + request.name if request.name[0] == "." else request.name] = request
    return Loader(version(), f"tokenizer {tokenizer}" in parts, keys, tensors)


@cache
def architectures() -> tuple[str, ...]:
    """Return the architectures that llama.cpp can load."""
    return tuple(name for name in _parts() if name not in ("", "*", "pre") and not name.startswith("tokenizer "))


def tokenizers() -> tuple[str, ...]:
    """Return the values of tokenizer.ggml.model that llama.cpp knows."""
    return tuple(name.removeprefix("tokenizer ") for name in _parts() if name.startswith("tokenizer "))


def pre_tokenizers() -> tuple[str, ...]:
    """Return the values of tokenizer.ggml.pre that llama.cpp knows."""
    return _parts()["pre"]


@cache
def _parts() -> dict[str, tuple[str, ...]]:
    """Return the lines of each section of the list; those before the first section under ''."""
    text = LIST.read_text(encoding="ascii")
    head, *sections = text.split("\n[")
    found = {"": tuple(line for line in head.splitlines() if line[:1] not in ("", "#"))}
    for section in sections:
        name, _, body = section.partition("]\n")
        found[name] = tuple(filter(None, body.split("\n")))
    return found


def _request(line: str) -> Request:
    line, _, note = line.partition(" when ")
    line, _, default = line.partition(" = ")
    name, types, state = line.split(" ")
    if name == "tensor":
        return Request(types, (), state)
    return Request(name, tuple(types.split("|")), state, default, note)
