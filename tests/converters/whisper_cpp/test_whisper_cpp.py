"""Files of whisper.cpp: held against its own programs, transformers, and a reading of their bytes that is not ours."""

from __future__ import annotations

import ctypes
import json
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ggferry.converters.conversion.plan import plan_source
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import Result, convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.whisper_cpp.file_types import FILE_TYPES
from ggferry.converters.whisper_cpp.vocabulary import special_ids
from ggferry.formats.errors import GgferryError, MissingError, RefusedError, UnsupportedError, UsageError
from ggferry.support.progress import silent
from helpers.speech import spoken
from helpers.whisper_cpp import library, run_whisper_cpp
from helpers.whisper_models import (
    ENGLISH,
    LARGE_V3,
    MULTILINGUAL,
    openai_name,
    ordinary_tokens,
    save_openai,
    save_whisper,
    special_tokens,
)

pytestmark = pytest.mark.filterwarnings("ignore")
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
}
"""GGML_TYPE → values and bytes of a block (ggml.h, ggml-common.h)."""
QUANTIZED = {"q4_0": (2, 2002), "q4_1": (3, 2003), "q5_0": (6, 2008), "q5_1": (7, 2009), "q8_0": (8, 2007)}
"""--outtype → GGML_TYPE, and the `ftype` that whisper.cpp's quantize writes."""


class Read(NamedTuple):
    """A file as whisper.cpp's loader walks it."""

    fields: tuple[int, ...]
    mel: np.ndarray
    tokens: list[bytes]
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]]


def read(path: Path | str) -> Read:
    data, at = Path(path).read_bytes(), 56
    assert data[:4] == b"lmgg"
    fields, (rows, columns) = struct.unpack_from("<11i", data, 4), struct.unpack_from("<2i", data, 48)
    mel = np.frombuffer(data, "<f4", rows * columns, at).reshape(rows, columns)
    at += mel.nbytes + 4
    tokens, tensors = [], {}
    for _ in range(struct.unpack_from("<i", data, at - 4)[0]):
        (size,) = struct.unpack_from("<i", data, at)
        tokens.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    while at < len(data):
        dims, length, kind = struct.unpack_from("<3i", data, at)
        sizes = struct.unpack_from(f"<{dims}i", data, at + 12)
        at += 12 + 4 * dims + length
        values, nbytes = BLOCKS[kind]
        end = at + int(np.prod(sizes)) // values * nbytes
        tensors[data[at - length : at].decode()] = kind, sizes, data[at:end]
        at = end
    return Read(fields, mel, tokens, tensors)


def request(source: Path, out: Path | None, outtype: str = "f16", **more: Any) -> Request:
    options = Options(outtype=outtype, allow_requantize=more.pop("allow_requantize", False))
    return Request(str(source), out and str(out), options, to="whisper.cpp", **{"level": "fast", **more})


def converted(source: Path, out: Path, outtype: str = "f16", **more: Any) -> Result:
    return convert(request(source, out, outtype, **more))[0]


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with transformers' model, and with files of it in every type of whisper.cpp's that is no k-quant."""
    folder = tmp_path_factory.mktemp("english")
    save_whisper(folder / "hf", ENGLISH, encoder_layers=1, decoder_layers=1)
    convert(request(folder / "hf", folder / "{outtype}.bin", ",".join(("f16", "f32", *QUANTIZED))))
    return folder


def by_script(state: dict[str, Any]) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """The tensors of an f16 file as convert-h5-to-ggml.py describes them, of transformers' float32 ones."""
    found = {}
    for name, tensor in state.items():
        if name == "proj_out.weight":
            continue
        ours, values = openai_name(name), tensor.numpy()
        if ours in ("encoder.conv1.bias", "encoder.conv2.bias"):
            values = values.reshape(-1, 1)
        narrow = values.ndim > 1 and not ours.endswith(("conv1.bias", "conv2.bias", "positional_embedding"))
        values = values.astype(np.float16) if narrow else values
        found[ours] = int(narrow), values.shape[::-1], values.tobytes()
    return found


