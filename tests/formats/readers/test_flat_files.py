"""llama2.c's and llm.c's files: what the projects' own scripts wrote, and every way a file can be wrong."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.tokenizers.legacy import llama2c_bin, llmc_bin
from ggferry.formats import errors
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import find_reader
from ggferry.formats.readers import llama2c, llmc
from helpers.third_party_fixtures import FIXTURES

LLAMA, GPT = FIXTURES / "llama2c", FIXTURES / "llmc"
MODELS = {
    name: (LLAMA if name.startswith("v") else GPT) / f"{name}.bin"
    for name in ("v0", "v0-unshared", "v1", "v2", "float32", "bfloat16")
}


def opened(folder: Path, data: bytes) -> Checkpoint:
    path = folder / "model.bin"
    path.write_bytes(data)
    return find_reader(str(path))[0].open(str(path), ())


def edited(name: str, at: int, code: str, value: int) -> bytes:
    data = bytearray(MODELS[name].read_bytes())
    struct.pack_into(code, data, at, value)
    return bytes(data)


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    ref = checkpoint.tensors[name]
    return np.asarray(values_of(checkpoint, ref, 0, ref.rows))


@pytest.mark.parametrize("name", MODELS)
def test_every_byte_of_a_file_is_a_tensor_s(name: str) -> None:
    reader, match = find_reader(str(MODELS[name]))
    found = reader.open(str(MODELS[name]), ())
    begin = {"v0": 28, "v1": 256, "v2": 256}.get(name[:2], 1024)
    refs = [*found.tensors.values(), *(each.ref for each in found.dropped)]
    places = sorted((ref.spans[0].offset, ref.spans[0].offset + ref.nbytes) for ref in refs)
    assert places[0][0] == begin and places[-1][1] == found.nbytes
    assert all(left[1] == right[0] for left, right in pairwise(places))
    assert (found.container, found.version) == (match.container, match.version)
    found.close()


def test_the_versions_of_a_model_have_its_values() -> None:
    """Of one model the scripts wrote versions 0, 1 and 2, and float32 and bfloat16."""
    first, second, third = (llama2c.open_checkpoint(str(MODELS[name])) for name in ("v0", "v1", "v2"))
    assert {*first.tensors} - {*second.tensors} == {"freq_cis_real", "freq_cis_imag"}
    for name in second.tensors:
        assert np.array_equal(values(first, name), values(second, name))
    levels, scales = third.tensors["w2.1"], third.tensors["w2.1.scales"]
    assert (levels.type.name, levels.shape, scales.shape) == ("I8", (32, 64), (32, 2))
    assert third.header["group_size"] == 32 and third.metadata["quantization_config"]["quant_method"] == "llama2.c"
    exact, rounded = (llmc.open_checkpoint(str(MODELS[name])) for name in ("float32", "bfloat16"))
    for name in exact.tensors:
        assert np.allclose(values(exact, name), values(rounded, name), rtol=2**-8, atol=0)
    (padding,) = exact.dropped
    assert padding.ref.shape == (63, 32) and not padding.loses


BAD = {
    "magic alone": (b"24ka", errors.TruncatedError, "ends inside"),
    "version 3": (edited("v1", 4, "<i", 3), errors.OutOfRangeError, "version"),
    "no columns": (edited("v1", 8, "<i", 0), errors.OutOfRangeError, "dim"),
    "heads": (edited("v1", 20, "<i", 5), errors.InconsistentError, "32 columns in 5 heads"),
    "heads of keys": (edited("v1", 24, "<i", 3), errors.InconsistentError, "4 heads share 3"),
    "tokens": (edited("v1", 28, "<i", -400), errors.OutOfRangeError, "vocab"),
    "shared": (edited("v1", 36, "<B", 2), errors.OutOfRangeError, "shared"),
    "group": (edited("v2", 37, "<i", 24), errors.InconsistentError, "in groups of 24"),
    "group of none": (edited("v2", 37, "<i", 0), errors.OutOfRangeError, "size"),
    "more tokens": (edited("v1", 28, "<i", 401), errors.TruncatedError, "ends inside tensor 'w3.1'"),
    "fewer tokens": (edited("v1", 28, "<i", 399), errors.TrailingBytesError, "behind the last tensor"),
    "version 0 of another size": (edited("v0", 20, "<i", 401), errors.UnknownFormatError, "no known model"),
    "version 0 cut": (MODELS["v0"].read_bytes()[:-1], errors.UnknownFormatError, "no known model"),
    "llm.c version 1": (edited("float32", 4, "<i", 1), errors.UnsupportedVersionError, "order of tensors"),
    "llm.c state": (edited("float32", 0, "<i", 20240327), errors.UnsupportedError, "state of a run"),
    "llm.c optimizer": (edited("float32", 0, "<i", 20240527), errors.UnsupportedError, "optimizer"),
    "llm.c heads": (edited("float32", 20, "<i", 3), errors.InconsistentError, "32 columns, 3 heads"),
    "llm.c rows": (edited("float32", 28, "<i", 320), errors.InconsistentError, "321 tokens, 320 rows"),
    "llm.c layers": (edited("float32", 16, "<i", 3), errors.TruncatedError, "ends inside tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(case: str, tmp_path: Path) -> None:
    data, error, words = BAD[case]
    with pytest.raises(error, match=words):
        opened(tmp_path, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1", "v2", "float32"])
def test_a_file_that_is_cut_is_refused(name: str, tmp_path: Path) -> None:
    data = MODELS[name].read_bytes()
    for end in (*range(5, 300), *range(300, len(data), 997), len(data) - 1):
        with pytest.raises(errors.GgferryError):
            opened(tmp_path, data[:end])


VOCABULARIES = {
    "llama2.c": (LLAMA / "tokenizer.bin", llama2c_bin.read),
    "llm.c": (GPT / "gpt2_tokenizer.bin", llmc_bin.read),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VOCABULARIES)
def test_any_bytes_of_a_vocabulary_give_a_result_or_an_error(name: str, tmp_path: Path) -> None:
    whole, read = VOCABULARIES[name]
    data, path = whole.read_bytes(), tmp_path / "tokenizer.bin"

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def attack(draw: st.DataObject) -> None:
        raw = bytearray(data)
        for _ in range(draw.draw(st.integers(1, 4))):
            raw[draw.draw(st.integers(0, len(raw) - 1))] = draw.draw(st.integers(0, 255))
        path.write_bytes(raw[: draw.draw(st.integers(0, len(raw)))])
        try:
            read(str(path))
        except errors.GgferryError as error:
            assert str(error)

    attack()


@pytest.mark.parametrize(
    ("name", "at", "value", "error"),
    [
        ("llama2.c", 0, 300, errors.CorruptError),
        ("llama2.c", 8, 2**31, errors.OutOfRangeError),
        ("llm.c", 0, 20240329, errors.OutOfRangeError),
        ("llm.c", 4, 3, errors.OutOfRangeError),
        ("llm.c", 8, 320, errors.TrailingBytesError),
        ("llm.c", 8, 322, errors.TruncatedError),
        ("llm.c", 12, 17, errors.InconsistentError),
    ],
)
def test_a_wrong_vocabulary_is_named(name: str, at: int, value: int, error: type[Exception], tmp_path: Path) -> None:
    whole, read = VOCABULARIES[name]
    data = bytearray(whole.read_bytes())
    struct.pack_into("<I", data, at, value)
    (tmp_path / "tokenizer.bin").write_bytes(data)
    with pytest.raises(error):
        read(str(tmp_path / "tokenizer.bin"))
