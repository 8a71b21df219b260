"""llama2.c's and llm.c's models: what becomes of them computes what the projects' own C programs compute of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggferry
from helpers.archive_tools import command, plan
from helpers.llama_cpp import continuations
from helpers.third_party_fixtures import FIXTURES, ROOT

FOLDERS = {
    "v0": "llama2c",
    "v0-unshared": "llama2c",
    "v1": "llama2c",
    "v2": "llama2c",
    "float32": "llmc",
    "bfloat16": "llmc",
}


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / FOLDERS[name] / "facts.json").read_text())
    return found


def logits_of(name: str) -> np.ndarray:
    """By run.c or runq.c; by train_gpt2.c, or transformers on what export_hf.py makes of bfloat16."""
    known = {"v1": "v0"}.get(name, name)
    return np.asarray(np.load(FIXTURES / FOLDERS[name] / f"{known}.logits.npy"))


def converted(name: str, folder: Path, **options: Any) -> ggferry.Conversion:
    return ggferry.convert(FIXTURES / FOLDERS[name] / f"{name}.bin", folder / f"{name}.gguf", **options)


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_the_c_programs(name: str, tmp_path: Path) -> None:
    done = converted(name, tmp_path)
    assert not done.assumed and set(done.grades) <= {"identical", "repacked", "rescaled"}
    with ggferry.open_model(done.output) as model:
        found = model.forward(facts(name)["tokens"])
    expected = logits_of(name)
    # runq.c rounds activations to int8, too
    limit = 0.05 if name == "v2" else 2e-5
    assert np.abs(found - expected).max() < limit * np.abs(expected).max()
    if name != "v2":
        assert (found.argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.slow
def test_int8_stays_what_it_is(tmp_path: Path) -> None:
    """Groups of 32 are blocks of Q8_0, whose scale is a float16; as F32 every value is level × scale."""
    kept = converted("v2", tmp_path)
    assert {tensor.type for name, tensor in ggferry.inspect(kept.output).tensors.items() if "norm" not in name} == {
        "Q8_0"
    }
    source = ggferry.open_model(FIXTURES / "llama2c" / "v2.bin")
    plain = ggferry.convert(source.path, tmp_path / "f32.gguf", dequantize=True)
    unrounded = converted("v0", tmp_path)
    models = [ggferry.open_model(done.output) for done in (plain, kept, unrounded)]
    with source, models[0] as exact, models[1] as model, models[2] as whole:
        for name, found in exact.tensors.items():
            assert found.type == "F32" and np.array_equal(exact.tensor(name), source.tensor(name))
            assert np.allclose(model.tensor(name), exact.tensor(name), rtol=2**-11, atol=0)
            groups, rounded = (each.tensor(name).reshape(-1, 32) for each in (whole, exact))
            assert (np.abs(groups - rounded) <= np.abs(groups).max(-1, keepdims=True) / 254 * 1.001).all()


@pytest.mark.parametrize("name", ["v0", "float32"])
def test_the_vocabulary_is_the_file_beside_it(name: str, tmp_path: Path) -> None:
    """By run.c's `encode` over tokenizer.bin, and by `tokenizers` over what gpt2_tokenizer.bin was made of."""
    folder, file = FIXTURES / FOLDERS[name], "tokenizer.bin" if name == "v0" else "gpt2_tokenizer.bin"
    for each in (f"{name}.bin", file):
        shutil.copy(folder / each, tmp_path)
    done = ggferry.convert(tmp_path / f"{name}.bin", tmp_path / "out.gguf", outtype="q8_0", verify="fast")
    with ggferry.open_model(done.output) as model:
        for text, ids in facts(name)["texts"].items():
            assert model.tokenize(text, bos=False) == ids, text
    if name == "float32":
        assert done.receipt["metadata"]["tokenizer.ggml.eos_token_id"] == file
    (tmp_path / file).unlink()
    with pytest.raises(ggferry.MissingError, match="no tokenizer file was found"):
        ggferry.convert(tmp_path / f"{name}.bin", tmp_path / "none.gguf")
    shutil.copy(folder / file, tmp_path / "named.bin")
    if name == "v0":
        ggferry.convert(
            tmp_path / f"{name}.bin", tmp_path / "named.gguf", tokenizer=str(tmp_path / "named.bin"), verify="fast"
        )


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    for each in ("v0.bin", "tokenizer.bin"):
        shutil.copy(FIXTURES / "llama2c" / each, tmp_path)
    data = (tmp_path / "tokenizer.bin").read_bytes()
    (tmp_path / "tokenizer.bin").write_bytes(data + b"\0\0\0\0\1\0\0\0x")
    with pytest.raises(ggferry.RefusedError, match="401 tokens but the embedding 400 rows"):
        ggferry.convert(tmp_path / "v0.bin", tmp_path / "out.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v0", "v0-unshared", "v2", "float32"])
def test_llama_cpp_continues_as_they_do(name: str, tmp_path: Path) -> None:
    done = converted(name, tmp_path, verify="fast")
    logits = logits_of(name).astype(np.float64)
    place = max(row for row, best in enumerate(logits.argmax(-1)) if best >= 259)  # a token that is text by itself
    (found,) = continuations(facts(name)["tokens"][: place + 1], 1, Path(done.output))
    row = logits[place]
    expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
    assert found[0][0] == expected.argmax() and abs(found[0][1] - expected.max()) < (0.05 if name == "v2" else 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v0", "float32"])
def test_llama_cpp_reads_texts_as_they_do(name: str, tmp_path: Path) -> None:
    folder, file = FIXTURES / FOLDERS[name], "tokenizer.bin" if name == "v0" else "gpt2_tokenizer.bin"
    for each in (f"{name}.bin", file):
        shutil.copy(folder / each, tmp_path)
    done = ggferry.convert(tmp_path / f"{name}.bin", tmp_path / "out.gguf", verify="fast")
    texts = facts(name)["texts"]
    line = [sys.executable, str(ROOT / "tests" / "helpers" / "llama_vocabulary.py"), done.output]
    answer = subprocess.run(line, input=json.dumps([*texts]), capture_output=True, text=True, timeout=300, check=True)
    begin = [1] if name == "v0" else []
    assert json.loads(answer.stdout.splitlines()[-1]) == [[*begin, *ids] for ids in texts.values()]


@pytest.mark.slow
def test_an_archive_takes_the_vocabulary_along(tmp_path: Path) -> None:
    """It is among the files of each model, so that stores fetch it and another one makes another job."""
    for folder, names in (
        ("llama2c", ("v0.bin", "v2.bin", "tokenizer.bin")),
        ("llmc", ("float32.bin", "gpt2_tokenizer.bin")),
    ):
        (tmp_path / "in" / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(FIXTURES / folder / name, tmp_path / "in" / folder)
    path = tmp_path / "plan.jsonl"
    lines = plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1", "--verify", "fast")
    assert {Path(line["source"]).name: line["verdict"] for line in lines} == {
        "v0.bin": "convert",
        "v2.bin": "convert",
        "float32.bin": "convert",
    }
    assert all("tokenizer.bin" in line["beside"][0]["path"] for line in lines)
    command("apply", path, "--ledger", tmp_path / "ledger", "-j", "1")
    assert sorted(each.stem for each in (tmp_path / "out").rglob("*.gguf")) == ["float32", "v0", "v2"]
