"""Encoders for embeddings, and classifiers: states and scores as transformers computes them, on both sides; what it has
no class for, by a few lines written from the definition; llama.cpp's embeddings of our files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import embedding, forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import (
    GgferryError,
    InconsistentError,
    MissingError,
    UnexpectedTensorError,
    UnsupportedError,
)
from helpers.llama_api import states as of_llama_cpp
from helpers.tiny_models import relative, shake, write

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)
LIMIT = 2e-6
IDS = [2, 17, 42, 9, 3, 60, 31, 8, 77, 12, 5, 90]

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 80,
    "max_position_embeddings": 40, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}
DISTIL = {"vocab_size": 96, "dim": 48, "n_layers": 3, "n_heads": 3, "hidden_dim": 80, "max_position_embeddings": 40}
GROUPED = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
MODERN = {**SIZES, "global_attn_every_n_layers": 2, "local_attention": 6, "cls_token_id": 2, "sep_token_id": 3}
GEMMA = {
    **GROUPED, "head_dim": 20, "sliding_window": 6, "query_pre_attn_scalar": 20, "use_bidirectional_attention": True,
}
THREE = {"id2label": {0: "no", 1: "maybe", 2: "yes"}}
# Decoders saved without what makes words of their states.
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind.removesuffix("Model"): (kind, {**GROUPED, **changes}) for kind, changes in {
        "MistralModel": {"sliding_window": 6}, "MixtralModel": {"num_local_experts": 4, "num_experts_per_tok": 2},
        "MinistralModel": {"sliding_window": 6, "head_dim": 8}, "Phi3Model": {},
        "Qwen3MoeModel": {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
        },
        "Starcoder2Model": {"sliding_window": 6}, "GraniteModel": {"embedding_multiplier": 3.0}, "OlmoModel": {},
        "GemmaModel": {}, "CohereModel": {}, "Cohere2Model": {"sliding_window": 6}, "SmolLM3Model": {},
        "Ernie4_5Model": {}, "Ernie4_5_MoeModel": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
        "Glm4Model": {}, "GlmModel": {"head_dim": 8}, "SeedOssModel": {},
        "HunYuanDenseV1Model": {"head_dim": 8},
        "HunYuanMoEV1Model": {"num_experts": 4, "moe_topk": 2, "head_dim": 8},
        "ArceeModel": {}, "FalconModel": {"num_kv_heads": 2, "new_decoder_architecture": True}, "GraniteMoeModel": {},
        "Ministral3Model": {"head_dim": 8}, "Jais2Model": {},
        "Exaone4Model": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
        "Gemma3TextModel": {"head_dim": 20, "sliding_window": 6, "query_pre_attn_scalar": 20},
    }.items()},
    **{kind.removesuffix("Model"): (kind, {key: SIZES[key] for key in SIZES if key != "intermediate_size"})
       for kind in ("GPT2Model", "GPTBigCodeModel", "MptModel")},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("RobertaModel", {**SIZES, "type_vocab_size": 1}),
    "roberta, padding 5": ("RobertaModel", {**SIZES, "type_vocab_size": 1, "pad_token_id": 4}),
    "roberta, language": ("RobertaForMaskedLM", {**SIZES, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaModel", {**SIZES, "type_vocab_size": 1}),
    "camembert": ("CamembertModel", {**SIZES, "type_vocab_size": 1}),
    "bert, language": ("BertForMaskedLM", SIZES),
    "bert, both heads": ("BertForPreTraining", SIZES),
    "distilbert": ("DistilBertModel", DISTIL),
    "distilbert, language": ("DistilBertForMaskedLM", DISTIL),
    "modernbert": ("ModernBertModel", MODERN),
    "modernbert, language": ("ModernBertForMaskedLM", MODERN),
    "modernbert, silu": ("ModernBertModel", {**MODERN, "hidden_activation": "silu", "local_attention": 4}),
    "modernbert, every third": ("ModernBertModel", {**MODERN, "global_attn_every_n_layers": 3, "norm_eps": 1e-3}),
    "modernbert, blocks listed": (
        "ModernBertModel", {**SIZES, "local_attention": 6, "layer_types": ["full_attention", "sliding_attention"] * 2}
    ),
    "eurobert": ("EuroBertModel", GROUPED),
    "eurobert, language": ("EuroBertForMaskedLM", GROUPED),
    "embeddinggemma": ("Gemma3TextModel", GEMMA),
    "embeddinggemma, windows": ("Gemma3TextModel", {**GEMMA, "num_hidden_layers": 7}),
    "qwen3": ("Qwen3Model", {**GROUPED, "head_dim": 20}),
    "qwen2": ("Qwen2Model", GROUPED),
    "llama": ("LlamaModel", GROUPED),
    "gemma2": ("Gemma2Model", {**GROUPED, "head_dim": 20, "sliding_window": 6}),  # bge-multilingual-gemma2
    **BASES,
    "exaone4": ("Exaone4Model", {**GROUPED, "sliding_window": 6}),
    "nomic": ("NomicBertModel", SIZES),
    "nomic, language": ("NomicBertForMaskedLM", SIZES),
    "jina 3": ("JinaEmbeddingsV3Model", {**SIZES, "type_vocab_size": 1}),
    "jina 3, no padding": ("JinaEmbeddingsV3Model", {**SIZES, "type_vocab_size": 1, "pad_token_id": None}),
}
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", {**SIZES, **THREE}),
    "bert, two": ("BertForSequenceClassification", SIZES),
    "roberta": ("RobertaForSequenceClassification", {**SIZES, **THREE, "type_vocab_size": 1}),
    "xlm-roberta, one": ("XLMRobertaForSequenceClassification", {**SIZES, "num_labels": 1, "type_vocab_size": 1}),
    "camembert": ("CamembertForSequenceClassification", {**SIZES, **THREE, "type_vocab_size": 1}),
    "qwen3": ("Qwen3ForSequenceClassification", {**GROUPED, **THREE, "head_dim": 20}),
    "modernbert, first": ("ModernBertForSequenceClassification", {**MODERN, **THREE, "classifier_pooling": "cls"}),
    "modernbert, mean": (
        "ModernBertForSequenceClassification",
        {**MODERN, **THREE, "classifier_pooling": "mean", "classifier_activation": "silu"},
    ),
}


def saved(folder: Path, kind: str, config: dict[str, Any]) -> Any:
    """A random model of transformers, saved as it saves it."""
    torch.manual_seed(5)
    model = getattr(transformers, kind)
    made = model(model.config_class(**config, attn_implementation="eager")).eval()
    shake(made)
    made.save_pretrained(folder)
    return made


def states(made: Any) -> np.ndarray:
    """What the part of the model below its head makes of the tokens."""
    body = getattr(made, made.base_model_prefix, made)
    with torch.no_grad():
        return body(input_ids=torch.tensor([IDS])).last_hidden_state[0].numpy()


def both(folder: Path) -> tuple[str, str]:
    """The checkpoint, and its GGUF."""
    convert(Request(str(folder), f"{folder}.gguf", vocab=BARE))
    return str(folder), f"{folder}.gguf"


SLOW = (
    "roberta, language", "xlm-roberta", "camembert", "bert, both heads", "distilbert, language", "modernbert, silu",
    "modernbert, language", "embeddinggemma, windows", "eurobert, language", "qwen2", "llama", "gemma2",
    "nomic, language",
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS])
def test_states_are_transformers(name: str, tmp_path: Path) -> None:
    expected = states(saved(tmp_path / "hf", *MODELS[name]))
    for side in both(tmp_path / "hf"):
        assert relative(expected, forward(graph_of(side), IDS)) <= LIMIT


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BASES)
def test_a_base_model_goes_back_to_its_class(name: str, tmp_path: Path) -> None:
    expected = states(saved(tmp_path / "hf", *BASES[name]))
    _, gguf = both(tmp_path / "hf")
    convert(Request(gguf, str(tmp_path / "back"), to="safetensors", vocab=BARE))
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == [BASES[name][0]]
    back = transformers.AutoModel.from_pretrained(tmp_path / "back", dtype=torch.float32, attn_implementation="eager")
    assert relative(expected, states(back.eval())) <= LIMIT


@pytest.mark.slow
@pytest.mark.unix("llama.cpp through its C interface")
@pytest.mark.parametrize("name", BASES)
def test_llama_cpp_gives_the_states_of_a_base_model(name: str, tmp_path: Path) -> None:
    """It rounds keys and values to half precision; windows it has in some families only are wider than the text."""
    kind, config = BASES[name]
    wider = {"sliding_window": 64} if config.get("sliding_window") else {}
    expected = states(saved(tmp_path / "hf", kind, {**config, **wider, "vocab_size": 328}))
    file = write(graph_of(str(tmp_path / "hf")), tmp_path / "x.gguf")
    assert relative(expected, of_llama_cpp(str(file), IDS, tmp_path)) <= 5e-3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_are_transformers(name: str, tmp_path: Path) -> None:
    made = saved(tmp_path / "hf", *CLASSIFIERS[name])
    with torch.no_grad():
        single = made(input_ids=torch.tensor([IDS])).logits[0].numpy()
        expected = made.double()(input_ids=torch.tensor([IDS])).logits[0].numpy()
    rounding = relative(expected, single)  # three scores near zero, of many terms that are not
    for side in both(tmp_path / "hf"):
        graph = graph_of(side)
        assert relative(expected, embedding(graph, forward(graph, IDS))) <= LIMIT + 2 * rounding, (rounding,)
    stated = [made.config.id2label[number] for number in range(len(expected))]
    labels = graph.checkpoint.metadata[f"{graph.architecture.name}.classifier.output_labels"].data
    assert list(labels) == stated
    assert graph.checkpoint.metadata[f"{graph.architecture.name}.pooling_type"].data == 4


GONE = "taken out"
STRETCHED = {
    "linear": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16},
}
STATED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert of GELU by tanh": ("BertModel", SIZES, {"hidden_act": "gelu_new"}),
    "distilbert of GELU by tanh": ("DistilBertModel", DISTIL, {"activation": "gelu_pytorch_tanh"}),
    "distilbert of no padding": ("DistilBertModel", DISTIL, {"pad_token_id": -1}),
    "modernbert of another word for SiLU": ("ModernBertModel", MODERN, {"hidden_activation": "swish"}),
    "modernbert of a classifier's activation that it does not have": (
        "ModernBertModel", MODERN, {"classifier_activation": "relu"}),
    "modernbert of a classifier's bias that it does not have": ("ModernBertModel", MODERN, {"classifier_bias": True}),
    "modernbert of a period that nobody reads": ("ModernBertModel", MODERN, {"global_attn_every_n_layers": 0}),
    "modernbert of GELU by tanh": ("ModernBertModel", MODERN, {"hidden_activation": "gelu_pytorch_tanh"}),
    "modernbert of windows without a period": (
        "ModernBertModel", MODERN,
        {"layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "full", "sliding")]}),
    "modernbert of windows alone": ("ModernBertModel", MODERN, {"layer_types": ["sliding_attention"] * 4}),
    **{f"modernbert whose blocks without a window are stretched, {kind}": (
        "ModernBertModel", MODERN, {"rope_parameters": {
            "full_attention": scaling, "sliding_attention": {"rope_type": "default", "rope_theta": 777.0}}})
       for kind, scaling in STRETCHED.items()},
    **{f"{name} stretched, {kind}": (*MODELS[name], {"rope_parameters": scaling})
       for name in ("eurobert", "nomic", "jina 3") for kind, scaling in STRETCHED.items()},
    "jina 3 of GELU by tanh": (*MODELS["jina 3"], {"hidden_act": "gelu_new"}),
    "modernbert of no base": (
        "ModernBertModel", MODERN, {"rope_parameters": {
            "full_attention": {"rope_type": "default"},
            "sliding_attention": {"rope_type": "default", "rope_theta": 777.0}}}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", STATED)
def test_what_a_configuration_states_is_what_transformers_reads(case: str, tmp_path: Path) -> None:
    kind, config, changes = STATED[case]
    saved(tmp_path / "hf", kind, config)
    edited(tmp_path / "hf", **changes)
    expected = states(getattr(transformers, kind).from_pretrained(tmp_path / "hf", attn_implementation="eager").eval())
    for side in both(tmp_path / "hf"):
        assert relative(expected, forward(graph_of(side), IDS)) <= LIMIT


def test_a_classifier_of_an_activation_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "ModernBertForSequenceClassification", MODERN)
    edited(tmp_path, classifier_activation="relu")
    with pytest.raises(InconsistentError, match=r"classifier_activation is relu: llama\.cpp knows gelu"):
        graph_of(str(tmp_path))


def test_biases_of_a_eurobert(tmp_path: Path) -> None:
    """llama.cpp has none for the output of attention: of zeros it is left out."""
    made = saved(tmp_path / "hf", "EuroBertModel", {**GROUPED, "attention_bias": True})
    assert "eurobert has no bias for the output" in " ".join(graph_of(str(tmp_path / "hf")).notes)
    for block in made.layers:
        block.self_attn.o_proj.bias.data.zero_()
    made.save_pretrained(tmp_path / "hf")
    for side in both(tmp_path / "hf"):
        graph = graph_of(side)
        assert "blk.0.attn_q.bias" in graph.by_name and "blk.0.attn_output.bias" not in graph.by_name
        assert relative(states(made), forward(graph, IDS)) <= LIMIT


def test_a_llama_that_sees_what_follows(tmp_path: Path) -> None:
    """transformers has no class of that name: its LLaMA, with a mask that hides nothing."""
    made = saved(tmp_path / "hf", "LlamaModel", GROUPED)
    edited(tmp_path / "hf", architectures=["LlamaBidirectionalModel"])
    with torch.no_grad():
        seen = torch.zeros(1, 1, len(IDS), len(IDS))
        expected = made(input_ids=torch.tensor([IDS]), attention_mask=seen).last_hidden_state[0].numpy()
    for side in both(tmp_path / "hf"):
        assert relative(expected, forward(graph_of(side), IDS)) <= LIMIT


# --- NeoBERT, by its definition -------------------------------------------------------------------------------

HEADS, WIDTH, FF, BLOCKS = 3, 48, 56, 3
NEO = {
    "architectures": ["NeoBERT"], "model_type": "neobert", "vocab_size": 96, "hidden_size": WIDTH, "max_length": 40,
    "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "intermediate_size": 80, "norm_eps": 1e-4,
    "hidden_act": "SwiGLU", "rope": True, "rms_norm": True,
}


def neo_tensors() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)

    def weights(*shape: int, about: float = 0.0) -> torch.Tensor:
        return about + torch.randn(*shape, generator=rng) * (0.2 if about else shape[-1] ** -0.5)

    found = {"model.encoder.weight": weights(96, WIDTH) * 3, "model.layer_norm.weight": weights(WIDTH, about=1.0)}
    for n in range(BLOCKS):
        found |= {
            f"model.transformer_encoder.{n}.{name}.weight": weights(*shape, about=1.0 if "norm" in name else 0.0) * 1.5
            for name, shape in (
                ("attention_norm", (WIDTH,)), ("ffn_norm", (WIDTH,)), ("qkv", (3 * WIDTH, WIDTH)),
                ("wo", (WIDTH, WIDTH)), ("ffn.w12", (2 * FF, WIDTH)), ("ffn.w3", (WIDTH, FF)),
            )
        }
    return found


def neo_states(w: dict[str, torch.Tensor], heads: int = HEADS, eps: float = 1e-4) -> np.ndarray:
    """As chandar-lab's code computes them: complex rotation of neighbors, each head's q, k, v beside one another."""
    d = WIDTH // heads

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w[f"model.{name}.weight"]

    x = w["model.encoder.weight"][IDS]
    turn = torch.polar(
        torch.ones(len(IDS), d // 2),
        torch.outer(torch.arange(len(IDS)).float(), 10000.0 ** -(torch.arange(0, d, 2) / d)),
    )[:, None]
    for n in range(BLOCKS):
        at = f"transformer_encoder.{n}"
        read = norm(x, f"{at}.attention_norm") @ w[f"model.{at}.qkv.weight"].T
        q, k, v = read.view(len(IDS), heads, 3 * d).chunk(3, -1)
        q, k = (
            torch.view_as_real(torch.view_as_complex(part.reshape(len(IDS), heads, d // 2, 2)) * turn).flatten(-2)
            for part in (q, k)
        )
        seen = torch.einsum("qhd,khd->hqk", q, k) / d**0.5
        x = x + torch.einsum("hqk,khd->qhd", seen.softmax(-1), v).flatten(1) @ w[f"model.{at}.wo.weight"].T
        gate, up = (norm(x, f"{at}.ffn_norm") @ w[f"model.{at}.ffn.w12.weight"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ w[f"model.{at}.ffn.w3.weight"].T
    return norm(x, "layer_norm").numpy()


def neobert(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    folder.mkdir()
    tensors = neo_tensors()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(NEO | changes))
    return tensors


@pytest.mark.parametrize(
    ("changes", "computed"),
    [
        ({}, {}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            ({"num_attention_heads": 6}, {"heads": 6}),
            ({"norm_eps": 0.1, "hidden_act": "swiglu"}, {"eps": 0.1}),
            ({"intermediate_size": 7, "max_length": 20, "dim_head": 5}, {}),  # the tensors say it
            ({"rms_norm_eps": 0.1, "tie_word_embeddings": True}, {}),  # read by nobody
        )),
    ],
)
def test_neobert_by_its_definition(changes: dict[str, Any], computed: dict[str, Any], tmp_path: Path) -> None:
    tensors = neobert(tmp_path / "hf", **changes)
    for side in both(tmp_path / "hf"):
        assert relative(neo_states(tensors, **computed), forward(graph_of(side), IDS)) <= LIMIT


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_act", "gelu"), ("rope", False), ("rms_norm", False), ("num_attention_heads", 5), ("hidden_size", 40),
     ("vocab_size", 95), ("num_hidden_layers", 2), ("num_hidden_layers", 4)],
)
def test_what_no_neobert_is_is_refused(key: str, value: object, tmp_path: Path) -> None:
    neobert(tmp_path / "hf", **{key: value})
    with pytest.raises(GgferryError):
        graph_of(str(tmp_path / "hf"))


# --- Jina's embeddings v2, by their definition -------------------------------------------------------------------

JINA = {
    "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "vocab_size": 96, "hidden_size": WIDTH,
    "max_position_embeddings": 40, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "intermediate_size": FF,
    "layer_norm_eps": 1e-5, "feed_forward_type": "geglu", "position_embedding_type": "alibi", "type_vocab_size": 2,
}


def jina_tensors(words: int, kinds: int = 2) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(4)
    found = {}

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = torch.randn(rows, columns, generator=rng) * 1.5 * columns**-0.5
        if bias:
            found[f"{name}.bias"] = torch.randn(rows, generator=rng) * 0.3

    def norm(name: str) -> None:
        found[f"{name}.weight"] = 1 + 0.2 * torch.randn(WIDTH, generator=rng)
        found[f"{name}.bias"] = 0.2 * torch.randn(WIDTH, generator=rng)

    linear("bert.embeddings.word_embeddings", words, WIDTH, bias=False)
    linear("bert.embeddings.token_type_embeddings", kinds, WIDTH, bias=False)
    norm("bert.embeddings.LayerNorm")
    for n in range(BLOCKS):
        at = f"bert.encoder.layer.{n}"
        for part in ("query", "key", "value"):
            linear(f"{at}.attention.self.{part}", WIDTH, WIDTH)
        linear(f"{at}.attention.output.dense", WIDTH, WIDTH)
        norm(f"{at}.attention.output.LayerNorm")
        linear(f"{at}.mlp.gated_layers", 2 * FF, WIDTH, bias=False)
        linear(f"{at}.mlp.wo", WIDTH, FF)
        norm(f"{at}.mlp.layernorm")
    return found


SLOPES = {3: (1 / 16, 1 / 256, 1 / 4), 4: (1 / 4, 1 / 16, 1 / 64, 1 / 256),
          6: (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)}


def jina_states(w: dict[str, torch.Tensor], heads: int = HEADS, eps: float = 1e-5) -> np.ndarray:
    """As Jina's code computes them: scores fall with the distance to either side, of each head by another slope."""
    functional = torch.nn.functional

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, w[f"bert.{name}.weight"], w.get(f"bert.{name}.bias"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), w[f"bert.{name}.weight"], w[f"bert.{name}.bias"], eps)

    places = torch.arange(len(IDS))
    fall = -torch.tensor(SLOPES[heads])[:, None, None] * (places[None] - places[:, None]).abs()
    words, types = (w[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    x = norm(words[IDS] + types[0], "embeddings.LayerNorm")
    for n in range(BLOCKS):
        at = f"encoder.layer.{n}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{part}").view(len(IDS), heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        seen = ((q @ k.mT * (WIDTH // heads) ** -0.5 + fall).softmax(-1) @ v).transpose(0, 1).flatten(1)
        x = norm(linear(seen, f"{at}.attention.output.dense") + x, f"{at}.attention.output.LayerNorm")
        gate, up = linear(x, f"{at}.mlp.gated_layers").chunk(2, -1)
        x = norm(linear(functional.gelu(gate) * up, f"{at}.mlp.wo") + x, f"{at}.mlp.layernorm")
    return x.numpy()


def jina(folder: Path, words: int = 96, **changes: Any) -> dict[str, torch.Tensor]:
    folder.mkdir()
    tensors = jina_tensors(words, changes.get("type_vocab_size", 2))
    save_file(tensors, folder / "model.safetensors")
    stated = JINA | {"vocab_size": words} | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in stated.items() if value != GONE}))
    return tensors


@pytest.mark.parametrize(
    ("changes", "computed"),
    [
        ({}, {}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            ({"num_attention_heads": 6}, {"heads": 6}),
            ({"num_attention_heads": 4, "layer_norm_eps": 0.1}, {"heads": 4, "eps": 0.1}),
            ({"layer_norm_eps": GONE}, {"eps": 1e-12}),
            ({"type_vocab_size": 1, "max_position_embeddings": 7}, {}),
            ({"hidden_act": "relu", "emb_pooler": "mean", "is_decoder": False, "attention_dropout": 0.3}, {}),
        )),
    ],
)
def test_jina_by_its_definition(changes: dict[str, Any], computed: dict[str, Any], tmp_path: Path) -> None:
    tensors = jina(tmp_path / "hf", **changes)
    for side in both(tmp_path / "hf"):
        assert relative(jina_states(tensors, **computed), forward(graph_of(side), IDS)) <= LIMIT


@pytest.mark.parametrize(
    ("key", "value"),
    [("feed_forward_type", "reglu"), ("feed_forward_type", GONE), ("position_embedding_type", "absolute"),
     ("position_embedding_type", GONE), ("is_decoder", True), ("num_attention_heads", 5), ("hidden_size", 40),
     ("intermediate_size", 60), ("vocab_size", 95), ("num_hidden_layers", 2), ("num_hidden_layers", 4)],
)
def test_what_no_jina_is_is_refused(key: str, value: object, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    jina(folder)
    stated = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps({name: one for name, one in stated.items() if one != GONE}))
    with pytest.raises(GgferryError):
        graph_of(str(folder))


# --- what cannot be said -----------------------------------------------------------------------------------------


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("modernbert", {"norm_bias": True}, MissingError),
        ("modernbert", {"hidden_activation": "relu"}, UnsupportedError),
        ("modernbert", {"rope_parameters": None, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
         UnsupportedError),  # of the blocks with a window, too
        ("embeddinggemma", {"query_pre_attn_scalar": 24}, InconsistentError),
        *((name, {"rope_parameters": None, "rope_scaling": {"type": "llama3", "factor": 2.0}}, UnsupportedError)
          for name in ("eurobert", "nomic", "jina 3")),
        ("roberta", {"position_embedding_type": "relative_key"}, UnsupportedError),
        ("roberta", {"max_position_embeddings": 41}, GgferryError),
        ("roberta", {"pad_token_id": 60}, GgferryError),
    ],
)
def test_what_gguf_cannot_say_is_refused(name: str, changes: Any, error: type[GgferryError], tmp_path: Path) -> None:
    saved(tmp_path, *MODELS[name])
    edited(tmp_path, **changes)
    with pytest.raises(error):
        understand(open_checkpoint(str(tmp_path)))


