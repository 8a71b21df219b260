"""Pocket TTS's backbone: what its publisher's classes and llama.cpp compute (`helpers/make_pocket_tts_fixtures.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.rows import laid_out_values
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers import tiny_pocket_tts as tiny
from helpers.asked_llama_cpp import alike
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import check_streaming, relative
from helpers.tiny_models import write as written

IN = f"{tiny.PREFIX}.1.self_attn.in_proj.weight"
EVERY_ROW = tiny.PIECES + 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_both_sides_compute_what_the_publishers_classes_do(name: str, tmp_path: Path) -> None:
    shape, expected = tiny.VARIANTS[name], tiny.recorded()[name]
    tensors = tiny.tensors(shape)
    source = graph_of(str(tiny.write(tmp_path / "model", tensors)), dict(shape.hparams))
    for graph in (source, graph_of(str(written(source, tmp_path / "x.gguf")))):
        found = forward(graph, shape.tokens)
        if shape.z_dim:
            found = found @ tensors["flow_lm.z_proj.weight"].T
        assert relative(expected, found[:, :: tiny.EVERY]) <= 2e-6


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["plain", "unvoiced"])
def test_rows_of_no_text_follow_those_of_texts(name: str, tmp_path: Path) -> None:
    made = tiny.tensors(tiny.VARIANTS[name])
    source = graph_of(str(tiny.write(tmp_path / "model", made)))
    check_streaming(source)
    node = source.by_name["token_embd.weight"]
    voice = [made["flow_lm.bos_before_voice"][0]] if name == "plain" else []
    latent = made["flow_lm.input_linear.weight"].astype(np.float64) @ made["flow_lm.bos_emb"].astype(np.float64)
    parts = (made["flow_lm.conditioner.embed.weight"], *voice, latent.astype(np.float32)[None])
    expected = np.concatenate(parts)
    rows = len(expected)
    for start, stop in ((0, rows), (3, 9), (rows - 4, rows - 1), (rows - 3, rows), (rows - 1, rows)):
        assert np.array_equal(laid_out_values(source.checkpoint, node, start, stop), expected[start:stop])


def test_a_conversion_says_what_it_takes_for_granted(tmp_path: Path) -> None:
    ggferry.convert(str(tiny.write(tmp_path / "model")), str(tmp_path / "x.gguf"))
    receipt = json.loads((tmp_path / "x.gguf.receipt.json").read_text())
    for key in ("attention.key_length", "rope.freq_base"):
        assert receipt["metadata"][f"pockettts.{key}"].startswith("default: in all 27 configurations of pocket-tts")
    (table,) = (one for one in receipt["tensors"] if one["name"] == "token_embd.weight")
    assert (table["grade"], table["type"]) == ("computed", "F32")
    dropped = {one["name"]: one["reason"] for one in receipt["dropped"]}
    assert "codec" in dropped["mimi.quantizer.output_proj.weight"]
    assert "latents" in dropped["flow_lm.flow_net.input_proj.weight"]
    metadata = open_gguf(str(tmp_path / "x.gguf")).metadata
    tokens = list(metadata["tokenizer.ggml.tokens"].data)
    assert tokens[tiny.PIECES :] == ["<|pad|>", "<|bos_before_voice|>", "<|audio_bos|>"]
    assert list(metadata["tokenizer.ggml.token_type"].data[tiny.PIECES :]) == [3, 3, 3]
    assert metadata["tokenizer.ggml.model"].data == "t5"
    assert [metadata[f"tokenizer.ggml.add_{name}_token"].data for name in ("bos", "eos")] == [False, False]
    assert receipt["tokenizer"]["held_against_source"]["tokens"] == tiny.PIECES


def as_upstream(source: Path, out: Path) -> Path:
    """The file with queries, keys and values, and keys of heads, as convert_hf_to_gguf.py writes them."""
    writer, read = gguf.GGUFWriter(out, "pockettts"), gguf.GGUFReader(source)
    for name, field in read.fields.items():
        if not name.startswith(("GGUF.", "general.architecture", "pockettts.attention.key_length")):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub)
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return out


def test_a_file_of_todays_converter_is_read(tmp_path: Path) -> None:
    """It states no width of heads, which follows from how many there are."""
    shape = tiny.VARIANTS["plain"]
    made = written(graph_of(str(tiny.write(tmp_path / "model"))), tmp_path / "x.gguf")
    graph = graph_of(str(as_upstream(made, tmp_path / "y.gguf")))
    assert graph.sizes["head_dim"] == 64
    assert relative(tiny.recorded()["plain"], forward(graph, shape.tokens)[:, :: tiny.EVERY]) <= 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "grouped", "unvoiced", "narrow", "base"])
def test_llama_cpp_computes_the_same_probabilities(name: str, tmp_path: Path) -> None:
    """It multiplies states with the embeddings, so that a sampler has something to choose from."""
    shape = tiny.VARIANTS[name]
    source = tiny.write(tmp_path / "model", tiny.tensors(shape))
    ggferry.convert(str(source), str(tmp_path / "x.gguf"), hparams=dict(shape.hparams))
    graph = graph_of(str(tmp_path / "x.gguf"))
    table = laid_out_values(graph.checkpoint, graph.by_name["token_embd.weight"], 0, graph.sizes["n_vocab"])
    assert alike(tmp_path / "x.gguf", shape.tokens, table) == "alike"
    assert alike(tmp_path / "x.gguf", shape.tokens, np.roll(table, 1, 0)) == "otherwise"


def of_low_rank(made: dict[str, np.ndarray]) -> None:
    """As the models of 2 and 7 million weights: embeddings of low rank behind a matrix."""
    made["flow_lm.conditioner.proj.weight"] = np.ones((128, 16), np.float32)
    made["flow_lm.conditioner.embed.weight"] = made["flow_lm.conditioner.embed.weight"][:, :16].copy()


def of_wide_heads(made: dict[str, np.ndarray]) -> None:
    """As these: queries that are wider than the model."""
    for name in [name for name in made if name.endswith(("in_proj.weight", "out_proj.weight"))]:
        shape = (3 * 192, 128) if "in_proj" in name and "layers" in name else (128, 192)
        if "self_attn" in name:
            made[name] = np.ones(shape, np.float32)


def of_another_latent(made: dict[str, np.ndarray]) -> None:
    made["flow_lm.bos_emb"] = made["flow_lm.bos_emb"][1:].copy()


def of_two_voices(made: dict[str, np.ndarray]) -> None:
    made["flow_lm.bos_before_voice"] = np.ones((1, 2, 64), np.float32)


def of_a_cut_matrix(made: dict[str, np.ndarray]) -> None:
    made[IN] = made[IN][:-1].copy()


@pytest.mark.parametrize(
    ("edit", "hparams", "words"),
    [
        (of_low_rank, {}, "flow_lm.conditioner.proj.weight"),
        (of_wide_heads, {}, "n_head \\* head_dim == n_embd"),
        (of_another_latent, {}, "a table of embeddings"),
        (of_two_voices, {}, "a table of embeddings"),
        (of_a_cut_matrix, {}, "2 equal parts"),
        (None, {"attention.head_count": "3"}, "head_dim|head_count"),
        (None, {"attention.key_length": "48"}, "head"),
        (None, {"rope.freq_base": "1"}, "rope_base > 1"),
    ],
    ids=["low rank", "wide", "latent", "voices", "cut", "three heads", "48", "base"],
)
def test_what_cannot_be_right_is_refused(edit: Any, hparams: dict[str, str], words: str, tmp_path: Path) -> None:
    made = tiny.tensors()
    if edit is not None:
        edit(made)
    with pytest.raises(GgferryError, match=words):
        graph_of(str(tiny.write(tmp_path / "model", made)), hparams)


def test_nothing_gives_the_published_weights_back(tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match=r"token_embd\.weight is what a network made of the published weights"):
        ggferry.convert(str(tiny.write(tmp_path / "model")), str(tmp_path / "folder"), to="safetensors")


def test_a_text_has_no_perplexity(tmp_path: Path) -> None:
    source = str(tiny.write(tmp_path / "model"))
    with pytest.raises(GgferryError, match="states"):
        ggferry.compare(source, source, str(FIXTURES / "README.md"), context=32, chunks=1)
