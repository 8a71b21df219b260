"""Folders for MLX hold the source's values: what MLX and mlx-lm made of them, in fixtures/mlx, and round trips."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.metadata.beside import FOLDER_RECEIPT
from ggferry.converters.mlx_folder.config_keys import older_keys
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import UsageError, VerificationError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.sources import LocalFile
from ggferry.quant.affine_groups import LEVELS, affine_groups, pack_stream
from ggferry.quant.codec import codec
from ggferry.quant.codecs.packed import unpack_stream
from ggferry.support.progress import silent
from helpers.make_mlx_fixtures import SOURCES, TOKENS, TYPES, groups, sha
from helpers.packed_fp8_gptq import gptq, gptq_config
from helpers.quantized_llama import model, write
from helpers.third_party_fixtures import FIXTURES

ANSWERS = json.loads((FIXTURES / "mlx" / "answers.json").read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    room = tmp_path_factory.mktemp("mlx")
    for name, source in SOURCES.items():
        convert(Request(str(FIXTURES / source), str(room / name), to="mlx", dtype="f32", level="fast"))
    return {name: room / name for name in SOURCES}


@pytest.mark.parametrize("name", TYPES)
def test_mlx_computes_the_values_of_the_blocks(name: str) -> None:
    answer, (words, scales, biases) = ANSWERS["types"][name], groups(name)
    assert sha(words, scales, biases) == answer["given"]
    form, one = affine_groups(codec(name).type), codec(name)
    values = np.random.default_rng(33).normal(size=(len(words), scales.shape[1] * form.size)).astype(np.float32)
    assert one.encode is not None
    assert sha(one.decode(one.encode(values, None), values.shape[1]) + 0.0) == answer["values"]


@pytest.mark.parametrize("name", LEVELS)
def test_any_blocks_are_taken_apart_exactly(name: str) -> None:
    form, one = affine_groups(codec(name).type), codec(name)
    assert form is not None
    blocks = np.random.default_rng(7).integers(0, 256, (40, one.type.row_bytes(512)), np.uint8)
    expected = one.decode(blocks, 512)
    words, scales, biases = form.apart(blocks, 512)
    codes = unpack_stream(np.ascontiguousarray(words), form.bits, 512).reshape(40, -1, form.size)
    with np.errstate(all="ignore"):
        found = (codes.astype(np.float32) * scales[..., None] + biases[..., None]).reshape(40, 512)
    whole = np.isfinite(expected)
    assert whole.any() and np.array_equal(found[whole], expected[whole]) and not np.isfinite(found[~whole]).any()


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_codes_are_read_back(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 64), np.uint8)
    packed = np.ascontiguousarray(pack_stream(codes, bits))
    assert packed.shape == (3, 8 * bits) and np.array_equal(unpack_stream(packed, bits, 64), codes)


@pytest.mark.parametrize("name", SOURCES)
def test_mlx_and_mlx_lm_agree_with_the_source(folders: dict[str, Path], name: str) -> None:
    answer, folder = ANSWERS["folders"][name], folders[name]
    data = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == answer["given"], "make fixtures/mlx again, with MLX"
    checkpoint = graph_of(str(folder)).checkpoint
    assert len(answer["values"]) > 10 or not SOURCES[name].endswith(".gguf")
    for tensor, expected_sha in answer["values"].items():
        ref = checkpoint.tensors[tensor]
        assert sha(values_of(checkpoint, ref, 0, ref.rows) + 0.0) == expected_sha, tensor
    expected = np.load(FIXTURES / "mlx" / "logits.npz")[name]
    found = np.asarray(forward(graph_of(str(FIXTURES / SOURCES[name])), list(TOKENS)))
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()


def test_the_receipt_accounts_for_every_tensor(folders: dict[str, Path]) -> None:
    receipt = json.loads((folders["k256"] / FOLDER_RECEIPT).read_text())
    config = json.loads((folders["k256"] / "config.json").read_text())
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(FIXTURES / SOURCES["k256"]).tensors}
    made = {one["name"]: types for each in receipt["tensors"] for one in each["of"] for types in one["types"]}
    assert receipt["to"] == "mlx" and made == kinds and all(each["exact"] for each in receipt["tensors"])
    packed = {each["type"] for each in receipt["tensors"] if "packed" in each}
    assert packed == {"Q4_K"} and config["quantization"] == {"group_size": 32, "bits": 4}
    assert any("Q6_K are written as values" in note for note in receipt["notes"])


def test_a_round_trip_keeps_blocks(folders: dict[str, Path], tmp_path: Path) -> None:
    convert(Request(str(folders["llama"]), str(tmp_path / "again.gguf"), level="fast"))
    first, again = (
        {each.name: each for each in gguf.GGUFReader(path).tensors}
        for path in (FIXTURES / SOURCES["llama"], tmp_path / "again.gguf")
    )
    assert {each.tensor_type.name for each in first.values()} == {"Q8_0", "F32"} and first.keys() == again.keys()
    for name, each in first.items():
        assert each.tensor_type == again[name].tensor_type and np.array_equal(each.data, again[name].data), name


def test_a_gptq_checkpoint_is_carried(tmp_path: Path) -> None:
    tensors, meaning = model(gptq(4, 32, symmetric=True))
    source, out = write(tmp_path / "gptq", tensors, gptq_config(4, 32)), tmp_path / "out"
    convert(Request(str(source), str(out), to="mlx", vocab=VocabOptions(none=True)))
    checkpoint = graph_of(str(out)).checkpoint
    for name, values in meaning.items():
        ref = checkpoint.tensors[name]
        assert ref.derived is not None and np.array_equal(values_of(checkpoint, ref, 0, ref.rows), values), name


@pytest.mark.parametrize("outtype", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_plain_matrices_are_encoded_as_asked(tmp_path: Path, outtype: str) -> None:
    source, out = str(FIXTURES / "hf" / "out" / "llama" / "llama.f32.gguf"), tmp_path / "out"
    convert(Request(source, str(out), to="mlx", options=Options(outtype=outtype), level="fast"))
    receipt = json.loads((out / FOLDER_RECEIPT).read_text())
    packed = [each for each in receipt["tensors"] if "packed" in each]
    assert len(packed) > 10 and all(each["type"] == outtype.upper() and each["max_error"] > 0 for each in packed)
    one, checkpoint = codec(outtype), graph_of(str(out)).checkpoint
    graph = graph_of(source)
    node = graph.by_name["blk.0.ffn_down.weight"]
    values = values_of(graph.checkpoint, node.inputs[0], 0, node.shape[0])
    ref = checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]
    assert one.encode is not None
    expected = one.decode(one.encode(values, None), values.shape[1])
    assert np.array_equal(values_of(checkpoint, ref, 0, ref.rows), expected)
    reverify(Request(source), str(out), silent)


def test_q6_k_is_encoded_again_only_where_that_is_allowed(tmp_path: Path) -> None:
    source = str(FIXTURES / SOURCES["k256"])
    for allowed, kinds in ((False, {"Q4_K"}), (True, {"Q4_K", "Q8_0"})):
        options = Options(outtype="q8_0", allow_requantize=allowed)
        out = tmp_path / str(allowed)
        convert(Request(source, str(out), to="mlx", options=options, level="fast"))
        tensors = json.loads((out / FOLDER_RECEIPT).read_text())["tensors"]
        assert {each["type"] for each in tensors if "packed" in each} == kinds
        assert all(each["exact"] == (each["type"] != "Q8_0") for each in tensors)


def test_types_without_groups_are_refused(tmp_path: Path) -> None:
    for outtype in ("q6_k", "auto", "f16", "q4_k_m"):
        asked = Request(str(FIXTURES / SOURCES["k256"]), str(tmp_path / "x"), Options(outtype=outtype), to="mlx")
        with pytest.raises(UsageError, match="MLX"):
            convert(asked)
    assert not list(tmp_path.iterdir())


def test_a_changed_folder_does_not_verify(folders: dict[str, Path], tmp_path: Path) -> None:
    source, out = str(FIXTURES / SOURCES["k256"]), tmp_path / "out"
    assert reverify(Request(source, level="fast"), str(folders["k256"]), silent).proof.tensors
    convert(Request(source, str(out), to="mlx", level="none"))
    path = out / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(VerificationError, match="not the folder its receipt"):
        reverify(Request(source, level="fast"), str(out), silent)
    receipt = json.loads((out / FOLDER_RECEIPT).read_text())
    for each in receipt["output"]["files"]:
        with LocalFile(Named(str(out / each["name"]))) as file:
            each["blake3"] = digest(file)
    (out / FOLDER_RECEIPT).write_text(json.dumps(receipt))
    with pytest.raises(VerificationError):
        reverify(Request(source, level="fast"), str(out), silent)


def test_what_has_no_vocabulary_is_verified_without(tmp_path: Path) -> None:
    source, out = str(FIXTURES / SOURCES["k256"]), tmp_path / "out"
    convert(Request(source, str(out), to="mlx", level="fast", vocab=VocabOptions(none=True)))
    assert not (out / "tokenizer.json").exists()
    assert reverify(Request(source, level="fast"), str(out), silent).proof.tensors


def test_config_json_has_the_keys_that_mlx_lm_reads() -> None:
    rotation = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "partial_rotary_factor": 0.25}
    found = older_keys({"model_type": "x", "rope_parameters": rotation})
    scaling = {**rotation, "type": "llama3"}
    assert found == {"rope_theta": 5e5, "partial_rotary_factor": 0.25, "rope_scaling": scaling}
    found = older_keys({"model_type": "gpt_neox", "rope_parameters": rotation})
    assert found["rotary_emb_base"] == 5e5 and found["rotary_pct"] == 0.25
    assert older_keys({"model_type": "gpt2", "n_positions": 64}) == {"n_ctx": 64}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    found = older_keys({"text_config": {"rope_parameters": {"full_attention": plain, "sliding_attention": plain}}})
    assert found["text_config"]["rope_theta"] == found["text_config"]["rope_local_base_freq"] == 1e4
    found = older_keys({"model_type": "qwen3_moe", "num_local_experts": 8, "rope_scaling": plain})
    assert found == {"num_experts": 8, "rope_scaling": None, "mlp_only_layers": []}