def test_a_single_score_of_qwen3_is_kept_though_llama_cpp_makes_nothing_of_it(tmp_path: Path) -> None:
    saved(tmp_path, "Qwen3ForSequenceClassification", {**GROUPED, "head_dim": 20, "num_labels": 1})
    graph = understand(open_checkpoint(str(tmp_path)))
    assert graph.by_name["cls.output.weight"].shape == (1, 64)
    assert "llama.cpp" not in graph.runtimes and any("it is always 1" in note for note in graph.notes)


def test_labels_must_be_those_of_the_classifier(tmp_path: Path) -> None:
    saved(tmp_path, *CLASSIFIERS["bert"])
    edited(tmp_path, id2label={"0": "one"})
    with pytest.raises(InconsistentError, match="1 labels for a classifier of 3"):
        understand(open_checkpoint(str(tmp_path)))


def test_a_pooler_is_no_part_of_an_encoder_and_one_of_a_classifier(tmp_path: Path) -> None:
    saved(tmp_path / "hf", *CLASSIFIERS["bert"])
    edited(tmp_path / "hf", architectures=["BertModel"])
    with pytest.raises(UnexpectedTensorError, match="classifier"):
        understand(open_checkpoint(str(tmp_path / "hf")))


# --- other programs ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "modernbert, first", "modernbert, mean", "qwen3"])
def test_transformers_and_llama_cpp_give_the_scores(name: str, tmp_path: Path, fixtures: Path) -> None:
    """The oracle's BERT lends its vocabulary, without which llama.cpp loads no file."""
    kind, config = CLASSIFIERS[name]
    saved(tmp_path / "hf", kind, {**config, "vocab_size": 384})
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "hf" / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), witness=("transformers", "llama.cpp"))
    heard = {
        one["witness"]: one
        for one in convert(request)[0].receipt["testimonies"]
        if one["what"] not in ("texts", "conversations")
    }
    assert {witness: one["what"] for witness, one in heard.items() if witness != "tokenizers"} == {
        "transformers": "scores", "llama.cpp": "scores"
    }
    assert all(one["why"] is None for one in heard.values())