def test_an_f16_file_is_what_the_script_of_whisper_cpp_writes(english: Path) -> None:
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(english / "hf")
    found = read(english / "f16.bin")
    assert found.fields == (ENGLISH, 1500, 64, 2, 1, 448, 64, 2, 1, 80, 1)
    assert np.array_equal(found.mel, WhisperFeatureExtractor(feature_size=80).mel_filters.T.astype(np.float32))
    assert found.tokens == ordinary_tokens(50256)
    assert found.tensors == by_script(model.state_dict())


@pytest.mark.parametrize("outtype", QUANTIZED)
def test_quantized_files_hold_what_ggml_makes_of_the_f16_file(outtype: str, english: Path) -> None:
    """whisper.cpp's quantize calls ggml_quantize_chunk of every matrix but positions and biases of convolutions."""
    ggml = library("ggml-base")
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p
    ]  # fmt: skip
    plain, found = read(english / "f16.bin"), read(english / f"{outtype}.bin")
    kind, ftype = QUANTIZED[outtype]
    assert found.fields == (*plain.fields[:-1], ftype) and found.tokens == plain.tokens
    assert list(found.tensors) == list(plain.tensors)
    for name, (before, sizes, data) in plain.tensors.items():
        if len(sizes) == 2 and before == 1:
            values = np.frombuffer(data, np.float16).astype(np.float32)
            made = np.zeros(len(found.tensors[name][2]), np.uint8)
            ggml.ggml_quantize_chunk(kind, values.ctypes, made.ctypes, 0, sizes[1], sizes[0], None)
            assert found.tensors[name] == (kind, sizes, made.tobytes()), name
        else:
            assert found.tensors[name] == (before, sizes, data), name


def test_whisper_cpp_computes_what_transformers_does(english: Path, tmp_path: Path) -> None:
    """It hears the recording through the file's filters, in float16: 0.037 apart, and 0.6 where it hears nothing."""
    import torch
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    samples, ids = spoken(), [50257, 50362, 17, 400, 30000]
    model = WhisperForConditionalGeneration.from_pretrained(english / "hf").eval()
    mel = WhisperFeatureExtractor(feature_size=80)(samples, sampling_rate=16000, return_tensors="np").input_features
    with torch.no_grad():
        expected = model(input_features=torch.from_numpy(mel), decoder_input_ids=torch.tensor([ids])).logits[0, -1]
    found = run_whisper_cpp(english / "f16.bin", samples, ids, tmp_path)
    assert relative(expected.numpy(), found["logits"]) < 0.06
    assert found["logits"].argmax() == int(expected.argmax())
    names = [name[:-1] for name in found["names"].tolist()]
    assert names[:50256] == [token.partition(b"\0")[0] for token in ordinary_tokens(50256)]  # as C texts
    assert names[50256:50259] == [b"[_EOT_]", b"[_SOT_]", b"[_LANG_en]"] and names[-1] == b"[_TT_1500]"


