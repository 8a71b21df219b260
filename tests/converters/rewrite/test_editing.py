"""`edit`: every type, in place and anew, held against gguf-py's reader; what would break a file is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.converters.rewrite.keys.standard_keys import types_of
from ggferry.formats.files.patched_start import MARK, Patch, journal_of
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import codec
from helpers.attack_tools import typed
from helpers.llama_cpp import continuations

NESTED = Value(ValueType.ARRAY, (array(ValueType.INT32, [1, 2]), array(ValueType.INT32, [])), ValueType.ARRAY)


def made_by_gguf(path: Path, *, alignment: int = 32, big: bool = False, architecture: str = "anything") -> Path:
    """A file of gguf-py with arrays, 3,000 tokens and no room to spare."""
    order = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    writer.add_name("ünïcode")
    writer.add_array("test.tokens", [f"token {n}" for n in range(3_000)])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_bool("test.flag", True)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for number in range(3):
        writer.add_tensor(f"tensor.{number}", np.arange(5 + 3 * number, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def contents(path: Path) -> dict[str, Any]:
    """The keys as gguf-py reads them."""
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}


def tensors(path: Path) -> dict[str, list[float]]:
    return {tensor.name: tensor.data.tolist() for tensor in gguf.GGUFReader(path).tensors}


@pytest.fixture
def model(tmp_path: Path, fixtures: Path) -> Path:
    """A small Llama of llama.cpp's converter."""
    return Path(shutil.copy(fixtures / "hf" / "out" / "llama" / "llama.f32.gguf", tmp_path / "model.gguf"))


VALUES = {
    "200:u8": 200,
    "-100:i8": -100,
    "60000:u16": 60000,
    "-30000:i16": -30000,
    "4000000000:u32": 4000000000,
    "-5:i32": -5,
    "18446744073709551615:u64": 2**64 - 1,
    "-9223372036854775808:i64": -(2**63),
    "0.5:f32": 0.5,
    "0.1:f64": 0.1,
    "true:bool": True,
    "plain text": "plain text",
    "https://a.b/c:d": "https://a.b/c:d",
    "5:str": "5",
    "[1, 2]:[i32]": [1, 2],
    '["a", "ü:b"]:[str]': ["a", "ü:b"],
    "[]:[f32]": [],
    "[true, false]:[bool]": [True, False],
    "x:STRING": "x",
    "7:UINT32": 7,
    ":str": "",
    "[1.5, 2]:[f64]": [1.5, 2.0],
}


