"""What the peers let through: NaN, infinity, overflow, zeros, missing and contradicting parts, damaged archives."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import Result, convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.write import watch_weights
from ggferry.converters.write.watch_weights import first_bad, is_zero
from ggferry.formats.errors import (
    BadValueError,
    ChecksumError,
    GgferryError,
    MissingError,
    NotFoundError,
    ShapeError,
)
from ggferry.quant.codec import codecs
from ggferry.service.cli.app import _run as command
from helpers.builders import Llama
from helpers.llama_cpp import continuations

NO_VOCAB = VocabOptions(none=True)
WIDTH, FF, HEADS, KV_HEADS, LAYERS, VOCAB = 64, 96, 4, 2, 3, 72
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": FF,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
Q, OUT, UP = (f"model.layers.1.{name}.weight" for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"))
NORM = "model.layers.1.input_layernorm.weight"


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(2)
    kv = WIDTH // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (VOCAB, WIDTH),
        "lm_head": (VOCAB, WIDTH),
        "model.norm": (WIDTH,),
    }
    for n in range(LAYERS):
        shapes |= {
            f"model.layers.{n}.{name}": shape
            for name, shape in {
                "input_layernorm": (WIDTH,),
                "post_attention_layernorm": (WIDTH,),
                "self_attn.q_proj": (WIDTH, WIDTH),
                "self_attn.k_proj": (kv, WIDTH),
                "self_attn.v_proj": (kv, WIDTH),
                "self_attn.o_proj": (WIDTH, WIDTH),
                "mlp.gate_proj": (FF, WIDTH),
                "mlp.up_proj": (FF, WIDTH),
                "mlp.down_proj": (WIDTH, FF),
            }.items()
        }
    return {f"{name}.weight": torch.tensor(rng.normal(0, 0.1, shape)).to(dtype) for name, shape in shapes.items()}


def write(folder: Path, tensors: dict[str, torch.Tensor], **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changed}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def run(source: Path, out: Path, level: str = "fast", **options: Any) -> Result:
    return convert(Request(str(source), str(out), Options(**options), vocab=NO_VOCAB, level=level))[0]


# --- not finite --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["none", "fast"])
@pytest.mark.parametrize("outtype", ["keep", "f32", "f16", "q8_0"])
@pytest.mark.parametrize("name", [Q, OUT])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_refused_with_its_place(
    value: float, name: str, outtype: str, level: str, tmp_path: Path
) -> None:
    """On the copying, the permuting and the rounding route; the place is the source's also where rows move."""
    tensors = weights()
    tensors[name][37, 11] = value
    with pytest.raises(BadValueError) as caught:
        run(write(tmp_path / "in", tensors), tmp_path / "out.gguf", level, outtype=outtype)
    assert f"tensor {name!r}, row 37, column 11" in str(caught.value) and caught.value.exit_code == 5
    assert "--allow-nonfinite" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_of_a_vector_the_element_is_named(tmp_path: Path) -> None:
    tensors = weights()
    tensors[NORM][9] = torch.nan
    with pytest.raises(BadValueError, match=r"input_layernorm.weight', element 9"):
        run(write(tmp_path / "in", tensors), tmp_path / "out.gguf")


def test_a_scale_of_a_legacy_block_is_refused(tmp_path: Path) -> None:
    """Q4_0 of June 2023 is copied as it is: its float16 scale decides."""
    path = Llama(kind="Q4_0").write(tmp_path / "tiny.bin")
    clean = convert(Request(str(path), str(tmp_path / "clean.gguf"), level="fast"))[0]
    record = next(r for r in clean.receipt["tensors"] if r["name"] == "blk.1.ffn_up.weight")
    assert record["route"] == "copy"
    with open(tmp_path / "clean.gguf", "rb") as file:
        file.seek(record["offset"])
        block = file.read(18)
    data = bytearray(path.read_bytes())
    at = data.index(block) + 5 * 18 * (96 // 32) + 18
    data[at : at + 2] = struct.pack("<e", float("inf"))
    path.write_bytes(data)
    with pytest.raises(BadValueError, match=r"layers.1.feed_forward.w3.weight', row 5, column (3[2-9]|[45]\d|6[0-3])"):
        convert(Request(str(path), str(tmp_path / "out.gguf"), level="none"))


def test_allowed_they_are_copied_and_told(tmp_path: Path) -> None:
    tensors = weights()
    tensors[Q][37, 11], tensors[OUT][2, 3] = torch.nan, torch.inf
    source = write(tmp_path / "in", tensors)
    result = run(source, tmp_path / "out.gguf", "full", allow_nonfinite=True)
    (note,) = [note for note in result.receipt["notes"] if "not finite" in note]
    assert f"{Q!r}, row 37, column 11" in note and f"{OUT!r}, row 2, column 3" in note
    assert result.receipt["verified"] == "fast" and result.receipt["options"]["allow_nonfinite"]
    with pytest.raises(BadValueError, match="keep"):
        run(source, tmp_path / "f16.gguf", outtype="f16", allow_nonfinite=True)


def test_f16_overflow_names_the_place_and_bf16(tmp_path: Path) -> None:
    tensors = weights()
    tensors[UP][95, 63] = 70000.0
    with pytest.raises(BadValueError) as caught:
        run(write(tmp_path / "in", tensors), tmp_path / "out.gguf", outtype="f16")
    assert f"{UP!r}, row 95, column 63" in str(caught.value)
    assert "beyond the range of F16" in str(caught.value) and "--outtype bf16" in str(caught.value)
    run(tmp_path / "in", tmp_path / "out.gguf", outtype="bf16")


KINDS = sorted(name for name, codec in codecs().items() if not codec.type.whole_rows)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.randoms(use_true_random=False))
def test_the_quick_look_misses_nothing(kind: str, blocks: int, random: Any) -> None:
    """Random bytes, which are often no numbers: the first bad element is the decoder's first bad element."""
    codec = codecs()[kind]
    data = np.frombuffer(random.randbytes(blocks * codec.type.block_bytes), np.uint8)
    values = codec.decode(data.reshape(1, -1), blocks * codec.type.elements).reshape(-1)
    bad = np.flatnonzero(~np.isfinite(values))
    assert first_bad(codec.type, data) == (int(bad[0]) if len(bad) else None)
    assert is_zero(codec.type, data) == (not (values.any() if codec.type.quantized else data.any()))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_K"])
