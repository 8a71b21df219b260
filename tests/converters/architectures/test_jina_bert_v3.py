"""Jina's embeddings v3 by their definition, by transformers, which has the model without adapters, and by llama.cpp."""

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
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError
from helpers.tiny_models import relative

BARE = VocabOptions(none=True)
IDS = [2, 17, 42, 9, 3, 60, 31, 8, 77, 12, 5, 90]
WIDTH, HEADS, FF, BLOCKS, TASKS, RANK = 48, 3, 80, 2, 5, 4
WAS = "parametrizations.weight.original"
CONFIG: dict[str, Any] = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "vocab_size": 96, "hidden_size": WIDTH,
    "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "intermediate_size": FF, "hidden_act": "gelu",
    "layer_norm_eps": 1e-5, "max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1,
    "position_embedding_type": "rotary", "rotary_emb_base": 2000.0, "lora_rank": RANK, "lora_alpha": 1,
    "lora_adaptations": ["a", "b", "c", "d", "e"], "use_flash_attn": True,
}


def checkpoint(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(2)
    found = {}

    def matrix(name: str, rows: int, columns: int, bias: bool = True) -> None:
        found[f"roberta.{name}.{WAS}"] = torch.randn(rows, columns, generator=rng) * 1.5 * columns**-0.5
        found[f"roberta.{name}.parametrizations.weight.0.lora_A"] = torch.randn(TASKS, RANK, columns, generator=rng)
        found[f"roberta.{name}.parametrizations.weight.0.lora_B"] = torch.randn(TASKS, rows, RANK, generator=rng)
        if bias:
            found[f"roberta.{name}.bias"] = torch.randn(rows, generator=rng) * 0.3

    def norm(name: str) -> None:
        found[f"roberta.{name}.weight"] = 1 + 0.2 * torch.randn(WIDTH, generator=rng)
        found[f"roberta.{name}.bias"] = 0.2 * torch.randn(WIDTH, generator=rng)

    matrix("embeddings.word_embeddings", changes.get("vocab_size", 96), WIDTH, bias=False)
    matrix("embeddings.token_type_embeddings", 1, WIDTH, bias=False)
    norm("emb_ln")
    for n in range(BLOCKS):
        at = f"encoder.layers.{n}"
        matrix(f"{at}.mixer.Wqkv", 3 * WIDTH, WIDTH)
        matrix(f"{at}.mixer.out_proj", WIDTH, WIDTH)
        norm(f"{at}.norm1")
        matrix(f"{at}.mlp.fc1", FF, WIDTH)
        matrix(f"{at}.mlp.fc2", WIDTH, FF)
        norm(f"{at}.norm2")
    matrix("pooler.dense", WIDTH, WIDTH)
    folder.mkdir(exist_ok=True)
    save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return {name.removeprefix("roberta.").replace(f".{WAS}", ".weight"): x for name, x in found.items()}


def by_definition(w: dict[str, torch.Tensor]) -> np.ndarray:
    """As Jina's code computes them without a task: the norms behind the additions, halves that turn."""
    functional = torch.nn.functional

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    d = WIDTH // HEADS
    angles = torch.arange(len(IDS))[:, None, None] * 2000.0 ** (-torch.arange(0, d, 2) / d)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        a, b = x.view(len(IDS), HEADS, d).chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)

    x = norm(w["embeddings.word_embeddings.weight"][IDS] + w["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for n in range(BLOCKS):
        at = f"encoder.layers.{n}"
        q, k, v = linear(x, f"{at}.mixer.Wqkv").chunk(3, -1)
        seen = torch.einsum("qhd,khd->hqk", rotated(q), rotated(k)) / d**0.5
        mixed = torch.einsum("hqk,khd->qhd", seen.softmax(-1), v.view(len(IDS), HEADS, d)).flatten(1)
        x = norm(x + linear(mixed, f"{at}.mixer.out_proj"), f"{at}.norm1")
        x = norm(x + linear(functional.gelu(linear(x, f"{at}.mlp.fc1")), f"{at}.mlp.fc2"), f"{at}.norm2")
    return x.numpy()


def test_jina_3_by_its_definition(tmp_path: Path) -> None:
    expected = by_definition(checkpoint(tmp_path / "hf"))
    path = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].path
    for side in (str(tmp_path / "hf"), path):
        assert relative(expected, forward(graph_of(side), IDS)) <= 2e-6
    assert graph_of(path).checkpoint.metadata["jina-bert-v3.context_length"].data == 40


def test_adapters_of_the_tasks_are_dropped_by_name(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    graph = understand(open_checkpoint(str(tmp_path)))
    gone = [drop for drop in graph.dropped if "without a task" in drop.reason]
    assert len(gone) == 2 * (2 + 4 * BLOCKS + 1) and all(drop.loses for drop in gone)
    assert any("without a task" in note for note in graph.notes)


SIZES = {
    "vocab_size": 96, "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
    "intermediate_size": FF, "max_position_embeddings": 42,
}


@pytest.mark.parametrize("stated", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}])
@pytest.mark.parametrize("kind", ["JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"])
def test_what_transformers_saves_computes_what_transformers_does(
    kind: str, stated: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(3)
    model = getattr(transformers, kind)(transformers.JinaEmbeddingsV3Config(**SIZES, **stated)).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.2 * torch.randn(tensor.shape))
    model.save_pretrained(tmp_path / "hf")
    with torch.no_grad():
        states = model(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states[-1][0].numpy()
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    for side in (str(tmp_path / "hf"), made.path):
        assert relative(states, forward(graph_of(side), IDS)) <= 2e-6
    assert graph_of(made.path).architecture.name == "jina-bert-v3"
    assert not [note for note in made.receipt["notes"] if "not used" in note or "unread" in note]


def test_a_rotary_kind_that_it_does_not_compute_is_refused(tmp_path: Path) -> None:
    config = transformers.JinaEmbeddingsV3Config(
        **SIZES, rope_parameters={"rope_type": "proportional", "factor": 2.0, "rope_theta": 20000.0}
    )
    transformers.JinaEmbeddingsV3Model(config).save_pretrained(tmp_path)
    with pytest.raises(GgferryError, match="rope_type"):
        understand(open_checkpoint(str(tmp_path)))


def test_an_xlm_roberta_is_what_it_was(tmp_path: Path) -> None:
    sizes = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = transformers.XLMRobertaConfig(**sizes, intermediate_size=80, max_position_embeddings=42)
    transformers.XLMRobertaModel(config).save_pretrained(tmp_path)
    assert understand(open_checkpoint(str(tmp_path))).architecture.name == "bert"


@pytest.mark.parametrize(("key", "value"), [("position_embedding_type", "absolute"), ("hidden_act", "relu")])
def test_what_it_does_not_compute_is_refused(key: str, value: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, **{key: value})
    with pytest.raises(GgferryError):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.slow
def test_llama_cpp_gives_the_embeddings(tmp_path: Path, fixtures: Path) -> None:
    """The oracle's BERT lends its vocabulary."""
    checkpoint(tmp_path / "hf", vocab_size=384)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "hf" / file).write_bytes((fixtures / "hf" / "ckpt" / "bert" / file).read_bytes())
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), witness=("llama.cpp",))
    heard = convert(request)[0].receipt["testimonies"]
    said = {one["what"]: one["why"] for one in heard if one["witness"] == "llama.cpp"}
    assert said["embeddings"] is None
