"""Adapters that change a vocabulary: added tokens, single rows, tied matrices, as PEFT computes with them unmerged.

PEFT's own merging is no witness where matrices are tied: it changes both.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import InconsistentError, OutOfRangeError, ShapeError, UnsupportedError
from helpers.merged_adapters import converted, tensors
from helpers.tiny_models import make

TOKENS = [1, 5, 2, 7]
QUERY, EMBEDDING = {"gpt2": "c_attn"}, {"gpt2": "wte"}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "both saved": ({"modules_to_save": ["E", "lm_head"]}, 3),
    "both saved, fewer tokens": ({"modules_to_save": ["E", "lm_head"]}, -3),
    "embedding saved": ({"modules_to_save": ["E"]}, 3),
    "embedding saved, tied": ({"modules_to_save": ["E"], "ensure_weight_tying": True}, 3),
    "embedding saved, tied, as many": ({"modules_to_save": ["E"], "ensure_weight_tying": True}, 0),
    "pairs for both": ({"target_modules": ["Q", "E", "lm_head"]}, 3),
    "pairs for both, tied": ({"target_modules": ["Q", "E", "lm_head"], "ensure_weight_tying": True}, 3),
    "rows": ({"trainable_token_indices": [1, 5]}, 0),
    "rows of added tokens": ({"trainable_token_indices": [1, 329]}, 3),
    "rows of both": ({"trainable_token_indices": {"E": [1, 5], "lm_head": [2]}}, 0),
    "rows of the output, tied": ({"trainable_token_indices": {"lm_head": [2]}, "ensure_weight_tying": True}, 0),
}
"""Settings, E for the embedding and Q for the queries, and how many tokens are added."""
OF_TIED = {
    "pairs for the embedding": ({"target_modules": ["Q", "E"]}, 3),
    "pairs for the embedding, DoRA": ({"target_modules": ["Q", "E"], "use_dora": True}, 3),
}
"""A base that is not tied does not say what the output's added rows are."""
QUICK = (("llama", "rows"), ("gemma2", "both saved"))


def trained(base: Path, adapter: Path, added: int = 0, **config: Any) -> Any:
    """Save an adapter with random values, and return the logits that PEFT computes with it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if added:
        loaded.resize_token_embeddings(loaded.config.vocab_size + added)
    model = get_peft_model(loaded, LoraConfig(**{"r": 4, "lora_alpha": 6, **config}))
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.requires_grad:
                tensor.add_(torch.randn_like(tensor) * 0.2)
        model.save_pretrained(adapter)
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def settings(base: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a case's settings in the names of a model."""
    text = json.dumps({"target_modules": ["Q"], **config})
    found: dict[str, Any] = json.loads(
        text.replace('"E"', f'"{EMBEDDING.get(base, "embed_tokens")}"').replace('"Q"', f'"{QUERY.get(base, "q_proj")}"')
    )
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("base", "case"),
    [
        pytest.param(base, case, marks=[] if (base, case) in QUICK else pytest.mark.slow)
        for base in ("llama", "gemma2", "gpt2")
        for case in (*CASES, *(OF_TIED if base != "llama" else ()))
    ],
)
def test_logits_are_those_of_peft(base: str, case: str, tmp_path: Path) -> None:
    config, added = {**CASES, **OF_TIED}[case]
    make(base, tmp_path / "base")
    expected = trained(tmp_path / "base", tmp_path / "a", added, **settings(base, config))
    result = converted(tmp_path / "base", tmp_path / "x.gguf", str(tmp_path / "a"))
    found = np.asarray(forward(graph_of(str(tmp_path / "x.gguf")), TOKENS))
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()
    assert any("vocabulary of another size" in note for note in result.receipt["notes"]) is (added != 0)


