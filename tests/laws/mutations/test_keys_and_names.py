"""The kin of Mistral's misspelt window key: every key and every tensor's name of every table, misspelt or of another
type, is one that the list of what llama.cpp's loader reads does not have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.proof import runtime_keys as runtime
from ggferry.converters.proof.runtime_notes import unexplained
from ggferry.converters.schema.architecture import HParam
from ggferry.formats.gguf.values import Value
from ggferry.formats.gguf.values import ValueType as T

SPECS = architectures()
LOADED = [name for name in SPECS if runtime.loader(name) is not None]
NOBODY_LOADS = {"clip", "gptj", "gptneo", "rwkv", "whisper"}
"""No list tells of these: no program of today reads them from GGUF."""


def misspelt(name: str) -> Iterator[str]:
    """A letter less, a letter twice, two letters exchanged, at the end and in the middle of the last word."""
    for at in (at for at in (len(name) - 1, len(name) - 3) if name[at - 1 : at + 2].replace("_", "").isalpha()):
        yield name[:at] + name[at + 1 :]
        yield name[: at + 1] + name[at:]
        if name[at] != name[at - 1]:
            yield name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]


def value_of(hparam: HParam) -> Value:
    return Value(T.ARRAY, (), hparam.kind) if hparam.length else Value(hparam.kind, 0)


def noticed(architecture: str, keys: dict[str, Value], tensors: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    """(kind, what) of the findings that no remark explains."""
    return {(one.kind, one.what) for one in unexplained(runtime.check(architecture, keys, tensors), ())}


def test_all_but_these_have_a_loader() -> None:
    assert set(SPECS) - set(LOADED) == NOBODY_LOADS


@pytest.mark.parametrize("name", LOADED)
def test_a_misspelt_key_is_noticed(name: str) -> None:
    for hparam in SPECS[name].hparams:
        for key in misspelt(f"{name}.{hparam.key}") if hparam.key else ():
            assert ("unread", key) in noticed(name, {key: value_of(hparam)}), key


@pytest.mark.parametrize("name", LOADED)
def test_a_key_of_another_type_is_noticed(name: str) -> None:
    asked = runtime.loader(name)
    assert asked is not None
    for hparam in SPECS[name].hparams:
        key = f"{name}.{hparam.key}"
        if hparam.key and key in asked.keys and "any" not in asked.keys[key].types:
            wrong = Value(T.UINT32, 1) if hparam.kind is T.STRING else Value(T.STRING, "1")
            assert ("type", key) in noticed(name, {key: wrong}), key


@pytest.mark.parametrize("name", LOADED)
def test_a_misspelt_tensor_is_noticed(name: str) -> None:
    named = {role.name.replace("{n}", "0") for role in SPECS[name].roles}
    for role in named:
        stem, dot, suffix = role.rpartition(".")
        for wrong in misspelt(stem):
            if wrong + dot + suffix in named:  # attn_kv with a letter less is another draft's attn_k
                continue
            found = runtime.NUMBER.sub(".{n}", wrong + dot + suffix)
            assert ("unread tensor", found) in noticed(name, {}, (wrong + dot + suffix,)), wrong