@pytest.mark.slow
@pytest.mark.parametrize("case", [
    "modernbert of GELU by tanh", "modernbert of windows without a period",
    *(f"modernbert whose blocks without a window are stretched, {kind}" for kind in STRETCHED),
    *(f"{name} stretched, {kind}" for name in ("eurobert", "nomic", "jina 3") for kind in STRETCHED),
])
def test_llama_cpp_embeds_what_a_configuration_states(case: str, tmp_path: Path, fixtures: Path) -> None:
    kind, config, changes = STATED[case]
    saved(tmp_path, kind, {**config, "vocab_size": 384})
    edited(tmp_path, **changes)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    made = convert(Request(str(tmp_path), str(tmp_path / "x.gguf"), witness=("llama.cpp",)))[0]
    said = {one["what"]: one["why"] for one in made.receipt["testimonies"] if one["witness"] == "llama.cpp"}
    assert said == {"embeddings": None, "texts": None}


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_blocks_of_one_kind_are_not_for_llama_cpp(kind: str, tmp_path: Path) -> None:
    """Its process ends (b11549): GGML_ASSERT(buffer), of the mask that no block reads."""
    saved(tmp_path, "ModernBertModel", {**MODERN, "layer_types": [kind] * 4})
    graph = understand(open_checkpoint(str(tmp_path)))
    assert "llama.cpp" not in graph.runtimes and any("a mask for each kind" in note for note in graph.notes)
    saved(tmp_path, "ModernBertModel", MODERN)
    assert "llama.cpp" in understand(open_checkpoint(str(tmp_path))).runtimes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jina", "neobert"])
def test_llama_cpp_alone_gives_the_embeddings(name: str, tmp_path: Path, fixtures: Path) -> None:
    """Of classes that transformers has not."""
    folder = tmp_path / "hf"
    if name == "jina":
        jina(folder, words=384)
    else:
        folder.mkdir()
        tensors = neo_tensors()
        words = tensors["model.encoder.weight"].repeat(4, 1) * torch.linspace(0.5, 1.5, 384)[:, None]
        save_file(tensors | {"model.encoder.weight": words}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(NEO | {"vocab_size": 384}))
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    heard = convert(Request(str(folder), str(tmp_path / "x.gguf"), witness=("llama.cpp",)))[0].receipt["testimonies"]
    said = [(one["what"], one["why"]) for one in heard if one["witness"] == "llama.cpp"]
    assert sorted(said) == [("embeddings", None), ("texts", None)]
