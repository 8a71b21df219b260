"""bert.cpp's files of 2023: what becomes of them makes the vectors that bert.cpp itself makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.formats.errors import InconsistentError
from helpers.third_party_fixtures import FIXTURES

FOLDER = FIXTURES / "bert-cpp"
FACTS = json.loads((FOLDER / "facts.json").read_text())
TYPES = {"f16": "F16", "q4_0": "Q4_0", "q4_0-2023-05": "Q4_0"}


@pytest.mark.parametrize("name", TYPES)
def test_vectors_are_those_of_bert_cpp(name: str, tmp_path: Path) -> None:
    """It sums in float16 here and there, and quantizes activations beside quantized weights."""
    done = ggferry.convert(FOLDER / f"{name}.bin", tmp_path / "out.gguf")
    assert done.receipt["architecture"] == "bert" and {each.name for each in done.assumed} == {"eps", "pooling"}
    assert ggferry.inspect(done.output).tensors["blk.1.ffn_up.weight"].type == TYPES[name]
    with ggferry.open_model(done.output) as model:
        states = model.forward(FACTS["tokens"])
    mean = states.mean(0)
    expected = np.array(FACTS["embeddings"][name])
    assert np.abs(mean / np.linalg.norm(mean) - expected).max() < (1e-4 if name == "f16" else 3e-3)


def test_it_is_what_its_checkpoint_becomes(tmp_path: Path) -> None:
    """Tensors, tokens and settings, but for how texts are pooled, which the checkpoint does not say."""
    source = FIXTURES / "hf" / "ckpt" / "bert"
    ggferry.convert(source, tmp_path / "hf.gguf", outtype="f32", verify="fast")
    done = ggferry.convert(FOLDER / "f16.bin", tmp_path / "out.gguf", outtype="f32", verify="fast")
    expected, found = ggferry.inspect(tmp_path / "hf.gguf"), ggferry.inspect(done.output)
    further = {key for key in found.metadata if key not in expected.metadata and not key.startswith("general.")}
    assert further <= {"bert.pooling_type", "tokenizer.ggml.mask_token_id"}
    for key, value in expected.metadata.items():
        if not key.startswith("general."):
            assert found.metadata[key] == value, key
    with ggferry.open_model(tmp_path / "hf.gguf") as theirs, ggferry.open_model(done.output) as ours:
        assert {*ours.tensors} == {*theirs.tensors}
        for name in ours.tensors:
            assert np.allclose(ours.tensor(name), theirs.tensor(name), rtol=2**-11, atol=1e-7)


def test_its_tokenizer_may_be_named(tmp_path: Path) -> None:
    """It is compared with the words of the file."""
    folder = FIXTURES / "hf" / "ckpt" / "bert"
    done = ggferry.convert(FOLDER / "q4_0.bin", tmp_path / "a.gguf", tokenizer=str(folder), verify="fast")
    assert not any("keep their case" in note for note in done.notes)
    words = (folder / "vocab.txt").read_text().splitlines()
    words[200], words[201] = words[201], words[200]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(InconsistentError, match="id 200 differs"):
        ggferry.convert(FOLDER / "q4_0.bin", tmp_path / "b.gguf", tokenizer=str(tmp_path), verify="fast")
