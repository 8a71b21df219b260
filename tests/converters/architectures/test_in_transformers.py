"""Tiny random models of every family, saved by transformers, against its own logits: the checkpoint as it is, and the
GGUF that its graph makes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.converters.write.write_tensors import check_replica
from ggferry.formats.errors import (
    GgferryError,
    InconsistentError,
    MissingError,
    ShapeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from helpers.models.gemma import GEMMA3
from helpers.sampling import one_in
from helpers.tiny_models import TINY, TOKENS, VOCAB, check_streaming, make, relative, shake, whole, write

LIMIT = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", one_in(3, TINY))
def test_both_sides_compute_what_transformers_computes(name: str, tmp_path: Path) -> None:
    expected = make(name, tmp_path / "hf")
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    assert relative(expected, forward(source, TOKENS)) <= LIMIT
    written = understand(open_checkpoint(str(write(source, tmp_path / "x.gguf"))))
    assert relative(expected, forward(written, TOKENS)) <= LIMIT
    assert {node.name: node.shape for node in source.nodes} == {node.name: node.shape for node in written.nodes}
    for spec in source.architecture.hparams:
        if spec.key:
            assert same(source.sizes.get(spec.name), written.sizes.get(spec.name)), spec.name


STREAMED = (
    "qwen3vlmoe",
    "gpt-oss",
    "llama4",
    "gemma4 experts",
    "gemma3n",
    "llama biases",
    "mixtral",
    "stablelm 12b",
    "gemma2",
    "qwen2moe",
    "deepseek v3",
    "mamba",
    "mamba2",
    "dbrx",
)


@pytest.mark.parametrize("name", STREAMED)
def test_any_rows_of_a_tensor_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    """Streaming: chunks end anywhere, also within a head that is turned or an expert of a stack."""
    make(name, tmp_path)
    check_streaming(understand(open_checkpoint(str(tmp_path))))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.float32(a) == np.float32(b)) if isinstance(a, float) and b is not None else a == b


# --- one small model, edited --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    return folder


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return dict(load_file(path / "model.safetensors"))


def copy(source: Path, target: Path, edit: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> Path:
    from safetensors.numpy import save_file

    config, tensors = json.loads((source / "config.json").read_text()), tensors_of(source)
    edit(config, tensors)
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors")
    return target


def bound(source: Path, target: Path, edit: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> ModelGraph:
    return understand(open_checkpoint(str(copy(source, target, edit))))


def test_an_unknown_class_is_named_with_the_known_ones(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"XForCausalLM \(classes with a name like it: .*ForCausalLM") as caught:
        bound(llama, tmp_path / "x", lambda config, _: config.update(architectures=["XForCausalLM"]))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("cls", ["NanoChat", "FlexOlmo", "VaultGemma", "Persimmon", "XGLM"])
def test_a_class_that_no_file_can_say_is_refused_with_the_reason(cls: str, llama: Path, tmp_path: Path) -> None:
    assert hasattr(transformers, f"{cls}ForCausalLM")
    with pytest.raises(UnsupportedError, match="no GGUF architecture"):
        bound(llama, tmp_path / "x", lambda config, _: config.update(architectures=[f"{cls}ForCausalLM"]))


def test_a_configuration_without_a_class(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="architecture"):
        bound(llama, tmp_path / "x", lambda config, _: (config.pop("architectures"), config.pop("model_type")))


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("num_attention_heads", 5, GgferryError),
        ("num_key_value_heads", 6, ShapeError),
        ("num_key_value_heads", 0, GgferryError),
        ("hidden_size", 64, ShapeError),
        ("intermediate_size", 96, ShapeError),
        ("vocab_size", VOCAB - 1, ShapeError),
        ("num_hidden_layers", 2, GgferryError),
        ("num_hidden_layers", 4, MissingError),
        ("num_hidden_layers", "3", InconsistentError),
        ("rms_norm_eps", "small", InconsistentError),
        ("rms_norm_eps", [1e-5], InconsistentError),
        ("tie_word_embeddings", 1, InconsistentError),
        ("hidden_act", "gelu", UnsupportedError),
        ("rope_parameters", {"rope_type": "axial", "rope_theta": 1e4}, UnsupportedError),
        ("rope_parameters", {"rope_type": "linear", "factor": 0.0, "rope_theta": 1e4}, InconsistentError),
        ("rope_parameters", {"rope_type": "llama3", "factor": 8.0}, MissingError),
        ("rope_parameters", {"rope_type": "longrope", "factor": 8.0, "rope_theta": 0.5}, InconsistentError),
        ("rope_parameters", {"rope_type": "yarn", "factor": 8.0, "truncate": False}, UnsupportedError),
        ("head_dim", 10, ShapeError),
        ("attention_bias", True, MissingError),
        ("mlp_bias", True, MissingError),
    ],
)
def test_a_configuration_that_the_weights_contradict(
    key: str, value: Any, error: type[Exception], llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        bound(llama, tmp_path / "x", lambda config, _: config.update({key: value}))
    assert isinstance(caught.value, GgferryError)


@pytest.mark.parametrize(
    "name",
    [
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=name.replace(".", r"\.")):
        bound(llama, tmp_path / "x", lambda _, tensors: tensors.pop(name))


def test_a_tensor_without_a_role_is_named(llama: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("model.layers.0.self_attn.sinks", "model.layers.00.mlp.up_proj.weight", "extra")):
        with pytest.raises(UnexpectedTensorError, match="no role"):
            bound(llama, tmp_path / f"{number}", lambda _, t, name=name: t.update({name: np.ones(4, np.float32)}))


def test_a_bias_the_configuration_denies(llama: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    graph = bound(llama, tmp_path / "x", lambda _, tensors: tensors.update({name: np.ones(48, np.float32)}))
    (drop,) = graph.dropped
    assert drop.ref.name == name and "attention_bias" in drop.reason and drop.loses
    with pytest.raises(UnexpectedTensorError, match="attention_bias"):
        bound(llama, tmp_path / "y", lambda config, tensors: (
            config.pop("attention_bias"), tensors.update({name: np.ones(48, np.float32)})
        ))


def test_rotary_buffers_are_dropped_with_their_reason(llama: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    graph = bound(llama, tmp_path / "x", lambda _, tensors: tensors.update({name: np.ones(4, np.float32)}))
    assert [(drop.ref.name, drop.reason) for drop in graph.dropped] == [
        (name, "a buffer: rotary frequencies follow from the rotary base")
    ]


def test_a_tied_output_that_repeats_the_embedding(llama: Path, tmp_path: Path) -> None:
    def tie(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        config["tie_word_embeddings"] = True
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    def untie(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        tie(config, tensors)
        tensors["lm_head.weight"][3, 3] += 1

    class Plan:
        graph = bound(llama, tmp_path / "same", tie)

    (drop,) = Plan.graph.dropped
    assert drop.same_as is not None and drop.same_as.name == "model.embed_tokens.weight"
    assert "output.weight" not in Plan.graph.by_name
    check_replica(Plan, drop)  # type: ignore[arg-type]
    Plan.graph = bound(llama, tmp_path / "other", untie)
    with pytest.raises(InconsistentError, match=r"lm_head\.weight.*tie_word_embeddings"):
        check_replica(Plan, Plan.graph.dropped[0])  # type: ignore[arg-type]


def test_output_states_where_every_value_came_from(llama: Path) -> None:
    graph = understand(open_checkpoint(str(llama)))
    origins = {key: origin for key, _, origin in graph.written()}
    assert origins["llama.block_count"] == "config.json: num_hidden_layers"
    assert origins["llama.rope.freq_base"] == "config.json: rope_parameters.rope_theta"
    assert all(origins.values())


# --- what the small tables decide ---------------------------------------------------------------------------


def test_tokens_of_the_future_are_no_part_of_deepseek(tmp_path: Path) -> None:
    make("deepseek v3", tmp_path / "hf")

    def foretell(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        for name in ("eh_proj.weight", "enorm.weight", "mlp.experts.0.gate_proj.weight", "shared_head.head.weight"):
            tensors[f"model.layers.3.{name}"] = np.ones((4, 4), np.float32)

    graph = bound(tmp_path / "hf", tmp_path / "x", foretell)
    assert len(graph.dropped) == 4 and all("speculative" in drop.reason for drop in graph.dropped)
    assert {node.name for node in graph.nodes} == {
        node.name for node in understand(open_checkpoint(str(tmp_path / "hf"))).nodes
    }


def test_a_hole_among_the_experts_is_named(tmp_path: Path) -> None:
    make("mixtral", tmp_path / "hf")
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    with pytest.raises(MissingError, match=r"experts\.3\.w2"):
        bound(tmp_path / "hf", tmp_path / "x", lambda _, tensors: tensors.pop(name))
    last = "model.layers.1.block_sparse_moe.experts.4.w2.weight"
    with pytest.raises(ShapeError, match="n_expert=5"):
        bound(tmp_path / "hf", tmp_path / "y", lambda _, tensors: tensors.pop(last))


def test_dense_blocks_among_qwens_experts_are_refused(tmp_path: Path) -> None:
    make("qwen2moe", tmp_path / "hf")
    for number, change in enumerate(({"mlp_only_layers": [1]}, {"decoder_sparse_step": 2})):
        with pytest.raises(UnsupportedError):
            bound(tmp_path / "hf", tmp_path / f"{number}", lambda config, _, change=change: config.update(change))


def test_the_text_half_of_a_vision_model(tmp_path: Path) -> None:
    import torch
    import transformers

    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=GEMMA3, vision_config=vision, mm_tokens_per_image=4)
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    shake(model)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    graph = understand(open_checkpoint(str(tmp_path)))
    assert graph.architecture.name == "gemma3" and graph.sizes["n_layer"] == 7
    assert graph.dropped and all("vision half" in drop.reason for drop in graph.dropped)
    assert relative(expected, forward(graph, TOKENS)) <= LIMIT


def test_llama3_factors_are_float32_of_the_formula(tmp_path: Path) -> None:
    make("llama llama3", tmp_path)
    graph = understand(open_checkpoint(str(tmp_path)))
    factors = whole(graph)["rope_freqs.weight"]
    source = graph.by_name["rope_freqs.weight"].inputs[0]
    assert source.name == "(llama3_factors)" and graph.checkpoint.files[source.spans[0].file].size == 4 * len(factors)
    assert struct.pack("<4f", *factors) == graph.checkpoint.files[source.spans[0].file].read(0, 16)
    assert factors[0] == 1.0 and factors[-1] == 8.0 and np.all(np.diff(factors) >= 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama dynamic", "dynamically beyond 64 tokens"),
        ("llama yarn betas", "beta_fast=1.5"),
        ("mistral window", "reaches back 7 tokens"),
        ("qwen2moe normed", "does not do so for qwen2moe"),
        ("qwen3moe not normed", "does so for qwen3moe"),
        ("gemma2 caps", "switched off"),
        ("command-r plus", "from 64 blocks on"),
        ("deepseek v2 groups", "adds up the best two"),
    ],
)
def test_what_a_runtime_does_otherwise_is_said(name: str, words: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    assert words in " ".join(understand(open_checkpoint(str(tmp_path))).notes)


def test_an_exaone_that_states_no_window_has_transformers_one(tmp_path: Path) -> None:
    """Only a null says that there is none: then all blocks turn queries and keys, else those with a window alone."""
    import torch
    from transformers import AutoModelForCausalLM

    make("exaone4", tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config.pop("sliding_window", 0) is None
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    source = graph_of(str(tmp_path / "hf"))
    assert source.sizes["n_swa"] == 4096 and relative(expected, forward(source, TOKENS)) <= 1e-5
    assert relative(expected, forward(graph_of(str(write(source, tmp_path / "x.gguf"))), TOKENS)) <= 1e-5


def test_a_file_with_a_window_and_no_list_of_blocks_is_read(tmp_path: Path) -> None:
    """What follows from the list of the blocks with a window is not asked of a list that is not known."""
    make("cohere2", tmp_path / "hf")
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True), level="fast")
    assert graph_of(convert(request)[0].path).sizes["n_swa"] == 7