def relative(expected: np.ndarray, found: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# --- from other sources --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_of_whisper_cpp_is_quantized_to_what_its_model_gives(english: Path, tmp_path: Path) -> None:
    result = converted(english / "f16.bin", tmp_path / "x.bin", "q5_0", level="full")
    assert (tmp_path / "x.bin").read_bytes() == (english / "q5_0.bin").read_bytes()
    receipt = result.receipt
    assert receipt["to"] == "whisper.cpp" and receipt["runtimes"] == {"run_it": ["whisper.cpp"], "none": False}
    assert len(receipt["tensors"]) == 51 and not receipt["dropped"] and receipt["metadata"]["ftype"] == "--outtype"
    assert {tensor["grade"] for tensor in receipt["tensors"]} == {"identical", "rounded"}
    written = json.loads((tmp_path / "x.bin.receipt.json").read_text())
    assert [tensor["type"] for tensor in written["tensors"]] == [tensor["type"] for tensor in receipt["tensors"]]
    assert receipt["logits"]["relative_rms"] < 0.2 and receipt["tokenizer"]["equal"] == receipt["tokenizer"]["texts"]


@pytest.mark.slow
def test_quantized_files_keep_their_blocks_and_are_not_rounded_twice_unasked(english: Path, tmp_path: Path) -> None:
    converted(english / "q5_0.bin", tmp_path / "x.bin", "keep")
    assert (tmp_path / "x.bin").read_bytes() == (english / "q5_0.bin").read_bytes()
    with pytest.raises(RefusedError, match="rounds a second time"):
        converted(english / "q5_0.bin", tmp_path / "y.bin", "q8_0")
    assert not (tmp_path / "y.bin").exists()


@pytest.mark.slow
def test_blocks_of_early_files_become_todays(english: Path, tmp_path: Path) -> None:
    """ftype without a version means the blocks before May 2023, of which Q5_1's have the size of today's: two halves as
    F32 scale and minimum; here as such a file has them."""
    data = bytearray((english / "q5_1.bin").read_bytes())
    data[44:48] = struct.pack("<i", 9)
    (tmp_path / "early.bin").write_bytes(data)
    result = converted(tmp_path / "early.bin", tmp_path / "x.bin", "keep")
    source = open_checkpoint(str(tmp_path / "early.bin")).tensors["decoder.token_embedding.weight"]
    assert source.type.name == "Q5_1_V1" and read(tmp_path / "x.bin").fields[-1] == 2009
    assert {tensor["route"] for tensor in result.receipt["tensors"]} == {"copy", "repack"}


@pytest.mark.slow
def test_quantized_files_are_rounded_again_where_that_is_allowed(english: Path, tmp_path: Path) -> None:
    converted(english / "q5_0.bin", tmp_path / "y.bin", "q8_0", allow_requantize=True)
    assert read(tmp_path / "y.bin").fields[-1] == 2007


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ENGLISH, MULTILINGUAL, LARGE_V3])
def test_every_source_of_a_model_gives_one_file(rows: int, tmp_path: Path) -> None:
    """Of transformers' folder, OpenAI's .pt with that tokenizer and GGUF: header, tokens, tensors, what is heard."""
    model = save_whisper(tmp_path / "hf", rows)
    save_openai(tmp_path / "model.pt", model)
    converted(tmp_path / "hf", tmp_path / "hf.bin", level="full")
    tokenizer = VocabOptions(source=str(tmp_path / "hf"))
    converted(tmp_path / "model.pt", tmp_path / "pt.bin", "keep", vocab=tokenizer)
    convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), Options(outtype="f16"), level="fast"))
    converted(tmp_path / "x.gguf", tmp_path / "gguf.bin", "keep")
    expected = read(tmp_path / "hf.bin")
    end = 50257 if rows > ENGLISH else 50256
    assert expected.fields[0] == rows and expected.fields[9] == (128 if rows == LARGE_V3 else 80)
    assert len(expected.tokens) == end and expected.tokens[256:50256] == ordinary_tokens(50256)[256:]
    for name in ("pt", "gguf"):
        found = read(tmp_path / f"{name}.bin")
        assert (found.fields, found.tokens, found.tensors) == (expected.fields, expected.tokens, expected.tensors)
        assert np.array_equal(found.mel, expected.mel)
    samples, ids = spoken(), [end + 1, rows - 1502, 17, 400]
    heard = [run_whisper_cpp(tmp_path / f"{name}.bin", samples, ids, tmp_path) for name in ("hf", "pt")]
    assert all(np.array_equal(heard[0][key], heard[1][key]) for key in heard[0])


