"""Types of ik_llama.cpp against its own functions: sizes, and every value of its blocks and of random bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ggferry.quant.codec import IK_LLAMA_CPP, LLAMA_CPP, codec, codecs
from helpers.make_ik_fixtures import COLUMNS, NOISE, digest, noise
from helpers.third_party_fixtures import FIXTURES

FOLDER = FIXTURES / "ik-llama"
FACTS = json.loads((FOLDER / "values.json").read_text())
BLOCKS = dict(np.load(FOLDER / "blocks.npz"))
EVERY = pytest.mark.parametrize("name", FACTS)


def test_every_type_of_the_fork_is_here() -> None:
    assert set(FACTS) == set(BLOCKS) == {name for name, one in codecs().items() if one.runtime == IK_LLAMA_CPP}
    assert len(FACTS) == 45


@EVERY
def test_sizes_and_numbers_are_the_forks(name: str) -> None:
    kind = codec(name).type
    assert (kind.ggml_id, kind.row_bytes(COLUMNS)) == (FACTS[name]["id"], FACTS[name]["row_bytes"])


@EVERY
def test_its_blocks_decode_as_the_fork_decodes_them(name: str) -> None:
    values = codec(name).decode(BLOCKS[name], COLUMNS)
    assert digest(values) == FACTS[name]["values"]
    weights = np.random.default_rng(FACTS[name]["id"]).normal(0, 0.02, values.shape)
    assert np.corrcoef(values.reshape(-1), weights.reshape(-1))[0, 1] > 0.75


@pytest.mark.parametrize("name", [name for name in FACTS if "noise" in FACTS[name]])
def test_any_bytes_decode_as_the_fork_decodes_them(name: str) -> None:
    one = codec(name)
    rows = noise(name, 2 * max(4, one.type.interleaved), one.type.row_bytes(NOISE))
    assert digest(one.decode(rows, NOISE)) == FACTS[name]["noise"]


@pytest.mark.parametrize("name", [name for name in FACTS if codec(name).repack is not None])
def test_rows_taken_apart_are_llama_cpps_with_the_same_values(name: str) -> None:
    one, rows = codec(name), BLOCKS[name]
    assert one.repack is not None
    target = codec(one.repack.target)
    apart, changed = one.repack.apply(rows, COLUMNS)
    assert changed == 0 and target.runtime == LLAMA_CPP
    assert apart.shape == (len(rows), target.type.row_bytes(COLUMNS))
    assert digest(target.decode(apart, COLUMNS)) == FACTS[name]["values"]


def test_a_matrix_of_no_whole_groups_of_rows_is_refused() -> None:
    kind = codec("Q4_K_R4").type
    assert kind.nbytes((8, 256)) == 8 * 144
    for shape in ((6, 256), (256,), (2, 2, 256)):
        with pytest.raises(ValueError, match="whole groups of Q4_K_R4's 4 rows"):
            kind.nbytes(shape)