@pytest.mark.filterwarnings("ignore")
def test_rows_are_merged_into_a_gguf_file(tmp_path: Path) -> None:
    make("llama", tmp_path / "base")
    expected = trained(tmp_path / "base", tmp_path / "a", **settings("llama", CASES["rows"][0]))
    converted(tmp_path / "base", tmp_path / "base.gguf", level="fast")
    converted(tmp_path / "base.gguf", tmp_path / "x.gguf", str(tmp_path / "a"))
    found = np.asarray(forward(graph_of(str(tmp_path / "x.gguf")), TOKENS))
    assert np.abs(found - expected).max() < 3e-6 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_added_tokens_come_with_the_tokenizer_of_the_adapter(fixtures: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    own = fixtures / "tokenizers" / "bpe_llama3"
    tokenizer = AutoTokenizer.from_pretrained(own)
    make("llama", tmp_path / "base", vocab_size=len(tokenizer))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(own / name, tmp_path / "base")
    trained(tmp_path / "base", tmp_path / "a", 2, **settings("llama", CASES["both saved"][0]))
    tokenizer.add_tokens(["<|first|>", "<|second|>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path / "a")

    def merged(*lora: str) -> tuple[list[str], list[str]]:
        request = Request(
            str(tmp_path / "base"), str(tmp_path / "x.gguf"), Options(outtype="f32"), lora=lora, force=True
        )
        receipt = convert(request)[0].receipt
        field = gguf.GGUFReader(tmp_path / "x.gguf").fields["tokenizer.ggml.tokens"]
        return field.contents()[-2:], [note for note in receipt["notes"] if "tokenizer" in note and "a" in note]

    tokens, notes = merged(str(tmp_path / "a"))
    assert tokens == ["<|first|>", "<|second|>"]
    assert any("its tokenizer is taken" in note for note in notes)
    trained(tmp_path / "base", tmp_path / "b", **settings("llama", {}))
    shutil.copy(tmp_path / "a" / "tokenizer.json", tmp_path / "b")
    tokens, notes = merged(str(tmp_path / "b"))
    assert "<|first|>" not in tokens
    assert any("b: its tokenizer.json is another than the base's, whose tokenizer is taken" in note for note in notes)


def _config(**changes: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _without(end: str) -> Any:
    def change(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file({name: each for name, each in load_file(path).items() if not name.endswith(end)}, path)

    return change


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("case", "change", "scale", "error", "words"),
    [
        ("rows", _config(trainable_token_indices=[1, 5, 6]), "", InconsistentError, "2 different token ids"),
        ("rows", _config(trainable_token_indices=[5, 5]), "", InconsistentError, "2 different token ids"),
        ("rows", _config(trainable_token_indices={"other": [1, 5]}), "", InconsistentError, "'model.embed_tokens'"),
        ("rows", _config(trainable_token_indices=[True, 5]), "", InconsistentError, "2 different token ids"),
        ("rows", _config(trainable_token_indices=[-1, 5]), "", InconsistentError, "2 different token ids"),
        ("rows", _config(trainable_token_indices=[1, 328]), "", OutOfRangeError, "expected below 328"),
        ("rows", _config(), ":0.5", UnsupportedError, "whole tensors or rows"),
        ("both saved", _without("lm_head.weight"), "", ShapeError, "one matrix of the vocabulary and not the other"),
    ],
)
def test_what_does_not_fit_is_refused(
    case: str, change: Any, scale: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    make("llama", tmp_path / "base")
    config, added = CASES[case]
    trained(tmp_path / "base", tmp_path / "a", added, **settings("llama", config))
    if case == "both saved":
        _without("lm_head.modules_to_save.weight")(tmp_path / "a")
    change(tmp_path / "a")
    with pytest.raises(error, match=words):
        converted(tmp_path / "base", tmp_path / "x.gguf", f"{tmp_path / 'a'}{scale}", level="fast")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.filterwarnings("ignore")
def test_what_peft_writes_and_never_loads_is_named(tmp_path: Path) -> None:
    make("llama", tmp_path / "base")
    trained(tmp_path / "base", tmp_path / "a", 3, **settings("llama", CASES["both saved"][0]))
    result = converted(tmp_path / "base", tmp_path / "x.gguf", str(tmp_path / "a"), level="fast")
    (note,) = [note for note in result.receipt["notes"] if note.startswith("merged a")]
    assert "not used, since PEFT does not load them: base_model.model.lm_head.original_module.weight" in note
    assert tensors(tmp_path / "x.gguf")["token_embd.weight"].shape == (331, 48)