def test_a_bad_block_anywhere_in_a_long_run(kind: str) -> None:
    codec = codecs()[kind]
    blocks = 3 * watch_weights._PIECE + 7
    data = np.zeros((blocks, codec.type.block_bytes), np.uint8)
    assert first_bad(codec.type, data.reshape(-1)) is None
    for at in (0, watch_weights._PIECE - 1, watch_weights._PIECE, blocks - 1):
        worse = data.copy()
        worse[at, : codec.type.block_bytes if codec.type.elements == 1 else 2] = 0xFF
        found = first_bad(codec.type, worse.reshape(-1))
        assert found is not None and found // codec.type.elements == at


def test_a_matrix_of_zeros_is_told(tmp_path: Path) -> None:
    tensors = weights()
    tensors[OUT].zero_()
    tensors[NORM].zero_()
    tensors[UP][:-1].zero_()
    for outtype in ("keep", "q8_0"):
        result = run(write(tmp_path / "in", tensors), tmp_path / f"{outtype}.gguf", outtype=outtype)
        (note,) = [note for note in result.receipt["notes"] if "zero" in note]
        assert note == "all weights are zero in blk.1.attn_output.weight"


# --- missing and contradicting -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"num_hidden_layers": 4}, MissingError, "blocks"),
        ({"num_hidden_layers": 2}, GgferryError, "blocks"),
        ({"num_key_value_heads": 4}, ShapeError, "k_proj"),
        ({"num_attention_heads": 8}, ShapeError, "."),
        ({"intermediate_size": 128}, GgferryError, "."),
        ({"hidden_size": 128}, GgferryError, "."),
        ({"vocab_size": 80}, GgferryError, "."),
    ],
)
def test_config_and_weights_that_disagree(change: dict[str, int], error: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words) as caught:
        run(write(tmp_path / "in", weights(), **change), tmp_path / "out.gguf")
    assert caught.value.exit_code == 5, caught.value


