"""Keys and vocabulary of a finished output, changed: `verify` must name the key and the place, and end in exit 6.

Each of these was once 'proved': nobody compared the keys of a file that stands already with its source.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import Report, reverify
from ggferry.formats.errors import VerificationError
from ggferry.formats.gguf.values import Value, ValueType, boolean, f32, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.service.cli.app import _run
from ggferry.support.progress import silent
from helpers.peers import Peers
from helpers.third_party_fixtures import FIXTURES

pytestmark = pytest.mark.attack

CHECKPOINTS = FIXTURES / "hf" / "ckpt"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
HOSTILE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
Keys = dict[str, Value]


def model_with_template(name: str, folder: Path) -> Path:
    """A checkpoint of the fixtures, with a chat template."""
    shutil.copytree(CHECKPOINTS / name, folder)
    path = folder / "tokenizer_config.json"
    stated = {**json.loads(path.read_text()), "chat_template": TEMPLATE}
    path.unlink()
    path.write_text(json.dumps(stated))
    return folder


SPM, BPE = "llama", "llama3_rope_tied"
"""A model with SentencePiece's scores, and one with merges."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Each of the two models, and what we made of it."""
    made = {}
    for name in (SPM, BPE):
        folder = tmp_path_factory.mktemp(name)
        source = model_with_template(name, folder / "model")
        convert(Request(str(source), str(folder / "good.gguf"), level="fast"))
        made[name] = source, folder / "good.gguf"
    return made


@pytest.fixture
def converted(both: dict[str, tuple[Path, Path]]) -> tuple[Path, Path]:
    return both[SPM]


def changed(good: Path, to: Path, change: Callable[[Keys], object]) -> str:
    """The file with other keys."""
    found = open_gguf(str(good))
    keys = dict(found.metadata)
    change(keys)
    data = good.read_bytes()
    rows = []
    for name, ref in found.tensors.items():
        start = ref.spans[0].offset
        rows.append((name, ref.type, ref.shape, data[start : start + ref.nbytes]))
    found.close()
    write_gguf(to, keys, rows)
    return str(to)


def check(source: Path, output: str, allow: tuple[str, ...] = ()) -> Report:
    return reverify(Request(str(source), level="fast", jobs=1), output, silent, allow)


def items(keys: Keys, key: str, change: Callable[[list[Any]], object]) -> None:
    data = list(keys[key].data)
    change(data)
    keys[key] = replace(keys[key], data=tuple(data))


def exchange(data: list[Any]) -> None:
    data[300], data[301] = data[301], data[300]


def renamed(keys: Keys, key: str, name: str) -> None:
    keys[name] = keys.pop(key)


def plus(key: str, count: int) -> Callable[[Keys], object]:
    return lambda keys: keys.update({key: replace(keys[key], data=keys[key].data + count)})


def low_scores(data: list[Any]) -> None:
    data[290:330] = [-1e9] * 40


