"""`diff`: keys, tensors and errors, which agree with what numpy says of gguf-py's own dequantization."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import codec
from helpers.attack_tools import typed


@pytest.fixture
def pair(fixtures: Path) -> tuple[Path, Path]:
    folder = fixtures / "hf" / "out" / "llama"
    return folder / "llama.f32.gguf", folder / "llama.q8_0.gguf"


def test_errors_are_what_gguf_py_gives(pair: tuple[Path, Path]) -> None:
    found = ggferry.diff(*pair)
    first, second = ({tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors} for path in pair)
    assert [key.key for key in found.keys] == ["general.file_type"] and found.same_tensors == 5
    errors = [tensor.relative_rms or 0 for tensor in found.tensors]
    assert len(errors) == 16 and errors == sorted(errors, reverse=True)
    for each in found.tensors:
        a, b = (
            gguf.quants.dequantize(side[each.name].data, side[each.name].tensor_type).astype(np.float64)
            for side in (first, second)
        )
        assert each.relative_rms == pytest.approx(np.sqrt(np.mean((a - b) ** 2) / np.mean(a**2)), rel=1e-6)
        assert each.largest == pytest.approx(np.abs(a - b).max(), rel=1e-5)


def test_exit_codes_and_texts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    done = typed("diff", *pair)
    assert done.code == 1 and "+ general.file_type = 7:u32" in done.out and "F32 → Q8_0" in done.out
    assert typed("diff", pair[0], pair[0]).code == 0
    assert json.loads(typed("diff", *pair, "--json").out)["differs"] is True
    assert typed("diff", *pair, "--no-data").code == 1
    changed = tmp_path / "a.gguf"
    shutil.copy(pair[0], changed)
    ggferry.edit(changed, set={"tokenizer.ggml.tokens[300]": "x"}, remove=["general.name"])
    found = ggferry.diff(pair[0], changed)
    assert [(key.key, key.items, key.place) for key in found.keys] == [
        ("general.name", None, None),
        ("tokenizer.ggml.tokens", 1, 300),
    ]
    assert not found.tensors and "- tokenizer.ggml.tokens[300] = " in typed("diff", pair[0], changed).out
    shards = ggferry.split(pair[0], tmp_path / "cut", split_max_tensors=9)
    assert not ggferry.diff(pair[0], shards.output).differs


def test_shapes_values_and_what_is_not_finite(tmp_path: Path) -> None:
    f32, f16 = codec("F32").type, codec("F16").type
    rows = np.arange(1, 301_001, dtype="<f4")  # one row longer than a piece
    bad = rows.copy()
    bad[5] = np.nan
    keys = {"general.architecture": string("x")}
    first = [
        ("long", f32, (301_000,), rows.tobytes()),
        ("gone", f32, (2,), bytes(8)),
        ("shape", f32, (2, 3), bytes(24)),
        ("nan", f32, (301_000,), rows.tobytes()),
        ("same", f32, (8,), rows[:8].tobytes()),
    ]
    moved = rows.copy()
    moved[300_500] += 2
    second = [
        ("long", f32, (301_000,), moved.tobytes()),
        ("new", f32, (2,), bytes(8)),
        ("shape", f32, (3, 2), bytes(24)),
        ("nan", f32, (301_000,), bad.tobytes()),
        ("same", f16, (8,), rows[:8].astype("<f2").tobytes()),
    ]
    write_gguf(tmp_path / "a.gguf", keys, first)
    write_gguf(tmp_path / "b.gguf", keys, second)
    found = {each.name: each for each in ggferry.diff(tmp_path / "a.gguf", tmp_path / "b.gguf").tensors}
    assert found["long"].largest == 2 and found["nan"].not_finite and found["same"].relative_rms == 0
    assert found["gone"].second is None and found["new"].first is None and found["shape"].relative_rms is None
    done = typed("diff", tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert done.code == 1 and "2×3 → 3×2" in done.out and "not all values are finite" in done.out
    assert typed("diff", tmp_path / "a.gguf", tmp_path / "b.gguf", "--json").code == 1


def test_a_checkpoint_and_what_llama_cpp_made_of_it(fixtures: Path, pair: tuple[Path, Path]) -> None:
    """Permuted rows are compared through their layout."""
    found = ggferry.diff(fixtures / "hf" / "ckpt" / "llama", pair[0])
    assert not found.tensors and found.same_tensors == 21 and not found.keys
    errors = [each.relative_rms or 1 for each in ggferry.diff(fixtures / "hf" / "ckpt" / "llama", pair[1]).tensors]
    assert len(errors) == 16 and max(errors) < 0.01


@pytest.mark.parametrize("name", ["gpt2", "falcon7b", "mixtral"])
def test_transposed_merged_and_stacked(tmp_path: Path, fixtures: Path, name: str) -> None:
    made = ggferry.convert(fixtures / "hf" / "ckpt" / name, tmp_path / "out.gguf", outtype="q8_0", verify="none")
    found = ggferry.diff(fixtures / "hf" / "ckpt" / name, made.output)
    assert found.tensors and max(each.relative_rms or 1 for each in found.tensors) < 0.01
    assert found.same_tensors + found.same_values > 5


def test_a_legacy_file_and_its_conversion(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
    ggferry.convert(source, tmp_path / "new.gguf", verify="none")
    found = ggferry.diff(source, tmp_path / "new.gguf")
    assert not found.tensors and found.same_values == 16 and found.same_tensors == 5
    done = typed("diff", source, tmp_path / "new.gguf")
    assert "compared by roles" in done.err and done.code == int(found.differs)
