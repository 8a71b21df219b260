"""Files with block types of ik_llama.cpp: brought back to llama.cpp's, or refused with the way out, named by doctor."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.converters.analysis import mixed_endian
from ggferry.converters.analysis.doctor import examine
from ggferry.converters.analysis.weight_scan import odd_tensors
from ggferry.converters.model_graph.rows import values_of
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, OutOfRangeError, RefusedError, ShapeError, TruncatedError
from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import lay_out, write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.quant.codec import LLAMA_CPP, block_type, codec
from helpers.llama_cpp import continuations
from helpers.make_ik_fixtures import digest
from helpers.third_party_fixtures import FIXTURES

OWN, INTERLEAVED = FIXTURES / "ik-llama/own.gguf", FIXTURES / "ik-llama/interleaved.gguf"
VALUES = json.loads((FIXTURES / "ik-llama/models.json").read_text())


def values(checkpoint: Checkpoint, name: str) -> np.ndarray:
    ref = checkpoint.tensors[name]
    return values_of(checkpoint, ref, 0, ref.rows)


@pytest.mark.parametrize("source", [OWN, INTERLEAVED], ids=lambda path: path.stem)
def test_float32_has_the_forks_values(source: Path, tmp_path: Path) -> None:
    made = ggferry.convert(source, tmp_path / "out.gguf", outtype="f32", verify="none")
    found = open_gguf(str(made.output))
    assert VALUES[source.name].keys() <= found.tensors.keys()
    for name, wanted in VALUES[source.name].items():
        assert digest(values(found, name)) == wanted, name


def test_interleaved_rows_are_kept_in_llama_cpps_types_which_it_runs(tmp_path: Path) -> None:
    """The same values in blocks of the same size, and llama.cpp continues texts as it does from float32."""
    kept = open_gguf(str(ggferry.convert(INTERLEAVED, tmp_path / "kept.gguf").output))
    ggferry.convert(INTERLEAVED, tmp_path / "plain.gguf", outtype="f32", verify="none")
    source = open_gguf(str(INTERLEAVED))
    assert sum(ref.type.interleaved > 1 for ref in source.tensors.values()) == 9
    for name, ref in source.tensors.items():
        one = codec(ref.type.name)
        assert kept.tensors[name].type.name == (one.repack.target if one.repack else ref.type.name)
        assert kept.tensors[name].nbytes == ref.nbytes
        assert np.array_equal(values(kept, name), values(source, name))
    assert all(codec(ref.type.name).runtime == LLAMA_CPP for ref in kept.tensors.values())
    first, second = continuations([1, 5, 9], 6, tmp_path / "kept.gguf", tmp_path / "plain.gguf")
    assert len(first) == len(second) > 0
    assert max(abs(a - b) for (_, a), (_, b) in zip(first, second, strict=True)) < 0.05


def test_rows_anywhere_are_those_of_the_whole() -> None:
    source = open_gguf(str(OWN))
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.ffn_gate.weight"):
        ref, whole = source.tensors[name], values(source, name)
        for start, stop in ((0, 1), (3, 6), (5, 5), (7, 64), (63, 64)):
            assert np.array_equal(values_of(source, ref, start, stop), whole[start:stop])


def test_types_without_a_counterpart_are_not_copied_and_the_way_out_works(tmp_path: Path) -> None:
    for options, hint in (({}, "--outtype bf16"), ({"outtype": "q4_k_m"}, "--allow-requantize")):
        with pytest.raises(RefusedError, match=hint):
            ggferry.convert(OWN, tmp_path / "out.gguf", **options)
    assert not list(tmp_path.iterdir())
    made = ggferry.convert(OWN, tmp_path / "out.gguf", outtype="q8_0", allow_requantize=True, verify="none")
    assert {ref.type.name for ref in open_gguf(str(made.output)).tensors.values()} == {"Q8_0", "F32"}


def test_editing_and_splitting_leave_the_blocks_as_they_are(tmp_path: Path) -> None:
    wanted = ggferry.hashes(OWN, "blake3")
    assert ggferry.hashes(ggferry.edit(OWN, tmp_path / "e.gguf", set={"general.name": "x"}).output, "blake3") == wanted
    shards = ggferry.split(OWN, tmp_path / "s", split_max_tensors=5)
    assert Path(ggferry.merge(shards.output, tmp_path / "m.gguf").output).read_bytes() == OWN.read_bytes()


def test_doctor_names_the_program_and_the_way_back() -> None:
    own, interleaved = examine(str(OWN)), examine(str(INTERLEAVED))
    assert "supported by ik_llama.cpp (as GGUF)" in own.findings
    assert own.remedies[0].command.endswith("own-llama.cpp.gguf --outtype bf16")
    assert interleaved.remedies[0].command.endswith("-o interleaved-llama.cpp.gguf")
    assert any("Q5_0_R4" in line and "only ik_llama.cpp reads" in line for line in interleaved.findings)


def test_odd_weights_are_found_in_them(tmp_path: Path) -> None:
    kind, rows = block_type("IQ4_KS_R4"), np.zeros((8, block_type("IQ4_KS_R4").row_bytes(256)), np.uint8)
    rows[4:, :16] = np.full(4, np.nan, "<f4").view(np.uint8)
    write_gguf(tmp_path / "bad.gguf", {"general.architecture": string("llama")}, [("w", kind, (8, 256), rows)])
    (odd,) = odd_tensors(open_gguf(str(tmp_path / "bad.gguf")), lambda count: None)
    assert odd.not_finite == 4 * 256


def test_rows_that_are_no_whole_groups_are_refused_with_the_tensor(tmp_path: Path) -> None:
    layout = lay_out({"general.architecture": string("llama")}, [("w", block_type("Q4_K"), (6, 256))])
    data = bytearray(layout.header + bytes(layout.size - layout.data_offset))
    at = data.index(b"\x06\0\0\0\0\0\0\0") + 8
    data[at : at + 4] = (212).to_bytes(4, "little")
    (tmp_path / "six.gguf").write_bytes(data)
    with pytest.raises(ShapeError, match=r"tensor 0 'w': .*whole groups of Q4_K_R4's 4 rows"):
        open_gguf(str(tmp_path / "six.gguf"))


def test_a_row_that_is_too_long_to_be_held_is_refused(tmp_path: Path) -> None:
    layout = lay_out({"general.architecture": string("llama")}, [("w", block_type("IQ4_KS"), (1 << 22,))])
    (tmp_path / "long.gguf").write_bytes(layout.header)
    with pytest.raises(OutOfRangeError, match="elements of a row of IQ4_KS, which is read whole"):
        open_gguf(str(tmp_path / "long.gguf"))


@pytest.mark.parametrize("source", [OWN, INTERLEAVED], ids=lambda path: path.stem)
def test_the_other_byte_order_has_the_same_values(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_endian, "SAMPLE", 1)
    found = open_gguf(str(source))
    tensors = [
        (ref.name, ref.type, ref.shape, found.files[0].read(ref.spans[0].offset, ref.nbytes))
        for ref in found.tensors.values()
    ]
    write_gguf(tmp_path / "big.gguf", dict(found.metadata), tensors, big_endian=True)
    assert examine(str(tmp_path / "big.gguf")).exit_code == 0
    big = open_gguf(str(tmp_path / "big.gguf"))
    assert all(digest(values(big, name)) == wanted for name, wanted in VALUES[source.name].items())


def test_a_cut_or_a_changed_type_ends_in_one_of_our_errors(tmp_path: Path) -> None:
    whole, path = OWN.read_bytes(), tmp_path / "x.gguf"
    path.write_bytes(whole[:-40])
    with pytest.raises(TruncatedError):
        open_gguf(str(path))
    start = re.search(rb"blk\.0\.attn_q\.weight", whole).end()  # type: ignore[union-attr]
    place = start + 4 + 16
    assert int.from_bytes(whole[place : place + 4], "little") == 338
    for number in (*range(130, 160), *range(200, 235), *range(335, 400)):
        path.write_bytes(whole[:place] + number.to_bytes(4, "little") + whole[place + 4 :])
        try:
            open_gguf(str(path))
        except GgferryError:
            continue
        assert block_type("IQ3_K_R4").nbytes((256, 256)) - 31 <= size_of(number) <= size_of(338)


def size_of(number: int) -> int:
    from ggferry.quant.codec import types_by_id

    return types_by_id()[number].nbytes((256, 256))


def test_the_package_gguf_is_not_asked_for_what_it_does_not_know(tmp_path: Path) -> None:
    done = ggferry.convert(OWN, tmp_path / "out.gguf", outtype="f16", verify="fast")
    found = done.receipt["second_reader"]
    assert found["none"].endswith("the block types of ik_llama.cpp"), found