@pytest.mark.parametrize(("big", "alignment"), [(False, 32), (True, 64), (False, 256)])
def test_every_type_is_what_gguf_py_reads(tmp_path: Path, big: bool, alignment: int) -> None:
    source = made_by_gguf(tmp_path / "a.gguf", big=big, alignment=alignment)
    out = tmp_path / "b.gguf"
    options = [part for n, text in enumerate(VALUES) for part in ("--set", f"my.key_{n}={text}")]
    done = typed("edit", source, *options, "-o", out)
    assert done.code == 0, done.err
    assert contents(out) == {**contents(source), **{f"my.key_{n}": value for n, value in enumerate(VALUES.values())}}
    assert tensors(out) == tensors(source) and gguf.GGUFReader(out).alignment == alignment
    back = typed("edit", out, "--remove", "my.*", "-o", tmp_path / "c.gguf")
    assert back.code == 0 and (tmp_path / "c.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("big", [False, True])
def test_in_place_moves_no_tensor(tmp_path: Path, big: bool) -> None:
    path = made_by_gguf(tmp_path / "a.gguf", big=big)
    before, data, inode = path.read_bytes(), tensors(path), path.stat().st_ino
    start = gguf.GGUFReader(path).data_offset
    steps = (
        (["--set", "general.name=n"], {"general.name": "n"}),  # shorter: within the padding
        (["--set", "test.tokens[2999]=x", "--set", "test.numbers[1]=-7"], {}),
        (["--remove", "test.tokens"], {}),  # 50 kB of room
        (["--set", "general.description=" + "long " * 2000], {"general.description": "long " * 2000}),
        (["--rename-tensor", "tensor.1=renamed"], {}),
    )
    for arguments, wanted in steps:
        done = typed("edit", path, *arguments, "--in-place")
        assert done.code == 0 and "no tensor data moved" in done.out, done.said
        assert path.stat().st_ino == inode and gguf.GGUFReader(path).data_offset == start
        assert path.read_bytes()[start:] == before[start:]
        found = contents(path)
        assert {key: found[key] for key in wanted} == wanted
    found = contents(path)
    assert "test.tokens" not in found and found["test.numbers"] == [1, -7, 3] and "ggferry.filler" in found
    data["renamed"] = data.pop("tensor.1")
    assert tensors(path) == data
    assert sorted(os.listdir(tmp_path)) == ["a.gguf"]
    whole = typed("edit", path, "--remove", "general.description", "-o", tmp_path / "b.gguf")
    assert whole.code == 0 and "ggferry.filler" not in contents(tmp_path / "b.gguf")


def test_what_has_no_room_is_written_anew(tmp_path: Path) -> None:
    path = made_by_gguf(tmp_path / "a.gguf")
    path.chmod(0o640)
    text = "x" * 5000
    shown = typed("edit", path, "--set", f"general.description={text}", "--dry-run")
    assert shown.out.endswith("does not fit: the file would be written anew\n") and "general.description" in shown.out
    before = tensors(path)
    done = typed("edit", path, "--set", f"general.description={text}", "--in-place")
    assert done.code == 0 and "written anew" in done.out
    assert contents(path)["general.description"] == text and tensors(path) == before
    assert path.stat().st_mode & 0o777 == 0o640 and os.listdir(tmp_path) == ["a.gguf"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("big", [False, True])
def test_old_versions(tmp_path: Path, version: int, big: bool) -> None:
    keys = {
        "general.architecture": string("x"),
        "a.nested": NESTED,
        "a.empty": array(ValueType.STRING, []),
        "a.text": string("some text of a length"),
        "a.raw": string("\udcff"),
    }
    data = [("t", codec("F32").type, (3,), np.arange(3, dtype="<f4").tobytes())]
    write_gguf(tmp_path / "a.gguf", keys, data, version=version, big_endian=big)
    done = typed("edit", tmp_path / "a.gguf", "--set", "a.text=short", "--set", "a.number=5:u32", "--in-place")
    assert done.code == 0, done.err
    wanted = {**keys, "a.text": string("short"), "a.number": u32(5)}
    write_gguf(tmp_path / "b.gguf", wanted, data, version=version, big_endian=big)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    if version == 1:
        assert typed("edit", tmp_path / "a.gguf", "--set", "a.big=5:u64", "--in-place").code != 0


REFUSED = [
    ("--set general.alignment=64", 7),
    ("--set split.count=2", 7),
    ("--remove general.architecture", 7),
    ("--set GGUF.tensor_count=5", 7),
    ("--set ggferry.filler=1:u8", 7),
    ("--set llama.block_count=7", 7),
    ("--rename-tensor output.weight=gone.weight", 7),
    ("--remove tokenizer.ggml.model", 7),
    ("--set tokenizer.ggml.seperator_token_idd=3", 2),
    ("--set general.nmae=x", 2),
    ("--set llama.contxt_length=5", 2),
    ("--set general.name=5:u32", 2),
    ("--set llama.context_length=text", 2),
    ("--set llama.context_length=4096:str", 2),
    ("--set llama.context_length=4294967296", 2),
    ("--set llama.context_length=-1", 2),
    ("--set my.own=5", 2),
    ("--set my.own=true", 2),
    ("--set my.own=[1]", 2),
    ("--set my.own=1e99:f32", 2),
    ("--set my.own=nan:f32", 2),
    ("--set my.own=300:u8", 2),
    ("--set my.own=[1,300]:[u8]", 2),
    ('--set my.own=[1,"a"]:[u8]', 2),
    ("--set my.own=[1,true]:[u8]", 2),
    ("--set my.own=[[1],2]:[[u8]]", 2),
    ("--set my.own=yes:bool", 2),
    ("--set mÿ.own=x", 2),
    ("--set general.name", 2),
    ("--set =x", 2),
    ("--remove general.nmae", 2),
    ("--set tokenizer.ggml.tokens[512]=x", 2),
    ("--set general.name[0]=x", 2),
    ("--set tokenizer.ggml.tokens[0]=5:u32", 2),
    ("--set-file general.name=/nowhere", 3),
    ("--rename-tensor output.weight=output_norm.weight", 2),
    ("--rename-tensor nothing=else", 2),
    ("--rename-tensor output.weight=" + "x" * 64, 2),
    ("--special-token eos=512", 2),
    ("--special-token eos=nothing", 2),
    ("--special-token end=1", 2),
    ("--set general.name=a --remove general.name", 2),
    ("--chat-template /nowhere", 3),
    ("", 2),
]


@pytest.mark.parametrize(("arguments", "code"), REFUSED)
def test_what_is_refused_changes_nothing(model: Path, arguments: str, code: int) -> None:
    before = model.read_bytes()
    done = typed("edit", model, *arguments.split(" ") if arguments else (), "--in-place")
    assert done.code == code, done.said
    assert model.read_bytes() == before and os.listdir(model.parent) == ["model.gguf"]


def test_misspelled_keys_are_recognized(model: Path) -> None:
    done = typed("edit", model, "--set", "llama.contxt_length=5", "--in-place")
    assert "expected llama.context_length" in done.err
    done = typed("edit", model, "--set", "tokenizer.ggml.seperator_token_id=5", "--dry-run")
    assert done.code == 0 and "tokenizer.ggml.separator_token_id" in done.err
    assert typed("edit", model, "--set", "llama.contxt_length=5:u32", "--allow-unknown-keys", "--dry-run").code == 0
    assert typed("edit", model, "--set", "llama.block_count=7", "--allow-broken", "--dry-run").code == 0


def test_special_tokens_and_templates(model: Path, tmp_path: Path) -> None:
    (tmp_path / "one.jinja").write_text("{{ 'ü' }}\n")
    entries = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    out = tmp_path / "out.gguf"
    done = typed(
        "edit",
        model,
        "--special-token",
        "eos=<s>",
        "--special-token",
        "sep=7",
        "--chat-template",
        tmp_path / "tokenizer_config.json",
        "-o",
        out,
    )
    assert done.code == 0, done.err
    found = contents(out)
    assert found["tokenizer.ggml.eos_token_id"] == 1
    assert found["tokenizer.ggml.separator_token_id"] == found["tokenizer.ggml.seperator_token_id"] == 7
    assert (found["tokenizer.chat_template"], found["tokenizer.chat_template.tool_use"]) == ("{{ a }}", "{{ b }}")
    assert found["tokenizer.chat_templates"] == ["tool_use"]
    assert typed("edit", out, "--chat-template", tmp_path / "one.jinja", "--in-place").code == 0
    found = contents(out)
    assert found["tokenizer.chat_template"] == "{{ 'ü' }}\n" and "tokenizer.chat_templates" not in found
    (tmp_path / "tokens.json").write_text(json.dumps([f"t{n}" for n in range(3_000)]))
    assert typed("edit", out, "--set-file", f"my.tokens={tmp_path / 'tokens.json'}:[str]", "--in-place").code == 0
    assert contents(out)["my.tokens"][2_999] == "t2999"


def test_a_large_vocabulary(tmp_path: Path) -> None:
    tokens = [f"token {n}" for n in range(100_000)]
    data = [("t", codec("F32").type, (3,), bytes(12))]
    keys = {"general.architecture": string("x"), "a.tokens": array(ValueType.STRING, tokens)}
    write_gguf(tmp_path / "a.gguf", keys, data)
    done = typed("edit", tmp_path / "a.gguf", "--set", "a.tokens[99999]=ü", "--in-place")
    assert done.code == 0 and "in place" in done.out
    assert ggferry.inspect(tmp_path / "a.gguf").metadata["a.tokens"] == (*tokens[:-1], "ü")


def test_a_diff_shows_where_values_part(model: Path, tmp_path: Path) -> None:
    text = "{{ long }}" * 30
    out = tmp_path / "out.gguf"
    ggferry.edit(model, out, set={"tokenizer.chat_template": text + "a" + text})
    done = typed("edit", out, "--set", f"tokenizer.chat_template={text}b{text}", "--dry-run")
    assert done.out.count("…{{ long }}a") == done.out.count("…{{ long }}b") == 1, done.out
    scores = json.dumps([float(n) for n in range(512)])
    done = typed(
        "edit", out, "--set", f"tokenizer.ggml.scores={scores}", "--set", "tokenizer.ggml.tokens[400]=x", "--dry-run"
    )
    assert "items differ, the first is" in done.out and "+ tokenizer.ggml.tokens[400] = x" in done.out


def test_shards(model: Path, tmp_path: Path) -> None:
    shards = ggferry.split(model, split_max_tensors=8).outputs
    before = [Path(shard).read_bytes() for shard in shards]
    done = typed("edit", shards[2], "--set", "general.name=M", "--in-place")
    assert done.code == 0 and f"wrote    {shards[0]}: in place" in done.out, done.said
    assert [Path(shard).read_bytes() for shard in shards[1:]] == before[1:]
    assert contents(Path(shards[0]))["general.name"] == "M"
    third = gguf.GGUFReader(shards[2]).tensors[0].name
    done = typed("edit", shards[0], "--rename-tensor", f"{third}=x", "--allow-broken", "-o", tmp_path / "new")
    assert done.code == 0 and (tmp_path / "new-00003-of-00003.gguf").exists()
    assert gguf.GGUFReader(tmp_path / "new-00003-of-00003.gguf").tensors[0].name == "x"
    done = typed(
        "edit", shards[0], "--rename-tensor", f"{third}=x", "--set", "general.name=N", "--allow-broken", "--in-place"
    )
    assert done.code == 7 and "several shards" in done.err


def test_the_receipt_goes_on(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
    path = Path(ggferry.convert(source, tmp_path / "new.gguf", verify="fast").output)
    assert ggferry.edit(path, remove=["general.name"], set={"general.author": "I"}).in_place
    assert not ggferry.edit(path, set={"general.description": "d" * 400}).in_place
    receipt = json.loads((tmp_path / "new.gguf.receipt.json").read_text())
    assert [step["command"] for step in receipt["edits"]] == ["edit", "edit"]
    assert receipt["edits"][1]["keys"]["general.description"]["after"].startswith("ddd")
    found = ggferry.verify(source, path, level="fast")
    assert any("edited after the conversion" in note for note in found.notes)
    with path.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"\1")
    done = ggferry.edit(path, set={"general.author": "J"})
    assert done.in_place and done.receipt_path is None and "not written for these bytes" in done.notes[-1]
    assert json.loads((tmp_path / "new.gguf.receipt.json").read_text()) == receipt


def test_links_are_not_edited(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(model)
    assert typed("edit", tmp_path / "link.gguf", "--set", "general.name=x", "--in-place").code == 7
    os.link(model, tmp_path / "hard.gguf")
    assert typed("edit", model, "--set", "general.name=x", "--in-place").code == 7
    assert typed("edit", model, "--set", "general.name=x", "-o", tmp_path / "hard.gguf", "--force").code == 7
    assert typed("edit", tmp_path / "link.gguf", "--set", "general.name=x", "-o", tmp_path / "b.gguf").code == 0


def test_llama_cpp_loads_what_was_edited(model: Path, tmp_path: Path) -> None:
    out = Path(ggferry.edit(model, tmp_path / "out.gguf", set={"general.name": "Another name, much longer"}).output)
    place = Path(shutil.copy(model, tmp_path / "place.gguf"))
    assert ggferry.edit(place, set={"general.name": "M"}, remove=["tokenizer.ggml.add_bos_token"]).in_place
    first, second, third = continuations([1, 20, 30], 6, model, out, place)
    assert len(first) == 6 and first == second == third


def test_types_of_standard_keys() -> None:
    assert types_of("general.name", "llama") == ("str",)
    assert types_of("llama.attention.head_count", "llama") == ("[i32]", "u32")
    assert types_of("general.base_model.0.name", "llama") == ("str",)
    assert types_of("tokenizer.ggml.fim_pre_token_id", "llama") == ("u32",)
    assert types_of("qwen2.block_count", "llama") is None


def test_an_edit_that_was_broken_off_is_noticed(model: Path) -> None:
    """The state between two of its steps, as tests/formats/files/test_patched_start.py makes it at every step."""
    old = model.read_bytes()
    assert typed("edit", model, "--set", "general.name=M", "--in-place").code == 0
    new = model.read_bytes()
    size = gguf.GGUFReader(model).data_offset
    journal = Path(journal_of(str(model)))
    journal.write_bytes(Patch(str(model), len(old), old[:size], new[:size]).packed())
    model.write_bytes(MARK + new[4:100] + old[100:])
    for verb in ("inspect", "convert", "split"):
        done = typed(verb, model)
        assert done.code == 5 and "--recover" in done.err, done.err
    done = typed("edit", model, "--recover")
    assert done.code == 0 and "finished" in done.out
    assert model.read_bytes() == new and not journal.exists()
    journal.write_bytes(Patch(str(model), len(old), old[:size], new[:size]).packed())
    model.write_bytes(MARK + new[4:100] + old[100:])
    done = typed("edit", model, "--set", "general.author=me", "--in-place")
    assert done.code == 0 and "was finished first" in done.err
    assert contents(model)["general.name"] == "M" and contents(model)["general.author"] == "me"
    assert typed("edit", model, "--recover").out.endswith("nothing to recover\n")


@pytest.mark.slow
def test_sigkill_at_any_moment(model: Path) -> None:
    """Of the whole command, both in place and where the file has to be written anew."""
    import random
    import signal
    import subprocess
    import sys
    import time

    rng, old = random.Random(0), model.read_bytes()
    for value in ("M", "M" * 3000):
        command = [sys.executable, "-m", "ggferry", "edit", str(model), "--set", f"general.name={value}", "--in-place"]
        started = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        took, new, killed = time.monotonic() - started, model.read_bytes(), 0
        for _ in range(30):
            model.write_bytes(old)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.5, 1.0) * took)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            if model.read_bytes() not in (old, new):
                assert "--recover" in typed("inspect", model).err
            assert typed("edit", model, "--recover").code == 0
            assert model.read_bytes() in (old, new)
        assert killed
        model.write_bytes(old)
        subprocess.run(command, check=True, capture_output=True)
        assert model.read_bytes() == new and os.listdir(model.parent) == ["model.gguf"]
        model.write_bytes(old)
