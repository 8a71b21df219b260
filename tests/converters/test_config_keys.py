"""Every key of config.json is read, harmless for a stated reason, or told; and a stated 0 is not 'nothing stated'."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.config_keys import GENERAL
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import architectures, open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, InconsistentError, OutOfRangeError, UnsupportedError
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import TINY, TOKENS, make, relative, write

BIN = Path(sys.executable).parent
LIMIT = 1e-5
NOTE = "config.json keys that ggferry does not use: "
pytestmark = [pytest.mark.attack, pytest.mark.filterwarnings("ignore")]


def bound(config: Mapping[str, Any], **hparams: str) -> ModelGraph:
    """What is understood of a configuration without tensors."""
    checkpoint = Checkpoint("safetensors", None, (), {}, metadata=json.loads(json.dumps(config, default=str)))
    return understand(checkpoint, hparams, vocab_only=True)


def unread(config: Mapping[str, Any]) -> set[str]:
    """The keys that the user is told of."""
    told = [note.removeprefix(NOTE) for note in bound(config).notes if note.startswith(NOTE)]
    return set(", ".join(told).split(", ")) - {""}


TEXTS = ("Qwen4Exp", "Gemma3", "Dots3Note", "DeepseekOcr2")
"""Whose `Config` is that of the whole model."""


CHOOSING = "MiniMaxM3SparseForConditionalGeneration"
"""Whose blocks of experts must look at chosen tokens, as llama.cpp's do: by default of its class, none does."""


def stated(name: str) -> tuple[dict[str, Any], set[str]]:
    """config.json of a tiny model, and the keys that its class knows."""
    tiny = TINY[name]
    kind = getattr(transformers, f"{tiny.model}{'Text' if tiny.model in TEXTS else ''}Config")
    config = json.loads(kind(**json.loads(json.dumps(tiny.config))).to_json_string())
    if tiny.cls == CHOOSING:
        config["text_config"]["layer_types"] = ["minimax_m3_sparse"] * 60
    if tiny.old:
        config = {key: value for key, value in config.items() if key != "rope_parameters"} | dict(tiny.old)
    return {"architectures": [tiny.cls], **config}, set(kind().to_dict())


# --- nothing is told of what is harmless --------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_a_configuration_as_transformers_writes_it_is_all_used(name: str) -> None:
    config, known = stated(name)
    assert unread(config) & known == set()


SIZELESS = {
    "Glm4MoeForCausalLM": (),
    "Glm4MoeModel": (),
    "Glm4vMoeForConditionalGeneration": ("text_config",),
    "Qwen3OmniMoeForConditionalGeneration": ("thinker_config", "text_config"),
}
ALONE = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}  # else transformers refuses its own default
QWEN4 = {
    "output_gate_type": "sigmoid", "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 64,
    "indexer_budget": 32, "indexer_compress_ratio": 16,
}  # fmt: skip
ANOTHER_LAYOUT = ("PocketTTSModel",)
"""Classes of transformers with names of tensors of their own: the publisher's layout is read, without a config.json."""
CLASSES = sorted(
    name
    for spec in architectures().values()
    for name in spec.hf_classes
    if hasattr(transformers, name) and name not in ANOTHER_LAYOUT
)


@pytest.mark.parametrize("name", CLASSES)
def test_the_defaults_of_a_class_are_all_used(name: str) -> None:
    parts = {"text_config": ALONE} if name.endswith("AssistantForCausalLM") else {}
    config = getattr(transformers, name).config_class(**parts).to_dict()
    if name == "DeepseekV2ForCausalLM":  # without a number of experts it is no model
        config["num_experts_per_tok"] = 2
    if name == "DeepseekOcr2ForConditionalGeneration":
        config["text_config"]["num_experts_per_tok"] = 2
    if name == "Gemma3TextModel":  # which is EmbeddingGemma's
        config["use_bidirectional_attention"] = True
    if name == "Step3p7ForConditionalGeneration":  # no file can hold heads that turn whole: they are refused
        config["text_config"]["partial_rotary_factors"] = [0.5] * config["text_config"]["num_hidden_layers"]
    if name == CHOOSING:
        config["text_config"]["layer_types"] = ["minimax_m3_sparse"] * 60
        config["text_config"]["rotary_dim"] = 128  # it states 64, and turns whole heads: that is told
    if name.startswith("Qwen4Exp"):  # the default has no indexer, and gates by silu, which no file can say: refused
        config.get("text_config", config).update(QWEN4)
    if name in SIZELESS:  # whose heads do not divide their width
        inner = config
        for part in SIZELESS[name]:
            inner = inner[part]
        inner["head_dim"] = 128
    assert unread({**config, "architectures": [name]}) == set()