@pytest.mark.slow
def test_k_quants_run_where_rows_are_whole_blocks(tmp_path: Path) -> None:
    save_whisper(
        tmp_path / "hf", MULTILINGUAL, d_model=256, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
    )  # fmt: skip
    kinds = {"q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14}
    convert(request(tmp_path / "hf", tmp_path / "{outtype}.bin", ",".join(("f16", *kinds))))
    samples, ids = spoken(), [50258, 50363, 17, 400]
    plain = run_whisper_cpp(tmp_path / "f16.bin", samples, ids, tmp_path)["logits"]
    apart = []
    for outtype, kind in kinds.items():
        found = read(tmp_path / f"{outtype}.bin")
        assert found.fields[-1] == 2000 + FILE_TYPES[outtype]
        assert found.tensors["decoder.token_embedding.weight"][0] == kind
        apart.append(relative(plain, run_whisper_cpp(tmp_path / f"{outtype}.bin", samples, ids, tmp_path)["logits"]))
    assert apart == sorted(apart, reverse=True) and 0 < apart[-1] < 0.2


# --- what is refused -----------------------------------------------------------------------------------------------


def test_another_model_is_refused_in_one_line(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"whisper.cpp runs Whisper models alone: found LLaMA") as caught:
        converted(fixtures / "hf" / "ckpt" / "llama", tmp_path / "x.bin")
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("outtype", ["bf16", "q4_k_m", "iq4_nl", "q8_0,tq1_0", "mxfp4"])
def test_types_that_whisper_cpp_does_not_write_are_refused_by_name(outtype: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no type of whisper.cpp's files: found .* expected keep, f32, f16, q4_0"):
        convert(request(tmp_path, tmp_path / "{outtype}.bin", outtype))


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"imatrix": "x"}, "--imatrix"), ({"vocab": VocabOptions(none=True)}, "--no-vocab"),
        ({"max_shard_size": 5}, "--max-shard-size"), ({"metadata": {}}, "--metadata"), ({"mmproj": "only"}, "--mmproj"),
        ({"target_size": 5}, "--target-size"), ({"lora": ("x",)}, "--lora"),
    ],
)  # fmt: skip
def test_options_of_other_outputs_are_refused(change: dict[str, Any], flag: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{flag} is for --to (gguf|safetensors or mlx)$"):
        convert(request(tmp_path, tmp_path / "x.bin", **change))


def test_a_whisper_that_whisper_cpp_computes_otherwise_is_refused(english: Path, tmp_path: Path) -> None:
    """Each is one thing that its code has as a constant, or makes of another number."""
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer
    from ggferry.converters.understand import understand
    from ggferry.converters.whisper_cpp.plan import plan_file

    shutil.copytree(english / "hf", tmp_path / "hf")
    recordings = tmp_path / "hf" / "preprocessor_config.json"
    recordings.write_text(json.dumps({"feature_size": 80, "sampling_rate": 16000, "n_fft": 400, "hop_length": 160}))
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    tokenizer = load_tokenizer(graph.checkpoint, ENGLISH)
    assert tokenizer is not None and len(plan_file(graph, tokenizer, Options(outtype="f16")).steps) == 51

    def refused(words: str, vocabulary: Any = tokenizer, outtype: str = "f16", **values: Any) -> None:
        params = {name: replace(graph.hparams[name], value=value) for name, value in values.items()}
        changed = replace(graph, hparams={**graph.hparams, **params})
        with pytest.raises((UnsupportedError, MissingError), match=words):
            plan_file(changed, vocabulary, Options(outtype=outtype))

    refused("another width of the encoder's", n_ff_enc=128)
    refused("another width of the decoder's", n_ff=128)
    refused("another layer norm's epsilon", eps=1e-6)
    refused("another first token of a transcript: found 50258, expected 50257", decoder_start=50258)
    refused("which must be a Whisper's: found 600, expected 51864, 51865, 51866", n_vocab=600)
    refused("which must be a Whisper's: found 51968", n_vocab=51968)
    refused("fewer tokens than", replace(tokenizer, tokens=tokenizer.tokens[:400]))
    refused("hold the vocabulary, and the source has none", None)
    refused("byte-level vocabularies alone: found llama", replace(tokenizer, model="llama"))
    moved = [*tokenizer.tokens]
    moved[50361], moved[50362] = moved[50362], moved[50361]
    refused(r"another id for <\|.*\|> in a model of 51864 tokens", replace(tokenizer, tokens=tuple(moved)))
    refused("64 elements is not a multiple of Q4_K's block of 256.*one type for all", outtype="q4_k")
    recordings.write_text(json.dumps({"sampling_rate": 8000}))
    refused("another sampling_rate of recordings: found 8000, expected 16000")


@pytest.mark.parametrize("rows", [ENGLISH, MULTILINGUAL, LARGE_V3])
def test_special_tokens_are_where_the_constants_of_whisper_cpp_put_them(rows: int) -> None:
    """`whisper_vocab` and the shift by the number of languages in `whisper_model_load`, written out."""
    found, many = special_ids(rows), rows > ENGLISH
    shift = rows - 51765 - many - 98 if many else 0
    assert found["<|endoftext|>"] == 50256 + many and found["<|startoftranscript|>"] == 50257 + many
    for name, token in (
        ("translate", 50357),
        ("transcribe", 50358),
        ("startoflm", 50359),
        ("startofprev", 50360),
        ("nospeech", 50361),
        ("notimestamps", 50362),
        ("0.00", 50363),
    ):
        assert found[f"<|{name}|>"] == token + shift
    assert found["<|30.00|>"] == rows - 1 and len(special_tokens(rows)) == len(found)


# --- the run -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_follow_those_of_whisper_cpp(english: Path, tmp_path: Path) -> None:
    plan = plan_source(request(english / "hf", tmp_path, "f16,q5_0,f32"))
    assert [Path(one.paths[0]).name for one in plan.outputs] == ["ggml-hf.bin", "ggml-hf-q5_0.bin", "ggml-hf-f32.bin"]
    assert any("its first convolution" in note for note in plan.outputs[2].plan.notes)
    shutil.copy(english / "f16.bin", tmp_path / "ggml-base.en.bin")
    (again,) = plan_source(request(tmp_path / "ggml-base.en.bin", None, "q8_0")).outputs
    assert again.paths == (str(tmp_path / "ggml-base.en-q8_0.bin"),)
    assert not any("whisper.cpp reads its own" in note for note in again.plan.graph.notes)


def test_a_failure_leaves_nothing(english: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(english / "hf", tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    weights["model.decoder.layers.0.fc1.weight"][3, 3] = torch.nan
    save_file(weights, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GgferryError, match=r"fc1.weight"):
        converted(tmp_path / "hf", tmp_path / "x.bin", "q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.slow
def test_a_killed_run_leaves_no_file_of_that_name_and_the_next_one_the_same_bytes(
    english: Path, tmp_path: Path
) -> None:
    target, expected = tmp_path / "x.bin", (english / "q5_0.bin").read_bytes()
    argv = [sys.executable, "-m", "ggferry", "convert", str(english / "f16.bin"), "-o", str(target)]
    argv += ["--to", "whisper.cpp", "--outtype", "q5_0", "--verify", "fast"]
    started = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True)
    whole, killed = time.monotonic() - started, 0
    for part in range(8):
        target.unlink(missing_ok=True)
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep((0.3 + 0.08 * part) * whole)
        process.kill()
        killed += process.wait() < 0
        assert not target.exists() or target.read_bytes() == expected
    assert killed, "every run was over before it was killed"
    target.unlink(missing_ok=True)
    subprocess.run(argv, check=True, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.bin.receipt.json"]
    assert target.read_bytes() == expected


PLANTED = {
    "header": (16, "n_audio_head|encoder.attention.head_count"),
    "mel": (60, "mel_filters"),
    "vocabulary": (56 + 80 * 201 * 4 + 4 + 4, "vocabulary"),
    "tensor": (-7, "bytes differ|further"),
}
"""A byte of the file, and what the proof says of it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_noticed(name: str, english: Path, tmp_path: Path) -> None:
    at, words = PLANTED[name]
    data = bytearray((english / "f16.bin").read_bytes())
    (tmp_path / "x.bin").write_bytes(data)
    reverify(Request(str(english / "hf"), level="fast"), str(tmp_path / "x.bin"), silent)
    data[at] ^= 1
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(GgferryError, match=words):
        reverify(Request(str(english / "hf"), level="fast"), str(tmp_path / "x.bin"), silent)
