"""DeepSeek V4 over more tokens than any of its windows has, under its publisher's names and keys, and in llama.cpp."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.model import Places
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import BadValueError, GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.tiny_models import TINY, TOKENS, VOCAB, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
LIMIT = 1e-5
LONG = [(1 + place * 0x9E3779B1) % VOCAB for place in range(300)]
"""Two keys of 128 tokens and 75 of 4, of which an indexer chooses two."""
PUBLISHED = (
    (r"model\.embed_tokens\.", "embed."),
    (r"model\.hc_head\.hc_", "hc_head_"),
    (r"attn\.norm\.", "attn.kv_norm."),
    (r"^model\.", ""),
)


def of_transformers(folder: Path) -> np.ndarray:
    """Return transformers' logits of LONG."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([LONG])).logits[0].float().numpy()
    return found


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.parametrize("name", ["deepseek v4", pytest.param("deepseek v4 yarn", marks=pytest.mark.slow)])
def test_keys_of_many_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", max_position_embeddings=512)
    expected, source = of_transformers(tmp_path / "hf"), graph_of(str(tmp_path / "hf"))
    assert relative(expected, forward(source, LONG)) <= LIMIT
    written = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert relative(expected, forward(written, LONG)) <= LIMIT


def test_as_it_is_published(tmp_path: Path) -> None:
    """Under DeepSeek's own names, its configuration's keys, with a block that predicts further tokens, which is none of
    the decoder's, and a bias that nothing reads where the token chooses."""
    expected = make("deepseek v4 yarn", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for old, new in PUBLISHED:
        tensors = {re.sub(old, new, name): values for name, values in tensors.items()}
    tensors |= {"mtp.0.norm.weight": np.ones(48, "f4"), "layers.0.ffn.gate.bias": np.ones(8, "f4")}
    assert {"embed.weight", "hc_head_fn", "layers.1.attn.kv_norm.weight", "norm.weight"} <= tensors.keys()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    kept = TINY["deepseek v4"].config
    scaling = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}
    edited(
        tmp_path,
        compress_ratios=[*kept["compress_ratios"], 0],
        num_hash_layers=kept["num_hash_layers"],
        rope_scaling=scaling,
        **dict.fromkeys(
            ("layer_types", "mlp_layer_types", "rope_parameters", "partial_rotary_factor", "compress_rates")
        ),
    )
    graph = graph_of(str(tmp_path))
    assert relative(expected, forward(graph, TOKENS)) <= LIMIT
    assert not [note for note in graph.notes if "does not use" in note]


def test_windows_are_of_positions_and_not_of_tokens(tmp_path: Path) -> None:
    """So that the few tokens of a proof, with gaps between them, reach keys of 128: what is far sees them."""
    make("deepseek v4", tmp_path, max_position_embeddings=512)
    graph = graph_of(str(tmp_path))
    at = (0, 1, 2, 126, 127, 128, 255, 256, 300)
    found = forward(graph, TOKENS[: len(at)], places=Places(at))
    near = forward(graph, TOKENS[: len(at)], places=Places(tuple(range(118, 118 + len(at)))))
    assert relative(found, near) > 1e-2
    assert relative(found[:4], forward(graph, TOKENS[:4], places=Places(at[:4]))) <= LIMIT


def test_experts_that_a_table_lists_and_there_are_not(tmp_path: Path) -> None:
    make("deepseek v4", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if name.endswith("1.ffn.gate.tid2eid"))
    tensors[name][TOKENS[3], 1] = 8
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadValueError, match=r"ffn_gate_tid2eid.*0 to 7"):
        forward(graph_of(str(tmp_path)), TOKENS)


@pytest.mark.slow
def test_a_file_of_it_is_proved_and_its_table_holds_whole_numbers(tmp_path: Path) -> None:
    make("deepseek v4", tmp_path / "hf", max_position_embeddings=512)
    source = load_file(tmp_path / "hf" / "model.safetensors")
    for outtype in ("keep", "q8_0"):
        options, vocab = Options(outtype=outtype), VocabOptions(none=True)
        (made,) = convert(
            Request(str(tmp_path / "hf"), str(tmp_path / f"{outtype}.gguf"), options=options, vocab=vocab)
        )
        found = open_gguf(made.path)
        table = found.tensors["blk.1.ffn_gate_tid2eid.weight"]
        assert table.type.name == "I32" and table.shape == (VOCAB, 3)
        values = np.frombuffer(Path(made.path).read_bytes(), "<i4", VOCAB * 3, table.spans[0].offset)
        assert np.array_equal(values.reshape(VOCAB, 3), source["model.layers.1.ffn.gate.tid2eid"])


def test_lists_of_gguf_files_may_go_on_behind_the_last_block(tmp_path: Path) -> None:
    """convert_hf_to_gguf writes the ratios of blocks that predict further tokens, too."""
    make("deepseek v4", tmp_path / "hf")
    graph = graph_of(str(tmp_path / "hf"))
    file = open_gguf(str(write(graph, tmp_path / "x.gguf")))
    key = "deepseek4.attention.compress_ratios"
    longer = replace(
        file, metadata={**file.metadata, key: replace(file.metadata[key], data=(*file.metadata[key].data, 0))}
    )
    assert understand(longer).sizes["ratio"] == (0, 4, 128, 4, 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compress_rates": {"compressed_sparse_attention": 8}}, "compress_rates"),
        ({"mlp_layer_types": ["moe", "hash_moe", "moe", "moe", "moe"]}, "between"),
        ({"n_shared_experts": 2}, "n_shared"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"layer_types": None, "compress_ratios": [0, 4, 128, 16, 0]}, "compression over another"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
    ],
)
def test_what_no_file_can_say_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    make("deepseek v4", tmp_path)
    edited(tmp_path, **changes)
    with pytest.raises(GgferryError, match=reason):
        graph_of(str(tmp_path))


@pytest.mark.slow
def test_llama_cpp_compresses_alike(tmp_path: Path) -> None:
    """Over 300 tokens. It computes the keys as F32 here, so that indexers choose alike."""
    for name in ("deepseek v4", "deepseek v4 yarn"):
        make(name, tmp_path / "hf", max_position_embeddings=512)
        graph, tokens = graph_of(str(tmp_path / "hf")), list(LONG)
        (answer,) = continuations(tokens, 3, write(graph, tmp_path / f"{name}.gguf"), context=512)
        for token, probability in answer:
            logits = forward(graph, tokens)[-1].astype(np.float64)
            scores = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            assert token == int(scores.argmax()) and scores[token] == pytest.approx(probability, abs=1e-4)
            tokens.append(token)
        assert answer