@pytest.mark.parametrize("name", [Q, NORM, "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    tensors = weights()
    del tensors[name]
    with pytest.raises(MissingError) as caught:
        run(write(tmp_path / "in", tensors), tmp_path / "out.gguf")
    assert name in str(caught.value) and caught.value.exit_code == 5


def test_a_missing_block_in_the_middle(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in weights().items() if ".layers.1." not in name}
    with pytest.raises(MissingError, match=r"model\.layers\.1\."):
        run(write(tmp_path / "in", tensors), tmp_path / "out.gguf")


def shards(folder: Path) -> Path:
    tensors = weights()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = list(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:15], "model-00002-of-00002.safetensors": names[15:]}
    for file, mine in parts.items():
        save_file({name: tensors[name] for name in mine}, folder / file)
    where = {name: file for file, mine in parts.items() for name in mine}
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_missing_shard_is_named_with_exit_code_3(tmp_path: Path) -> None:
    folder = shards(tmp_path / "in")
    run(folder, tmp_path / "out.gguf")
    (folder / "model-00002-of-00002.safetensors").unlink()
    for indexed in (True, False):
        with pytest.raises(NotFoundError, match="model-00002-of-00002") as caught:
            run(folder, tmp_path / "again.gguf")
        assert caught.value.exit_code == 3
        if indexed:
            (folder / "model.safetensors.index.json").unlink()


@pytest.mark.slow
def test_meta_parts_and_params_that_disagree(tmp_path: Path) -> None:
    """P24: width of params.json against the shapes; a part of the model that is not there."""
    kv = WIDTH // HEADS * KV_HEADS
    tensors = {"tok_embeddings.weight": (VOCAB, WIDTH), "norm.weight": (WIDTH,), "output.weight": (VOCAB, WIDTH)}
    for n in range(2):
        tensors |= {
            f"layers.{n}.attention.wq.weight": (WIDTH, WIDTH),
            f"layers.{n}.attention.wk.weight": (kv, WIDTH),
            f"layers.{n}.attention.wv.weight": (kv, WIDTH),
            f"layers.{n}.attention.wo.weight": (WIDTH, WIDTH),
            f"layers.{n}.feed_forward.w1.weight": (FF, WIDTH),
            f"layers.{n}.feed_forward.w2.weight": (WIDTH, FF),
            f"layers.{n}.feed_forward.w3.weight": (FF, WIDTH),
            f"layers.{n}.attention_norm.weight": (WIDTH,),
            f"layers.{n}.ffn_norm.weight": (WIDTH,),
        }
    made = {name: torch.randn(shape).half() for name, shape in tensors.items()}
    params = {
        "dim": WIDTH,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "n_layers": 2,
        "norm_eps": 1e-5,
        "vocab_size": -1,
        "multiple_of": 32,
    }

    def folder(name: str, part: str = "consolidated.00.pth", **changed: int) -> Path:
        (tmp_path / name).mkdir()
        torch.save(made, tmp_path / name / part)
        (tmp_path / name / "params.json").write_text(json.dumps({**params, **changed}))
        return tmp_path / name

    run(folder("good"), tmp_path / "good.gguf")
    for change, code in (({"dim": 2 * WIDTH}, 3), ({"n_layers": 3}, 5), ({"n_kv_heads": HEADS}, 5)):
        with pytest.raises(GgferryError) as caught:  # of twice the width, a second part is what is missing
            run(folder(f"bad {change}", **change), tmp_path / "bad.gguf")
        assert caught.value.exit_code == code, caught.value
    with pytest.raises(NotFoundError, match=r"consolidated\.00\.pth"):
        run(folder("half", "consolidated.01.pth"), tmp_path / "bad.gguf")


# --- archives ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("level", ["none", "fast", "full"])
def test_a_damaged_archive_is_never_published(level: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    path = folder / "pytorch_model.bin"
    torch.save(weights(torch.float16), path)
    result = run(folder, tmp_path / "good.gguf", level)
    assert any("CRC-32" in note for note in result.receipt["notes"])
    with zipfile.ZipFile(path) as archive:
        storages = [entry for entry in archive.infolist() if "/data/" in entry.filename]
        largest = max(storages, key=lambda entry: entry.file_size)
    data = bytearray(path.read_bytes())
    data[largest.header_offset + 1000] ^= 1  # a weight that is as plausible as before
    path.write_bytes(data)
    with pytest.raises(ChecksumError) as caught:
        run(folder, tmp_path / "bad.gguf", level)
    assert caught.value.exit_code == 5 and not list(tmp_path.glob("bad*"))


# --- llama.cpp ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_llama_cpp_loads_other_alignments(tmp_path: Path) -> None:
    source = str(Llama(n_vocab=300, kind="F16", version=1).write(tmp_path / "tiny.bin"))
    paths = []
    for alignment in (32, 64, 4096, 8):
        out = str(tmp_path / f"{alignment}.gguf")
        result = convert(Request(source, out, Options(alignment=alignment), level="fast"))[0]
        assert all(tensor["offset"] % alignment == 0 for tensor in result.receipt["tensors"])
        assert any("not a multiple of 32" in note for note in result.receipt["notes"]) == (alignment == 8)
        paths.append(Path(out))
    first, *others = continuations([1, 260, 17], 3, *paths[:-1])
    assert first and all(other == first for other in others)


@pytest.mark.parametrize("name", ["Phi3 mini", "tiny-PHI-3-test"])
def test_a_name_that_llama_cpp_cannot_load_is_told(name: str, tmp_path: Path) -> None:
    source = str(Llama(n_vocab=300, kind="F16", version=1).write(tmp_path / "tiny.bin"))
    named = convert(Request(source, str(tmp_path / "named.gguf"), model_name=name, level="fast"))[0]
    (note,) = [note for note in named.receipt["notes"] if "<|endoftext|>" in note]
    assert "llama.cpp" in note and "--model-name" in note
    other = convert(Request(source, str(tmp_path / "other.gguf"), model_name="Mini", level="fast"))[0]
    assert not any("<|endoftext|>" in note for note in other.receipt["notes"])
    with pytest.raises(AssertionError):
        continuations([1, 260, 17], 1, tmp_path / "named.gguf")
    assert continuations([1, 260, 17], 1, tmp_path / "other.gguf")


def test_the_flag_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = weights()
    tensors[OUT][2, 3] = torch.inf
    source, out = str(write(tmp_path / "in", tensors)), str(tmp_path / "out.gguf")
    plain = ["convert", source, "-o", out, "--no-vocab", "--verify", "fast"]
    assert command(plain) == 5
    assert f"{OUT!r}, row 2, column 3" in capsys.readouterr().err
    assert command([*plain, "--allow-nonfinite"]) == 0
    assert "not finite were copied" in capsys.readouterr().err
