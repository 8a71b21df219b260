"""biogpt.cpp's files: what becomes of them computes what biogpt.cpp itself, and transformers, compute of them."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
from ggferry.formats.errors import AmbiguousError, BadValueError, CorruptError, GgferryError
from helpers.llama_api import encoded_and_decoded
from helpers.third_party_fixtures import FIXTURES

FOLDER = FIXTURES / "biogpt-cpp"
FACTS = json.loads((FOLDER / "facts.json").read_text())
LIMITS = {"f32": 2e-4, "f16": 5e-4, "q8_0": 0.01, "q5_1": 0.03, "q4_0": 0.03}
"""biogpt.cpp has GELU's tanh form in a table of float16, and rounds activations to int8 beside quantized weights."""


ARCH = {"q5_1": "biogpt.cpp-2023-10", "q5_1-2023-05": "biogpt.cpp-2023-05"}


def relative(found: np.ndarray, name: str) -> float:
    expected = np.load(FOLDER / f"{name}.logits.npy")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", LIMITS)
def test_logits_are_those_of_biogpt_cpp(name: str, tmp_path: Path) -> None:
    done = ggferry.convert(FOLDER / f"{name}.bin", tmp_path / "out.gguf", arch=ARCH.get(name))
    assert done.receipt["architecture"] == "gpt2" and {each.name for each in done.assumed} == {"activation"}
    assert done.receipt["tokenizer"]["held_against_source"] == {"tokens": 316}
    with ggferry.open_model(done.output) as model:
        found = model.forward(FACTS["tokens"])
    assert relative(found, name) < LIMITS[name]
    if name == "f32":
        assert relative(found, "transformers") < 2e-6


def test_llama_cpp_computes_it(tmp_path: Path) -> None:
    """With GELU's tanh form, as biogpt.cpp; it takes ids alone, for the vocabulary is none that it knows."""
    done = ggferry.convert(FOLDER / "f32.bin", tmp_path / "out.gguf", verify="fast")
    found = ggferry.inspect(done.output).metadata
    assert found["tokenizer.ggml.model"] == "none" and found["tokenizer.ggml.pre"] == "biogpt"
    assert relative(encoded_and_decoded(str(done.output), [], FACTS["tokens"], tmp_path), "f32") < 3e-4


@pytest.mark.parametrize("kind", ["q4_0", "q5_1"])
def test_blocks_of_may_hold_the_values_of_those_of_october(kind: str, tmp_path: Path) -> None:
    """Both quantizers round alike; Q4_0 has another size, of Q5_1 a person must say which it is."""
    paths = []
    for name in (kind, f"{kind}-2023-05"):
        paths.append(tmp_path / f"{name}.gguf")
        ggferry.convert(FOLDER / f"{name}.bin", paths[-1], arch=ARCH.get(name), outtype="f32", verify="fast")
    with ggferry.open_model(paths[0]) as october, ggferry.open_model(paths[1]) as may:
        for name in october.tensors:
            a, b = october.tensor(name), may.tensor(name)
            assert np.abs(a - b).max() <= (2e-3 * np.abs(a).max() if kind == "q4_0" else 0), name
    if kind in ARCH:
        with pytest.raises(AmbiguousError, match=r"biogpt.cpp-2023-05, biogpt.cpp-2023-10 .*--arch"):
            open_checkpoint(str(FOLDER / f"{kind}.bin"))


def test_tokens_and_merges_are_those_of_its_tokenizer(tmp_path: Path) -> None:
    """As they stand in vocab.json and merges.txt; and they encode as biogpt.cpp does, word by word."""
    done = ggferry.convert(FOLDER / "q4_0.bin", tmp_path / "out.gguf", verify="fast")
    found = ggferry.inspect(done.output).metadata
    vocabulary = json.loads((FOLDER / "vocab.json").read_text())
    assert list(found["tokenizer.ggml.tokens"]) == sorted(vocabulary, key=vocabulary.__getitem__)
    lines = (FOLDER / "merges.txt").read_text().splitlines()
    assert list(found["tokenizer.ggml.merges"]) == [line.rpartition(" ")[0] for line in lines]
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "padding", "eos", "unknown")] == [0, 1, 2, 3]
    ranks = {tuple(merge.split()): rank for rank, merge in enumerate(found["tokenizer.ggml.merges"])}
    ids = [2]
    for word in FACTS["prompt"].replace("-", " @-@ ").split():  # as Moses cuts it
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [vocabulary[part] for part in parts if part in vocabulary]  # it leaves out the others
    assert ids == FACTS["ids"]


def test_it_goes_back_to_a_folder_of_transformers(tmp_path: Path) -> None:
    """As GPT-2, whose graph it has: the scale of the embedding is in its weights then."""
    import torch
    from transformers import AutoModelForCausalLM

    done = ggferry.convert(FOLDER / "f32.bin", tmp_path / "hf", to="safetensors")
    vocabulary = json.loads((tmp_path / "hf" / "vocab.json").read_text())
    assert vocabulary == json.loads((FOLDER / "vocab.json").read_text())
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["tokenizer_class"] == "BioGptTokenizer"
    model = AutoModelForCausalLM.from_pretrained(done.output)
    with torch.no_grad():
        found = model(torch.tensor([FACTS["tokens"]])).logits[0].numpy()
    assert relative(found, "transformers") < 2e-6


def test_its_checkpoint_brings_the_same_vocabulary(tmp_path: Path) -> None:
    """Whose two files name no class: config.json does."""
    theirs = find.load(str(FOLDER), rows=320)
    ours = load_tokenizer(open_checkpoint(str(FOLDER / "q8_0.bin")), 320)
    assert ours is not None and ours.to_kv() == theirs.to_kv()


def test_a_merge_has_two_parts(tmp_path: Path) -> None:
    data = (FOLDER / "q4_0.bin").read_bytes()
    merge = (FOLDER / "merges.txt").read_text().splitlines()[5].rpartition(" ")[0].encode()
    at = data.index(struct.pack("<i", len(merge)) + merge)
    broken = tmp_path / "broken.bin"
    broken.write_bytes(data[: at + 4] + merge.replace(b" ", b"_") + data[at + 4 + len(merge) :])
    with pytest.raises(BadValueError, match="merge 5 has not two parts") as caught:
        open_checkpoint(str(broken), "biogpt.cpp")
    assert caught.value.offset == at


def test_cut_anywhere_it_is_refused(tmp_path: Path) -> None:
    data = (FOLDER / "q4_0.bin").read_bytes()
    broken = tmp_path / "broken.bin"
    for end in [*range(64), *range(64, len(data), 499)]:
        broken.write_bytes(data[:end])
        with pytest.raises(GgferryError) as caught:
            open_checkpoint(str(broken))
        assert end < 8 or isinstance(caught.value, CorruptError) or "vocabulary without tensors" in str(caught.value)
