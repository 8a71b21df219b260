"""Mistakes in finished adapters and in receipts: `verify` ends with an error that names what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.formats.errors import CorruptError, GgferryError, VerificationError
from ggferry.formats.gguf.values import Value, f32, string
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.third_party_fixtures import FIXTURES

BASE = str(FIXTURES / "hf" / "ckpt" / "llama")
ADAPTER = str(FIXTURES / "lora" / "lora_plain")
Tensors = dict[str, np.ndarray]
Keys = dict[str, Value]
Damage = Callable[[Tensors, Keys], object]
ALPHA = "adapter.lora.alpha"
Q = "blk.{}.attn_q.weight.lora_{}"


def swapped(a: str, b: str) -> Damage:
    def damage(tensors: Tensors, keys: Keys) -> None:
        tensors[a], tensors[b] = tensors[b], tensors[a]

    return damage


def changed(name: str, how: Callable[[np.ndarray], np.ndarray]) -> Damage:
    return lambda tensors, keys: tensors.update({name: np.ascontiguousarray(how(tensors[name]))})


ADAPTERS: dict[str, Damage] = {
    "alpha doubled": lambda tensors, keys: keys.update({ALPHA: f32(2 * keys[ALPHA].data)}),
    "for another architecture": lambda tensors, keys: keys.update({"general.architecture": string("qwen2")}),
    "no adapter's type": lambda tensors, keys: keys.update({"adapter.type": string("ia3")}),
    "a pair is missing": lambda tensors, keys: [tensors.pop(Q.format(1, part)) for part in "ab"],
    "half a pair is missing": lambda tensors, keys: tensors.pop(Q.format(1, "b")),
    "a factor of zeros": changed(Q.format(0, "a"), np.zeros_like),
    "a factor of another sign": changed(Q.format(0, "b"), lambda x: -x),
    "factors of two blocks exchanged": swapped(Q.format(0, "b"), Q.format(1, "b")),
    "rows as Hugging Face has them": changed(
        Q.format(0, "b"), lambda x: x.reshape(-1, 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
    ),
    "one value": changed(Q.format(1, "a"), lambda x: x + (np.arange(x.size).reshape(x.shape) == 7) * 0.01),
}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapter") / "good.gguf"
    convert(Request(ADAPTER, str(out), base=BASE))
    return out


def rewritten(good: Path, to: Path, damage: Damage) -> str:
    found = open_gguf(str(good))
    tensors = {
        name: np.frombuffer(found.files[0].read(ref.spans[0].offset, ref.nbytes), "<f4").reshape(ref.shape)
        for name, ref in found.tensors.items()
    }
    keys = dict(found.metadata)
    damage(tensors, keys)
    write_gguf(to, keys, [(name, found.tensors[name].type, array.shape, array) for name, array in tensors.items()])
    return str(to)


@pytest.mark.parametrize("what", ADAPTERS)
def test_a_damaged_adapter_is_no_proof(what: str, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(GgferryError) as caught:
        reverify(Request(ADAPTER, base=BASE), rewritten(adapter, tmp_path / "bad.gguf", ADAPTERS[what]), silent)
    assert caught.value.exit_code in (4, 5, 6)


def test_an_adapter_as_it_was_is_proved(adapter: Path, tmp_path: Path) -> None:
    line = reverify(
        Request(ADAPTER, base=BASE), rewritten(adapter, tmp_path / "same.gguf", lambda tensors, keys: None), silent
    ).line
    assert line.startswith("proved")


# --- receipts -------------------------------------------------------------------------------------------------


Receipt = dict[str, Any]
RECEIPTS: dict[str, tuple[Callable[[Receipt], object], type[GgferryError], str]] = {
    "another output": (
        lambda receipt: receipt["output"]["files"][0].update(blake3="0" * 64), VerificationError, "not the output",
    ),
    "another source": (
        lambda receipt: receipt["source"]["files"][0].update(blake3="0" * 64), VerificationError, "not the source",
    ),
    "a value that nobody asked for": (
        lambda receipt: receipt["options"].update(hparams={"rope.freq_base": "20000"}), VerificationError, "freq_base",
    ),
    "options of another kind": (lambda receipt: receipt["options"].update(hparams=5), CorruptError, "not of type dict"),
    "no options": (lambda receipt: receipt.pop("options"), CorruptError, "receipt"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("receipt") / "good.gguf"
    convert(Request(BASE, str(out), level="fast"))
    return out


@pytest.mark.parametrize("what", RECEIPTS)
def test_a_false_receipt_is_no_proof(what: str, model: Path, tmp_path: Path) -> None:
    damage, error, place = RECEIPTS[what]
    receipt = json.loads(Path(f"{model}.receipt.json").read_text())
    damage(receipt)
    out = tmp_path / "x.gguf"
    out.write_bytes(model.read_bytes())
    Path(f"{out}.receipt.json").write_text(json.dumps(receipt))
    with pytest.raises(error, match=place):
        reverify(replace(Request(BASE), level="fast"), str(out), silent)
