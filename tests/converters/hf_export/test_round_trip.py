"""The road back: a checkpoint that transformers made, as GGUF, as a folder again: the same tensors bit for bit, and a
configuration with which transformers computes the same logits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert as export
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.gguf.values import ValueType as T
from ggferry.formats.gguf.values import array
from helpers import tiny_models
from helpers.hf_export import check_tensors
from helpers.tiny_models import IN_DOUBLE, TINY, TOKENS, VOCAB, in_pairs, make, relative, vocabulary, write

pytestmark = pytest.mark.filterwarnings("ignore")
LIMIT, LOOSE = 1e-5, 2e-4
"""Relative RMS of two passes in float32; transformers' own of delta nets is further from its float64."""
QUICK = ("llama llama3", "qwen2 window", "mixtral", "gemma3", "gpt2", "deepseek v3", "falcon 40b")
EYES = ("vision_config", "vq_config", "projector_hidden_size", "out_hidden_size")
SEES = re.compile(
    r"(^|\.)(visual|vision_\w+|vqmodel|multi_modal_projector|projector|patch_merge_mlp|view_separator|image_newline)\b"
)
"""Keys and weights of the half that sees, of classes that have the text half only together with it."""
OTHERWISE = ("granite_swa listed", "helium")
"""What ggferry reads as the same model and transformers computes otherwise: `--witness transformers` refuses it."""
UNSAID = {
    "cohere2moe sigmoid": "would give another cohere2moe.attention.rope_pattern",
}
"""What no configuration says, and is refused."""


FOLLOWS = re.compile(r"ple_embedding\.(layer_multipliers|ngram_heads_\w+)$|self_attn\.(slope_rate|\w+_decay)$")
"""Buffers that transformers computes of a configuration, where no file has them."""


def way_back(source: ModelGraph, folder: Path, **options: Any) -> Path:
    """Write the model as GGUF, then as a folder."""
    gguf, out = write(source, folder / "x.gguf"), folder / "back"
    plain: dict[str, Any] = {"level": "fast", "vocab": VocabOptions(none=True), **options}
    export(Request(str(gguf), str(out), to="safetensors", **plain))
    return out


def add_eyes(before: Path, after: Path) -> None:
    """State in a folder what the original's configuration says of the half that sees: by default it is a large one."""
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (before, after))
    if "ForConditionalGeneration" in new["architectures"][0]:
        eyes = {key: value for key, value in old.items() if key in EYES}
        (after / "config.json").write_text(json.dumps({**eyes, **new}))


def logits(folder: Path) -> np.ndarray:
    """Return what transformers computes with the folder, whose every weight of a text must come from its files."""
    import torch

    config = transformers.AutoConfig.from_pretrained(folder)
    if config.architectures == ["HYV4ForCausalLM"]:
        in_pairs(folder, back=True)
    kind = getattr(transformers, config.architectures[0])
    how = "sdpa" if getattr(config, "alibi", False) else "eager"  # which for Falcon would add ALiBi twice
    model, told = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=how, output_loading_info=True)
    missing = sorted(name for name in told["missing_keys"] if not (FOLLOWS.search(name) or SEES.search(name)))
    assert not missing and not told["unexpected_keys"], (missing[:3], told["unexpected_keys"])
    with torch.no_grad():
        return np.asarray(model.eval()(torch.tensor([TOKENS])).logits[0].float().numpy())


def check(name: str, tmp_path: Path, **changes: Any) -> None:
    expected = make(name, tmp_path / "hf", **changes)
    back = way_back(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path)
    check_tensors(tmp_path / "hf", back)
    add_eyes(tmp_path / "hf", back)
    loose = json.loads((back / "config.json").read_text())["architectures"][0].startswith(IN_DOUBLE)
    assert relative(expected, logits(back)) <= (LOOSE if loose else LIMIT)


