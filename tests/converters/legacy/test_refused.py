"""GGML-era files that are refused, and the reason each is given."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.errors import (
    CorruptError,
    GgferryError,
    MissingError,
    RefusedError,
    UnexpectedTensorError,
    UnknownFormatError,
)
from helpers.legacy_families import path_of, rewritten


def test_logits_are_no_model(fixtures: Path) -> None:
    with pytest.raises(UnknownFormatError):
        open_checkpoint(str(fixtures / "legacy-other/rwkv/expected_logits.bin"))


def test_a_stub_without_tensors_is_refused(fixtures: Path, tmp_path: Path) -> None:
    stub = str(fixtures / "legacy-other/whisper/for-tests-ggml-tiny.en.bin")
    with pytest.raises(MissingError, match="without tensors"):
        understand(open_checkpoint(stub))
    # Whisper's first files decoded their vocabulary.
    with pytest.raises(RefusedError, match="352 of 50257 tokens lost"):
        convert(Request(stub, str(tmp_path / "v.gguf"), Options(vocab_only=True)))


def test_whisper_of_four_byte_halves_is_refused(tmp_path: Path) -> None:
    """convert-pt-to-ggml.py from a float32 .pt: data of four bytes a value, called float16."""

    def halves(name, code, shape, data):
        return code, shape, data * 2 if code == 1 else data

    (tmp_path / "m.bin").write_bytes(rewritten(path_of("whisper/whisper-v600-q5_0.bin"), halves))
    with pytest.raises(CorruptError):
        open_checkpoint(str(tmp_path / "m.bin"))


def test_a_vocabulary_alone_may_be_of_several_families(tmp_path: Path) -> None:
    """Falcon's header is LLaMA's, NeoX's of April 2023 and bert.cpp's too, and there is no tensor's name to tell."""
    source = path_of("falcon/falcon40b-s64-jploski-f16.bin")
    checkpoint = open_checkpoint(source)
    first = next(iter(checkpoint.tensors.values()))
    end = first.spans[0].offset - len(first.name) - 12 - 4 * len(first.shape)
    bare = tmp_path / "vocab.bin"
    bare.write_bytes(Path(source).read_bytes()[:end])
    with pytest.raises(MissingError, match="--arch") as caught:
        open_checkpoint(str(bare))
    assert set(str(caught.value.found).split(", ")) == {"bert.cpp", "falcon", "gptneox-2023-04", "llama"}
    request = Request(str(bare), str(tmp_path / "v.gguf"), Options(vocab_only=True), arch="falcon")
    again = open_checkpoint(convert(request)[0].path)
    assert not again.tensors and len(again.metadata["tokenizer.ggml.merges"].data) == 255


@pytest.mark.parametrize("file", ["gptj/gptj-s64-g1-q4_1.bin", "falcon/falcon40b-s64-ggcc-q5_0.bin"])
def test_cut_at_any_place_is_one_of_our_errors(file: str, tmp_path: Path) -> None:
    data = Path(path_of(file)).read_bytes()
    cut = tmp_path / "cut.bin"
    for end in [*range(0, 64, 3), *range(64, 9000, 613), *range(9000, len(data), 19973), len(data) - 1]:
        cut.write_bytes(data[:end])
        with pytest.raises(GgferryError):
            understand(open_checkpoint(str(cut)))


@pytest.mark.slow
def test_any_header_byte_may_be_wrong(tmp_path: Path) -> None:
    for file in ("gpt2/gpt2-s64-g04-q4_3.bin", "mpt/mpt-clip-s64-g2-q4_0.bin", "falcon/falcon40b-s64-ggcc-q5_0.bin"):
        data = Path(path_of(file)).read_bytes()
        bad = tmp_path / "bad.bin"
        for at in range(4, 44):
            for flip in (0x01, 0xC0):
                bad.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
                try:
                    understand(open_checkpoint(str(bad)))
                except GgferryError:
                    continue


def test_a_tensor_of_no_role_is_named(tmp_path: Path) -> None:
    source = path_of("bloom/bloom-s64-bloomzcpp-q4_1.bin")
    data = Path(source).read_bytes()
    extra = struct.pack("<4i", 1, 11, 0, 4) + b"layers.0.xy" + bytes(16)
    (tmp_path / "m.bin").write_bytes(data + extra)
    with pytest.raises(UnexpectedTensorError, match=r"layers\.0\.xy"):
        understand(open_checkpoint(str(tmp_path / "m.bin")))