GGML = "tokenizer.ggml."
EVERY: dict[str, tuple[Callable[[Keys], object], str]] = {
    "template": (lambda keys: keys.update({"tokenizer.chat_template": string(HOSTILE)}), r"tokenizer\.chat_template"),
    "no template": (lambda keys: keys.pop("tokenizer.chat_template"), r"tokenizer\.chat_template"),
    "eos": (plus(GGML + "eos_token_id", -1), r"eos_token_id"),
    "two texts": (lambda keys: items(keys, GGML + "tokens", exchange), r"tokens\[300\]"),
    "control made normal": (
        lambda keys: items(keys, GGML + "token_type", lambda t: t.__setitem__(slice(None), [min(k, 1) for k in t])),
        r"token_type\[\d+\]",
    ),
    "rope base misspelled": (
        lambda keys: (keys.update({"llama.rope.freq_bas": f32(10000.0)}), keys.pop("llama.rope.freq_base", None)),
        r"rope\.freq_bas",
    ),
    "another rope base": (lambda keys: keys.update({"llama.rope.freq_base": f32(20000.0)}), r"rope\.freq_base"),
    "a window": (lambda keys: keys.update({"llama.attention.sliding_window": u32(8)}), r"sliding_window"),
    "another type": (
        lambda keys: keys.update({GGML + "bos_token_id": Value(ValueType.INT32, keys[GGML + "bos_token_id"].data)}),
        r"bos_token_id",
    ),
    "a flag": (lambda keys: keys.update({GGML + "add_eos_token": boolean(True)}), r"add_eos_token"),
    "sampling": (lambda keys: keys.update({"general.sampling.temp": f32(9.0)}), r"general\.sampling\.temp"),
    "somebody's key": (lambda keys: keys.update({"llama.attention.surprise": u32(1)}), r"surprise"),
}
SCORED: dict[str, tuple[Callable[[Keys], object], str]] = {
    "scores of 40 pieces": (lambda keys: items(keys, GGML + "scores", low_scores), r"scores\[290\]"),
    "scores negated": (
        lambda keys: items(keys, GGML + "scores", lambda s: s.__setitem__(slice(None), [-x for x in s])),
        r"scores\[",
    ),
}
MERGED: dict[str, tuple[Callable[[Keys], object], str]] = {
    "merges reversed": (lambda keys: items(keys, GGML + "merges", lambda m: m.reverse()), r"merges\[0\]"),
    "last merge": (lambda keys: items(keys, GGML + "merges", lambda m: m.pop()), r"merges is not"),
    "pre": (lambda keys: keys.update({GGML + "pre": string("gpt-2")}), r"tokenizer\.ggml\.pre"),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("model", "fault"), [(SPM, fault) for fault in (*EVERY, *SCORED)] + [(BPE, fault) for fault in (*EVERY, *MERGED)]
)
def test_a_changed_key_is_no_proof(model: str, fault: str, both: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    source, good = both[model]
    change, place = {**EVERY, **SCORED, **MERGED}[fault]
    bad = changed(good, tmp_path / "bad.gguf", change)
    with pytest.raises(VerificationError, match=place):
        check(source, bad)
    assert _run(["verify", str(source), bad, "--level", "fast"]) == 6


@pytest.mark.parametrize("model", [SPM, BPE])
def test_what_was_not_changed_is_proved(model: str, both: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    source, good = both[model]
    report = check(source, changed(good, tmp_path / "same.gguf", lambda keys: None))
    assert not report.keys.described + report.keys.implied + report.keys.allowed
    assert report.keys.compared > 20


def test_a_receipt_that_fits_the_changed_file_explains_nothing(converted: tuple[Path, Path], tmp_path: Path) -> None:
    source, good = converted
    bad = Path(changed(good, tmp_path / "bad.gguf", EVERY["template"][0]))
    receipt = json.loads(Path(f"{good}.receipt.json").read_text())
    data = bad.read_bytes()
    receipt["output"]["files"][0] |= {"bytes": len(data), "blake3": blake3(data).hexdigest()}
    Path(f"{bad}.receipt.json").write_text(json.dumps(receipt))
    with pytest.raises(VerificationError, match=r"tokenizer\.chat_template"):
        check(source, str(bad))


def test_keys_that_only_describe_are_told(converted: tuple[Path, Path], tmp_path: Path) -> None:
    source, good = converted
    change = {"general.name": string("Somebody's"), "general.author": string("Somebody")}
    report = check(source, changed(good, tmp_path / "told.gguf", lambda keys: keys.update(change)))
    assert {one.key for one in report.keys.described} == set(change)
    assert any('general.name: "Somebody\'s"' in note and "--model-name explains" in note for note in report.notes)


def test_keys_may_be_allowed_by_name(
    converted: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, good = converted
    bad = changed(good, tmp_path / "bad.gguf", EVERY["template"][0])
    report = check(source, bad, ("tokenizer.chat_*",))
    assert [one.key for one in report.keys.allowed] == ["tokenizer.chat_template"]
    with pytest.raises(VerificationError):
        check(source, bad, ("general.*",))
    assert _run(["verify", str(source), bad, "--level", "fast", "--allow-keys", "*template", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"]["allowed"][0]["place"] == "tokenizer.chat_template"


def test_the_receipt_tells_the_options_that_explain(tmp_path: Path) -> None:
    """Keys overridden and blocks pruned: with the receipt proved, without it only when said again."""
    convert(Request(str(CHECKPOINTS / "llama"), str(tmp_path / "a.gguf"), level="fast"))
    overridden = ("tokenizer.ggml.add_bos_token=bool:false",)
    asked = Request(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), override_keys=overridden, prune="1")
    convert(replace(asked, level="fast"))
    plain = Request(str(tmp_path / "a.gguf"), level="fast")
    assert not reverify(plain, str(tmp_path / "b.gguf"), silent).keys.described
    Path(f"{tmp_path / 'b.gguf'}.receipt.json").unlink()
    with pytest.raises(VerificationError):
        reverify(plain, str(tmp_path / "b.gguf"), silent)
    with pytest.raises(VerificationError, match="add_bos_token"):
        reverify(replace(plain, prune="1"), str(tmp_path / "b.gguf"), silent)
    told = ["--override-kv", overridden[0], "--prune-layers", "1", "--level", "fast"]
    assert _run(["verify", str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), *told]) == 0


@pytest.mark.parametrize("options", [{"hparams": 5}, {"outtype": 5}, {"vocab": [1]}, {"override_keys": {"a": 1}}])
def test_a_receipt_of_other_kinds_is_corrupt(options: dict[str, Any], tmp_path: Path) -> None:
    convert(Request(str(CHECKPOINTS / "llama"), str(tmp_path / "a.gguf"), level="fast"))
    path = tmp_path / "a.gguf.receipt.json"
    receipt = json.loads(path.read_text())
    path.write_text(json.dumps({**receipt, "options": {**receipt["options"], **options}}))
    assert _run(["verify", str(CHECKPOINTS / "llama"), str(tmp_path / "a.gguf"), "--level", "fast"]) == 5


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("llama", ""),
        ("qwen2", ""),
        ("llama3_rope_tied", ""),
        ("stablelm", ""),
        ("mamba", ""),
        ("granite", "padding"),
        ("gemma2", "bos_token_id"),
    ],
)
def test_files_of_todays_converter(name: str, odd: str, peer: Peers) -> None:
    """What llama.cpp's converter made of the same source: proved where only names and silences differ; else each key
    that tells the model something else is named. (Granite: the id of a padding token that config.json's class made up;
    Gemma: of the test's own tokenizer, bos and eos exchanged.)"""
    output = str(peer(f"hf/out/{name}/{name}.f32.gguf"))
    if odd:
        with pytest.raises(VerificationError, match=odd) as caught:
            check(CHECKPOINTS / name, output)
        assert "--allow-keys" in (caught.value.hint or "")
    else:
        assert check(CHECKPOINTS / name, output).keys.implied