@pytest.mark.parametrize("name", QUICK)
def test_a_folder_made_of_gguf_is_the_one_it_was_made_of(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNSAID)
def test_what_no_configuration_says_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    with pytest.raises(UnsupportedError, match=UNSAID[name]):
        way_back(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TINY if name not in {*QUICK, *UNSAID, *OTHERWISE}])
def test_every_other_tiny_model(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["qwen3", "olmo2", "olmo", "arcee", "cohere2", "gemma3", "hy_v3"])
def test_biases_of_zeros_that_were_left_out_are_written_again(name: str, tmp_path: Path) -> None:
    """The class has a bias of the output where it has those of queries, keys and values."""
    make(name, tmp_path / "hf", attention_bias=True)
    path = tmp_path / "hf" / "model.safetensors"
    zeros = {key: abs(0 * x) if key.endswith("o_proj.bias") else x for key, x in load_file(path).items()}
    save_file(zeros, path, {"format": "pt"})
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    assert "blk.0.attn_output.bias" not in source.by_name and "blk.0.attn_q.bias" in source.by_name
    back = way_back(source, tmp_path)
    check_tensors(tmp_path / "hf", back)
    assert relative(logits(tmp_path / "hf"), logits(back)) <= LIMIT


LLAMA3 = {"rope_type": "llama3", "rope_theta": 70.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIED: dict[str, tuple[str, dict[str, Any]]] = {
    "more dense blocks, another bound": (
        "hy_v4", {"swiglu_limit": 0.001, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2, "rope_theta": 33}
    ),
    "an output that is the embedding, in a whole model": (
        "glm 5.3 flash", {"tie_word_embeddings": True, "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2}
    ),
    "a low rank of queries, other kinds of blocks": (
        "ling 3", {"q_lora_rank": 28, "layer_types": ["full_attention", *["linear_attention"] * 5]}
    ),
    "no experts by token": ("deepseek v4", {"num_hash_layers": 0, "compress_ratios": [128, 128, 4, 128, 4]}),
    "yarn by kind of block": (
        "deepseek v4",
        {"rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 55.0, "partial_rotary_factor": 0.4},
            "compress": {"rope_type": "yarn", "rope_theta": 66.0, "partial_rotary_factor": 0.4, "factor": 16.0,
                         "original_max_position_embeddings": 16, "attention_factor": 1.0}}},
    ),
    "no bounds, no windows": (
        "step35", {"layer_types": ["full_attention"] * 4, "swiglu_limits": None, "swiglu_limits_shared": None}
    ),
    "factors of LLaMA 3's original context": (
        "step35",
        {"rope_parameters": {
            "full_attention": {**LLAMA3, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 8192},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5.0}}},
    ),
    "windows only": ("dots3 note", {"layer_types": ["sliding_attention"] * 5}),
    "no windows": ("dots3 note", {"layer_types": ["indexed_attention"] * 5}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", VARIED)
def test_other_configurations_of_a_family(case: str, tmp_path: Path) -> None:
    name, changes = VARIED[case]
    check(name, tmp_path, **changes)


@pytest.mark.slow
def test_bounds_that_transformers_does_not_read_are_stated_and_said(tmp_path: Path) -> None:
    make("ling 3", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "expert_swiglu_limit_list": [0.0, *[0.5] * 5]}))
    back = way_back(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path)
    assert json.loads((back / "config.json").read_text())["expert_swiglu_limit_list"] == [0.0, *[0.5] * 5]
    notes = json.loads((back / "ggferry.receipt.json").read_text())["notes"]
    assert any("transformers and the code published with the model do not read it" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_maps_of_tokens_to_experts_stay_whole_numbers(dtype: str, tmp_path: Path) -> None:
    """Past 2048, float16 has no odd numbers, and bfloat16 none past 256."""
    make("deepseek v4", tmp_path / "hf")
    gguf, out = tmp_path / "x.gguf", tmp_path / "back"
    plain = VocabOptions(none=True)
    export(Request(str(tmp_path / "hf"), str(gguf), vocab=plain, level="fast"))
    export(Request(str(gguf), str(out), to="safetensors", dtype=dtype, vocab=plain))
    old, new = (load_file(folder / "model.safetensors") for folder in (tmp_path / "hf", out))
    names = [name for name in old if name.endswith("tid2eid")]
    assert len(names) == 2 and all(str(new[name].dtype) == "torch.int32" for name in names)
    assert all((old[name] == new[name]).all() for name in names)


@pytest.mark.slow
def test_experts_that_a_list_places_go_back(tmp_path: Path) -> None:
    expected = make("llama4", tmp_path / "hf", moe_layers=[3])
    back = way_back(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path)
    assert relative(expected, logits(back)) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apertus", "hunyuan dense alpha"])
def test_a_checkpoint_becomes_a_folder_of_another_type(name: str, tmp_path: Path) -> None:
    """Numbers that GGUF has as keys are no weights to round; an alpha changes the base that is stated, not another."""
    expected = make(name, tmp_path / "hf")
    for dtype in ("f32", "bf16"):
        out = str(tmp_path / dtype)
        plain = VocabOptions(none=True)
        export(Request(str(tmp_path / "hf"), out, to="safetensors", dtype=dtype, level="full", vocab=plain))
    assert relative(expected, logits(tmp_path / "f32")) <= LIMIT
    kinds = {name: data.dtype for name, data in load_file(tmp_path / "bf16" / "model.safetensors").items()}
    assert {str(kind) for at, kind in kinds.items() if "act_fn" not in at} == {"torch.bfloat16"}
    assert {str(kind) for at, kind in kinds.items() if "act_fn.alpha" in at} <= {"torch.float32"}


@pytest.mark.slow
def test_minimax_01_that_turns_a_part_of_each_head_gets_its_publishers_class(tmp_path: Path) -> None:
    """transformers' class turns whole heads whatever is stated; code beside weights reads the base by its own key."""
    make("minimax-01", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rotary_dim": 6}))
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    back = way_back(source, tmp_path)
    check_tensors(tmp_path / "hf", back)
    config = json.loads((back / "config.json").read_text())
    stated = {
        key: config.get(key) for key in ("architectures", "rotary_dim", "rope_theta", "attn_type_list", "postnorm")
    }
    assert stated == {
        "architectures": ["MiniMaxText01ForCausalLM"],
        "rotary_dim": 6,
        "rope_theta": 5000.0,
        "attn_type_list": [0, 1, 0],
        "postnorm": True,
    }
    assert (
        not any(key.startswith(("rope_scaling", "layer_types")) for key in config) and config["sliding_window"] is None
    )
    assert relative(forward(source, TOKENS), forward(graph_of(str(back)), TOKENS)) <= LIMIT


@pytest.mark.slow
def test_the_tokens_of_chameleons_pictures_are_those_of_the_vocabulary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """transformers gives them the least logits, and finds them by the names that a configuration lists."""
    keys = vocabulary(VOCAB)
    tokens = list(keys["tokenizer.ggml.tokens"].data)
    tokens[300:303] = ["IMGIMGAZ", "IMGIMGBZ", "<image>"]
    monkeypatch.setattr(tiny_models, "vocabulary", lambda _: {**keys, "tokenizer.ggml.tokens": array(T.STRING, tokens)})
    expected = make("chameleon", tmp_path / "hf", vocabulary_map={text: token for token, text in enumerate(tokens)})
    assert (expected[:, 300:302] < -1e30).all()
    back = way_back(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path, vocab=VocabOptions())
    add_eyes(tmp_path / "hf", back)
    found = logits(back)
    assert (found[:, 300:302] == expected[:, 300:302]).all()
    assert relative(np.delete(expected, [300, 301], 1), np.delete(found, [300, 301], 1)) <= LIMIT