FILES = sorted(path for root in ("hf/ckpt", "legacy-other/hf") for path in (FIXTURES / root).glob("*/config.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_the_configurations_of_the_fixtures_are_all_used(path: Path) -> None:
    assert unread(json.loads(path.read_text())) == set()


LEGACY = (("gpt2/gpt2-s64-g0-q8_0.bin", "gpt2-s64"), ("mpt/mpt-clip-s64-g2-q4_0.bin", "mpt-clip-s64"))


@pytest.mark.parametrize(("file", "config"), LEGACY)
def test_the_configuration_beside_a_legacy_file_is_all_used(file: str, config: str, tmp_path: Path) -> None:
    old, beside = FIXTURES / "legacy-other" / file, FIXTURES / "legacy-other" / "hf" / config
    told = [note for note in understand(open_checkpoint(str(old), None, str(beside))).notes if note.startswith(NOTE)]
    assert not told
    strange = json.loads((beside / "config.json").read_text()) | {"attention_gain": 2}
    (tmp_path / "config.json").write_text(json.dumps(strange))
    assert f"{NOTE}attention_gain" in understand(open_checkpoint(str(old), None, str(tmp_path))).notes


# What published configurations say beyond what today's classes write.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "LLaMA of 2023": (
        "llama",
        {
            "architectures": ["LLaMAForCausalLM"],
            "max_position_embeddings": None,
            "max_sequence_length": 2048,
            "pad_token_id": -1,
            "torch_dtype": "float16",
        },
    ),
    "SmolLM": ("llama", {"is_llama_config": True, "rope_interleaved": False}),
    "tuned": ("llama", {"unsloth_version": "2025.1.5", "unsloth_fixed": True, "_name_or_path": "x/y"}),
    "Mixtral": ("mixtral", {"output_router_logits": False, "router_aux_loss_coef": 0.02}),
    "Qwen2.5": ("qwen2", {"use_mrope": False, "rope_scaling": None}),
    "Phi-4-mini": (
        "phi3",
        {
            "full_attn_mod": 1,
            "interpolate_factor": 1,
            "lm_head_bias": False,
            "mlp_bias": False,
            "attention_bias": False,
            "embd_pdrop": 0.0,
            "auto_map": {"AutoConfig": "x.Y"},
        },
    ),
    "StarCoder": (
        "starcoder",
        {
            "inference_runner": 0,
            "pad_key_length": True,
            "pre_allocate_kv_cache": False,
            "validate_runner_input": True,
            "max_batch_size": None,
            "summary_type": "cls_index",
        },
    ),
    "StarCoder 2": ("starcoder2", {"mlp_type": "default", "norm_type": "layer_norm", "residual_dropout": 0.1}),
    "DeepSeek-V2": (
        "deepseek v2",
        {
            "aux_loss_alpha": 0.001,
            "ep_size": 1,
            "moe_layer_freq": 1,
            "seq_aux": True,
            "scoring_func": "softmax",
            "pretraining_tp": 1,
        },
    ),
    "DeepSeek-V3": (
        "deepseek v3",
        {
            "num_nextn_predict_layers": 1,
            "ep_size": 1,
            "moe_layer_freq": 1,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
    ),
    "GPT-2": ("gpt2", {"n_ctx": 64, "task_specific_params": {"text-generation": {"do_sample": True}}}),
    "GPT-J": ("gptj", {"rotary": True, "scale_attn_weights": True, "tokenizer_class": "GPT2Tokenizer"}),
    "BLOOM": (
        "bloom",
        {
            "attention_softmax_in_fp32": True,
            "bias_dropout_fusion": True,
            "masked_softmax_fusion": True,
            "offset_alibi": 100,
            "skip_bias_add": True,
            "skip_bias_add_qkv": False,
            "pretraining_tp": 4,
        },
    ),
    "Falcon": ("falcon 7b", {"apply_residual_connection_post_layernorm": False, "num_key_value_heads": None}),
    "MPT": (
        "mpt",
        {
            "init_config": {"name": "kaiming_normal_", "verbose": 0},
            "init_device": "cpu",
            "verbose": 0,
            "tokenizer_name": "EleutherAI/gpt-neox-20b",
            "learned_pos_emb": True,
        },
    ),
    "Codestral Mamba": (
        "mamba2",
        {
            "norm_before_gate": True,
            "rms_norm": True,
            "hidden_dropout_prob": 0.0,
            "time_step_init_scheme": "random",
            "intermediate_size": 96,
        },
    ),
    "Gemma 2": ("gemma2", {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}),
    "a Gemma of two opinions": ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
    "Command-R": ("command-r", {"model_max_length": 131072, "pretraining_tp": 1, "max_position_embeddings": 8192}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_published_configurations_say_is_no_noise(name: str) -> None:
    like, more = PUBLISHED[name]
    config, known = stated(like)
    assert unread({**config, **more}) & (known | set(more)) == set()


NOMIC = {
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "causal": False,
    "dense_seq_output": True,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": 2,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 30528,
    "resid_pdrop": 0.0,
}
RWKV7 = {
    "architectures": ["RWKV7ForCausalLM"],
    "a_low_rank_dim": 64,
    "attn": None,
    "attn_mode": "chunk",
    "decay_low_rank_dim": 64,
    "fuse_cross_entropy": True,
    "fuse_norm": True,
    "gate_low_rank_dim": 128,
    "head_dim": 64,
    "hidden_act": "sqrelu",
    "hidden_ratio": 4.0,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "max_position_embeddings": 2048,
    "model_type": "rwkv7",
    "norm_bias": True,
    "norm_eps": 1e-5,
    "norm_first": True,
    "num_heads": 12,
    "num_hidden_layers": 12,
    "tie_word_embeddings": False,
    "use_l2warp": False,
    "v_low_rank_dim": 32,
    "value_dim": [768] * 12,
    "vocab_size": 65536,
}


@pytest.mark.parametrize("config", [NOMIC, RWKV7], ids=["NomicBert", "RWKV-7"])
def test_configurations_of_code_outside_transformers_are_all_used(config: dict[str, Any]) -> None:
    assert unread(config) == set()


OTHERS_FIRST = {
    "head_dim",
    "max_position_embeddings",
    "n_positions",
    "num_attention_heads",
    "num_nextn_predict_layers",
    "rope_theta",
}
"""Keys that a table calls harmless beside the place it asks first, or reads with `--mtp` alone."""


def test_harmless_keys_have_a_reason_and_are_not_read_anyway() -> None:
    for spec in architectures().values():
        for dialect in spec.dialects:
            places = {place for param in spec.hparams for place in param.fields.get(dialect.source, "").split("|")}
            for entry in (*dialect.ignored_keys, *GENERAL):
                assert entry.keys.split() and entry.reason
            alone = [entry for entry in dialect.ignored_keys if not (entry.values or entry.follows)]
            both = {key for entry in alone for key in entry.keys.split()} & places
            assert both <= OTHERS_FIRST, (spec.name, both)


# --- what changes the model is told, or refused --------------------------------------------------------------


def test_a_key_that_nobody_reads_is_told() -> None:
    config, _ = stated("llama")
    told = unread({**config, "attention_gain": 2, "residual_plan": {"alpha": 0.5}, "nothing": None})
    assert told == {"attention_gain", "residual_plan"}


def test_a_key_inside_an_object_is_told_by_its_path() -> None:
    config, _ = stated("llama yarn")
    config["rope_parameters"]["gain"] = 2.0
    assert unread(config) == {"rope_parameters.gain"}


def test_a_key_of_the_text_half_is_told() -> None:
    config, _ = stated("gemma3")
    text = {**config, "attention_gain": 2}
    both = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "vision_config": {"depth": 3}}
    assert unread({**both, "projector_gain": 3}) == {"text_config.attention_gain", "projector_gain"}


def test_a_value_may_decide_what_is_harmless() -> None:
    config, _ = stated("qwen2")
    assert unread({**config, "use_mrope": False}) == set()
    assert unread({**config, "use_mrope": True}) == {"use_mrope"}
    assert unread({**config, "is_decoder": 0}) == {"is_decoder"}, "0 is not false"


def test_what_repeats_another_key_must_repeat_it() -> None:
    config, _ = stated("deepseek v3")
    assert unread({**config, "qk_head_dim": 20}) == set()
    assert unread({**config, "qk_head_dim": 24}) == {"qk_head_dim"}


def test_two_names_of_one_size_that_contradict_are_told() -> None:
    config, _ = stated("gpt2")
    assert unread({**config, "n_ctx": 64}) == set()
    assert unread({**config, "n_ctx": 128}) == {"n_ctx"}


def test_a_thousand_unread_keys_are_a_short_note() -> None:
    config, _ = stated("llama")
    (note,) = bound({**config, **{f"{'k' * 200}{n}": n for n in range(1000)}}).notes
    assert note.startswith(NOTE) and note.endswith("and 936 more") and len(note) < 8000


def test_an_override_stands_whatever_the_configuration_says() -> None:
    config, _ = stated("llama")
    graph = bound({**config, "rms_norm_eps": "small"}, **{"attention.layer_norm_rms_epsilon": "1e-5"})
    assert graph.sizes["eps"] == 1e-5 and not graph.notes


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaMA with a key that nobody knows."""
    folder = tmp_path_factory.mktemp("models") / "strange-llama"
    shutil.copytree(FIXTURES / "hf" / "ckpt" / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_gain": 2}))
    return folder


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "ggferry", *arguments], capture_output=True, text=True, check=True)


def test_the_screen_and_the_receipt_tell_it(strange: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    done = run("convert", strange, "-o", out, "--verify", "none")
    assert f"{NOTE}attention_gain" in done.stderr
    assert f"{NOTE}attention_gain" in json.loads((tmp_path / "x.gguf.receipt.json").read_text())["notes"]


def test_a_dry_run_tells_it(strange: Path) -> None:
    assert f"{NOTE}attention_gain" in run("convert", strange, "--dry-run").stderr
    plan = json.loads(run("convert", strange, "--dry-run", "--json").stdout)
    assert f"{NOTE}attention_gain" in plan["notes"]


def test_a_line_of_an_archives_plan_tells_it(strange: Path, tmp_path: Path) -> None:
    run("plan", strange.parent, "-o", tmp_path / "plan.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "plan.jsonl").read_text().splitlines()]
    assert any(f"{NOTE}attention_gain" in line.get("notes", ()) for line in lines)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a Gemma 3 that sees what comes later": ("gemma3", {"use_bidirectional_attention": True}),
    "a Gemma 2 that sees what comes later": ("gemma2", {"use_bidirectional_attention": True}),
    "windows that are stretched": (
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 9000.0},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0},
            }
        },
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_gguf_cannot_say_is_refused_by_name(what: str) -> None:
    name, change = REFUSED[what]
    config, _ = stated(name)
    with pytest.raises(UnsupportedError, match=next(iter(change)).removesuffix("_parameters")):
        bound({**config, **change})


def test_whispers_scale_of_embeddings_is_no_scale() -> None:
    """transformers keeps the number and multiplies nothing by it: the states are the same."""
    small = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "vocab_size": 40,
        "decoder_attention_heads": 2,
        "max_source_positions": 8,
        "num_mel_bins": 4,
        "pad_token_id": 0,
    }
    found = []
    for scaled in (False, True):
        torch.manual_seed(3)
        config = transformers.WhisperConfig(**small, scale_embedding=scaled)
        model = transformers.WhisperModel(config).eval()
        with torch.no_grad():
            sound, ids = torch.ones(1, 4, 16), torch.tensor([[3, 1, 2]])
            found.append(model(input_features=sound, decoder_input_ids=ids).last_hidden_state)
        stated = {**config.to_dict(), "architectures": ["WhisperForConditionalGeneration"]}
        assert "scale_embedding" not in " ".join(bound(stated).notes)
    assert torch.equal(*found)


# --- a stated 0 is a stated 0 ---------------------------------------------------------------------------------

ZEROS = {
    "granite": ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"),
    "deepseek v2": ("routed_scaling_factor",),
    "deepseek v3": ("routed_scaling_factor",),
    "command-r": ("logit_scale",),
    "olmo": ("clip_qkv",),
    "mistral window": ("sliding_window",),
    "phi3": ("sliding_window",),
    "starcoder2": ("sliding_window",),
    "gptneo": ("window_size",),
    "minicpm3": ("scale_emb", "scale_depth"),
    "gemma2": ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window"),
    "gemma3": ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window"),
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in ZEROS.items() for key in keys])
def test_a_multiplier_of_zero_is_refused_by_name(name: str, key: str) -> None:
    config, _ = stated(name)
    for zero in (0, 0.0):
        assert key in config
        with pytest.raises(UnsupportedError, match=f"{key}.*: GGUF readers take this value as absent: found 0"):
            bound({**config, key: zero})


COMPUTED = (("granite", "residual_multiplier"), ("deepseek v2", "routed_scaling_factor"), ("olmo", "clip_qkv"))


@pytest.mark.parametrize(("name", "key"), COMPUTED)
def test_transformers_computes_with_the_zero(name: str, key: str, tmp_path: Path) -> None:
    """Which is why it must not pass for 'not stated'."""
    usual, zero = make(name, tmp_path / "a", **{key: 1.0}), make(name, tmp_path / "b", **{key: 0.0})
    assert relative(usual, zero) > 0.1
    with pytest.raises(UnsupportedError, match=key):
        understand(open_checkpoint(str(tmp_path / "b")))


def test_a_clip_of_zero_is_none_to_mpt(tmp_path: Path) -> None:
    expected = make("mpt", tmp_path, attn_config={"clip_qkv": 0.0})
    assert relative(expected, forward(understand(open_checkpoint(str(tmp_path))), TOKENS)) <= LIMIT


@pytest.mark.parametrize("name", ["llama yarn", "llama longrope"])
@pytest.mark.parametrize("key", ["factor", "original_max_position_embeddings"])
def test_a_stretch_by_zero_is_refused(name: str, key: str) -> None:
    config, _ = stated(name)
    config["rope_parameters"][key] = 0
    if (name, key) == ("llama longrope", "factor"):  # transformers: no more than 1 stretches nothing
        assert bound(config).sizes["rope_attn_factor"] == 1.0
    else:
        with pytest.raises(InconsistentError, match="rope"):
            bound(config)


@pytest.mark.parametrize("key", ["kv_lora_rank", "intermediate_size", "v_head_dim", "qk_nope_head_dim"])
def test_a_size_of_zero_is_refused_by_name(key: str, tmp_path: Path) -> None:
    """transformers builds such a model; its tensors have no elements. It was a division by zero."""
    make("deepseek v2", tmp_path, **{key: 0})
    with pytest.raises(GgferryError, match=r"of 0|\.\.0|\.\.12|config\.json: " + key):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.parametrize("change", [{"topk_group": 1}, {"n_group": 8}, {"num_experts_per_tok": 6}, {"topk_group": 0}])
def test_groups_too_few_for_the_experts_chosen_are_refused(change: dict[str, Any]) -> None:
    """Then experts of other groups are chosen, by chance of the sort."""
    config, _ = stated("deepseek v2 groups")
    assert bound(config).sizes["expert_groups_used"] == 2
    with pytest.raises(InconsistentError, match="expert_group"):
        bound({**config, **change})


@pytest.mark.parametrize("name", ["mixtral", "qwen2moe", "qwen3moe", "deepseek v2"])
@pytest.mark.parametrize("used", [0, None])
def test_experts_of_which_none_is_used_are_refused(name: str, used: int | None) -> None:
    config, _ = stated(name)
    with pytest.raises(InconsistentError, match="expert_used_count"):
        bound({**config, "num_experts_per_tok": used})


@pytest.mark.parametrize("value", [10**400, 1e39, -1e39], ids=str)
def test_a_number_beyond_a_float32_is_refused_by_name(value: float) -> None:
    config, _ = stated("llama longrope")
    with pytest.raises(OutOfRangeError, match="rms_norm_eps"):
        bound({**config, "rms_norm_eps": value})
    config["rope_parameters"]["long_factor"] = [value] * 4
    with pytest.raises(OutOfRangeError, match="long_factor"):
        bound(config)


# --- an output's own bias --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["phi2", "gptj"])
def test_a_tied_output_keeps_its_bias(name: str, tmp_path: Path) -> None:
    """Both passes left the bias out, so that any would have been proved."""
    expected = make(name, tmp_path / "hf", tie_word_embeddings=True)
    source = understand(open_checkpoint(str(tmp_path / "hf")))
    assert source.by_name["output.bias"] and "output.weight" not in source.by_name
    assert relative(expected, forward(source, TOKENS)) <= LIMIT
    path = write(source, tmp_path / "x.gguf")
    assert relative(expected, forward(understand(open_checkpoint(str(path))), TOKENS)) <= LIMIT

    def lose(tensors: dict[str, np.ndarray]) -> None:
        tensors["output.bias"][:] = 0

    without = understand(open_checkpoint(str(write(source, tmp_path / "y.gguf", lose))))
    assert relative(expected, forward(without, TOKENS)) > 100 * LIMIT


def test_no_runtime_is_named_for_a_tied_phi2(tmp_path: Path) -> None:
    """llama.cpp's phi2 asks for output.weight."""
    make("phi2", tmp_path / "tied", tie_word_embeddings=True)
    make("phi2", tmp_path / "own")
    tied, own = (understand(open_checkpoint(str(tmp_path / name))) for name in ("tied", "own"))
    assert tied.runtimes == () and own.runtimes == ("llama.cpp",)
    assert any("a bias of its own" in note for note in tied.notes)
