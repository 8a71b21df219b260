"""Tiny encoders and classifiers, from end to end: transformers' float64 states and scores, the reigning tool's keys and
names where they are right, llama.cpp's embeddings of our file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import embedding, forward
from ggferry.converters.understand import graph_of
from helpers.third_party_fixtures import CORPUS
from helpers.tiny_models import relative

assert CORPUS is not None
ARCH = CORPUS / "arch"
MANIFEST = json.loads((ARCH / "MANIFEST.json").read_text())
ENCODERS = [name for name, model in MANIFEST["models"].items() if model["output_kind"] in ("emb", "cls")]
pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]

ELSEWHERE = {
    "modern-bert.attention.layer_norm_rms_epsilon",  # its norms are LayerNorms
    "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.add_sep_token",  # ids of config.json that are other pieces of these vocabularies
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.token_type",  # <mask> is a control token
    "general.name",
    "general.size_label",
    "general.quantization_version",
}


@pytest.mark.parametrize("name", ENCODERS)
def test_it_is_the_oracles(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "x.gguf")
    convert(Request(str(ARCH / name / "ckpt"), path, Options(outtype="f32")))
    expected = np.load(ARCH / name / "hf_logits_f64.npy")
    for side in (str(ARCH / name / "ckpt"), path):
        graph = graph_of(side)
        states = forward(graph, MANIFEST["tokens"])
        found = embedding(graph, states)[None] if MANIFEST["models"][name]["output_kind"] == "cls" else states
        assert relative(expected, found) <= 2e-5
    tool = json.loads((ARCH / name / f"{name}.f32.gguf.json").read_text())
    ours = graph.checkpoint.metadata
    for key, (_, value) in tool["kv"].items():
        if key not in ELSEWHERE and not isinstance(value, dict):
            data = ours[key].data
            close = pytest.approx(value, rel=1e-7) if isinstance(value, float) else value
            assert (list(data) if isinstance(value, list) else data) == close, key
    theirs = {entry["name"] for entry in tool["tensors"]} if isinstance(tool["tensors"], list) else set(tool["tensors"])
    more = {"cls.weight", "cls.bias"} if name == "bert_cls" else set()  # the pooler, which the tool drops
    assert set(graph.by_name) == theirs | more


@pytest.mark.parametrize("name", ENCODERS)
def test_transformers_and_llama_cpps_endpoint_give_the_same(name: str, tmp_path: Path) -> None:
    """Of the file in float32: relative RMS of 3e-3 at most, for a GELU of float16, is a cosine of 0.999995."""
    asked = ("transformers", "llama.cpp")
    request = Request(str(ARCH / name / "ckpt"), str(tmp_path / "x.gguf"), Options(outtype="f32"), witness=asked)
    compared = [one for one in convert(request)[0].receipt["testimonies"] if one["worst"] is not None]
    assert {one["witness"] for one in compared} == set(asked)
    for one in compared:
        assert one["why"] is None and one["worst"] <= (3e-3 if one["witness"] == "llama.cpp" else 2e-5), one
