"""Adapters: every pair changes its weight as PEFT did, whatever GGUF calls the weight and orders its rows."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file

from ggferry.converters.adapters.bind import Times
from ggferry.converters.adapters.plan import understand_adapter
from ggferry.converters.adapters.prove import check_deltas, prove_adapter
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import Result, convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.grades import is_power_of_two
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import (
    AmbiguousError,
    GgferryError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    UnexpectedTensorError,
    UnsupportedError,
    UsageError,
    VerificationError,
)
from ggferry.support.progress import silent

RNG = np.random.default_rng(5)
PREFIX = "base_model.model."
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
ROWS = {
    "self_attn.q_proj": (96, 96),
    "self_attn.k_proj": (48, 96),
    "self_attn.v_proj": (48, 96),
    "mlp.down_proj": (96, 160),
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "mlp.down_proj": "ffn_down",
}
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "bias": "none",
    "base_model_name_or_path": "me/b",
}


def low_rank(rows: int, columns: int, r: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(0, 0.1, (r, columns)).astype(dtype), RNG.normal(0, 0.1, (rows, r)).astype(dtype)


def adapter_tensors(ranks: dict[str, int] | None = None, r: int = 4, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    tensors = {}
    for n in range(3):
        for module, (rows, columns) in ROWS.items():
            a, b = low_rank(rows, columns, (ranks or {}).get(module, r), dtype)
            tensors[f"{PREFIX}model.layers.{n}.{module}.lora_A.weight"] = a
            tensors[f"{PREFIX}model.layers.{n}.{module}.lora_B.weight"] = b
    return tensors


def peft(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BASE))
    return folder


def carried(source: Path, out: Path, base: Path | None = None, **more: Any) -> Result:
    options = Options(**more.pop("options", {}))
    return convert(Request(str(source), str(out), options, base=None if base is None else str(base), **more))[0]


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keys and float32 tensors (outermost first), by the gguf package."""
    reader = gguf.GGUFReader(path)
    keys = {field.name: field.contents() for field in reader.fields.values()}
    return keys, {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}


def runtime_deltas(path: Path) -> dict[str, np.ndarray]:
    """What llama.cpp adds to each weight: alpha / rank · B·A, in float64, with rank = B's columns."""
    keys, tensors = read(path)
    deltas = {}
    for name, b in tensors.items():
        if name.endswith(".lora_b"):
            a = tensors[name.removesuffix("b") + "a"]
            deltas[name.removesuffix(".lora_b")] = (
                keys["adapter.lora.alpha"] / b.shape[-1] * (b.astype(np.float64) @ a.astype(np.float64))
            )
    return deltas


def pairs_of(found: np.ndarray, heads: int) -> np.ndarray:
    """Rows of rotary halves to pairs, as Hugging Face's own LLaMA conversion writes it."""
    return found.reshape(heads, 2, found.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(found.shape)


def peft_deltas(tensors: dict[str, np.ndarray], scale: Any) -> dict[str, np.ndarray]:
    """PEFT's own delta of every module, rows in Hugging Face's order, by GGUF name."""
    deltas = {}
    for name, b in tensors.items():
        if ".lora_B." in name:
            a = tensors[name.replace("lora_B", "lora_A")]
            _, _, n, *module = name.split(".lora_B.")[0].removeprefix(PREFIX).split(".")
            key = ".".join(module)
            delta = scale(key, b.shape[1]) * (b.astype(np.float64) @ a.astype(np.float64))
            heads = {"self_attn.q_proj": 6, "self_attn.k_proj": 3}.get(key)
            deltas[f"blk.{n}.{NAMES[key]}.weight"] = pairs_of(delta, heads) if heads else delta
    return deltas


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys() and expected
    for name, delta in expected.items():
        error = np.sqrt(np.square(found[name] - delta).mean() / np.square(delta).mean())
        assert error <= tolerance, (name, error)


# --- scales --------------------------------------------------------------------------------------------------------


SCALES: dict[str, tuple[dict[str, int], dict[str, Any], Any]] = {
    "plain": ({}, {}, lambda module, r: 8 / r),
    "no r": ({}, {"r": None}, lambda module, r: 8 / r),
    "rsLoRA, a square": ({}, {"use_rslora": True}, lambda module, r: 8 / math.sqrt(r)),
    "rsLoRA, no square": (dict.fromkeys(ROWS, 6), {"use_rslora": True, "r": 6}, lambda module, r: 8 / math.sqrt(r)),
    "rsLoRA and ranks": (
        {"self_attn.q_proj": 6},
        {"use_rslora": True, "rank_pattern": {"q_proj": 6}},
        lambda module, r: 8 / math.sqrt(r),
    ),
    "ranks": ({"mlp.down_proj": 7}, {"rank_pattern": {"down_proj": 7}}, lambda module, r: 8 / r),
    "alphas, powers of two": (
        {},
        {"alpha_pattern": {"q_proj": 32, "k_proj": 2}},
        lambda module, r: {"self_attn.q_proj": 32, "self_attn.k_proj": 2}.get(module, 8) / r,
    ),
    "alphas, others": (
        {},
        {"alpha_pattern": {"self_attn.v_proj": 24}},
        lambda module, r: (24 if "v_proj" in module else 8) / r,
    ),
    "the first pattern counts": (
        {},
        {"alpha_pattern": {r".*\.q_proj": 16, "q_proj": 64}},
        lambda module, r: (16 if "q_proj" in module else 8) / r,
    ),
    "both": (
        {"self_attn.q_proj": 2},
        {"rank_pattern": {"self_attn.q_proj": 2}, "alpha_pattern": {"self_attn.q_proj": 3.5}},
        lambda module, r: (3.5 if "q_proj" in module else 8) / r,
    ),
}


@pytest.mark.parametrize("case", SCALES)
def test_every_pair_is_applied_at_its_own_scale(case: str, tmp_path: Path, base: Path) -> None:
    ranks, config, scale = SCALES[case]
    tensors = adapter_tensors(ranks)
    result = carried(peft(tmp_path / "a", tensors, **config), tmp_path / "x.gguf", base)
    assert_same(runtime_deltas(tmp_path / "x.gguf"), peft_deltas(tensors, scale))
    assert result.receipt["deltas"]["relative_rms"] <= 1e-6 and result.receipt["deltas"]["pairs"] == 12


def test_a_layer_may_have_its_own_alpha(tmp_path: Path, base: Path) -> None:
    tensors = adapter_tensors()
    patterns = {r"^model\.layers\.\d+\.mlp\.down_proj": 16, "model.layers.1.self_attn.v_proj": 2}
    result = carried(peft(tmp_path / "a", tensors, alpha_pattern=patterns), tmp_path / "x.gguf", base)
    found, plain = runtime_deltas(tmp_path / "x.gguf"), peft_deltas(tensors, lambda module, r: 8 / r)
    factors = {name: 2 if "ffn_down" in name else 0.25 if name == "blk.1.attn_v.weight" else 1 for name in plain}
    assert_same(found, {name: factors[name] * delta for name, delta in plain.items()})
    assert result.receipt["hparams"]["adapter.lora.alpha"]["value"] == 8


def test_what_was_multiplied_is_in_the_receipt(tmp_path: Path, base: Path) -> None:
    patterns = {"q_proj": 32, "v_proj": 24}
    source = peft(tmp_path / "a", adapter_tensors(), alpha_pattern=patterns)
    receipt = carried(source, tmp_path / "x.gguf", base).receipt
    grades = {t["name"].removeprefix("blk.0."): (t["grade"], t.get("why", "")) for t in receipt["tensors"][:8]}
    assert grades["attn_q.weight.lora_b"][0] == "computed" and "times 4.0" in grades["attn_q.weight.lora_b"][1]
    assert grades["attn_v.weight.lora_b"][0] == "rounded" and "times 3.0" in grades["attn_v.weight.lora_b"][1]
    assert grades["attn_k.weight.lora_b"] == ("permuted", "") and grades["attn_q.weight.lora_a"] == ("identical", "")
    assert any("multiplied by the quotient" in note for note in receipt["notes"])


def test_powers_of_two_and_the_way_back() -> None:
    assert all(map(is_power_of_two, (4.0, 0.125, 1.0, -2.0))) and not any(map(is_power_of_two, (3.0, 0.1, 0.0)))
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    assert np.array_equal(Times(factor=8).inverse().apply(Times(factor=8).apply(x)), x)
    assert not Times(factor=8).block_safe


# --- against other programs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lora_plain", "lora_rslora", "lora_alphapattern"])
def test_oracle(name: str, fixtures: Path, tmp_path: Path) -> None:
    """Tensor for tensor what convert_lora_to_gguf wrote, but for the scale that it forgets."""
    carried(fixtures / "lora" / name, tmp_path / "x.gguf", fixtures / "hf" / "ckpt" / "llama")
    theirs, ours = read(fixtures / "lora" / name / f"{name}.f32.gguf"), read(tmp_path / "x.gguf")
    assert ours[1].keys() == theirs[1].keys() and len(ours[1]) == 16
    for tensor, expected in theirs[1].items():
        factor = 4 if name == "lora_alphapattern" and tensor.endswith("attn_q.weight.lora_b") else 1
        assert np.array_equal(ours[1][tensor], factor * expected), tensor
    wanted = {"lora_rslora": 16.0}.get(name, 8.0)
    assert theirs[0]["adapter.lora.alpha"] == 8.0 and ours[0]["adapter.lora.alpha"] == wanted
    for key in ("general.architecture", "general.type", "adapter.type"):
        assert ours[0][key] == theirs[0][key]
    assert ours[0]["general.file_type"] == 0 and ours[0]["general.base_model.0.name"] == "Y"


def test_the_oracles_dora_is_refused_by_name(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="DoRA"):
        carried(fixtures / "lora" / "lora_dora", tmp_path / "x.gguf", fixtures / "hf" / "ckpt" / "llama")
    assert os.listdir(tmp_path) == []


MODELS = [
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma2",
    "phi2",
    "phi3",
    "stablelm",
    "olmo",
    "granite",
    "starcoder2",
    "deepseek2",
]
# What cannot be said as pairs of GGUF's weights, and why.
NOT_PAIRS = {"deepseek2": "kv_b_proj"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_base_and_adapter_are_the_merged_model(name: str, fixtures: Path, tmp_path: Path) -> None:
    """The model converted with its adapter merged = the model converted, plus what the runtime adds from ours."""
    checkpoint = fixtures / "hf" / "ckpt" / name
    weights = {k: v.float().numpy() for k, v in load_file(checkpoint / "model.safetensors").items()}  # some are BF16
    tensors, merged = {}, dict(weights)
    for module, weight in weights.items():
        skipped = any(part in module for part in ("embed", "lm_head", "norm", NOT_PAIRS.get(name, "\0")))
        if weight.ndim == 2 and not skipped and module.endswith(".weight"):
            stem = module.removesuffix(".weight")
            a, b = low_rank(*weight.shape, 3)
            tensors |= {f"{PREFIX}{stem}.lora_A.weight": a, f"{PREFIX}{stem}.lora_B.weight": b}
            merged[module] = (weight.astype(np.float64) + 5 / 3 * (b.astype(np.float64) @ a)).astype(np.float32)
    for kind, held in (("base", weights), ("merged", merged)):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text((checkpoint / "config.json").read_text())
        save_file(held, folder / "model.safetensors")
        carried(folder, tmp_path / f"{kind}.gguf", level="none", vocab=VocabOptions(none=True))
    carried(peft(tmp_path / "a", tensors, r=3, lora_alpha=5), tmp_path / "x.gguf", checkpoint)
    (_, before), (_, after) = read(tmp_path / "base.gguf"), read(tmp_path / "merged.gguf")
    keys, halves = read(tmp_path / "x.gguf")
    changed = {weight for weight in after if not np.array_equal(before[weight], after[weight])}
    assert changed == {half.rpartition(".lora_")[0] for half in halves} and changed
    for weight in changed:
        a, b = (halves[f"{weight}.lora_{side}"].astype(np.float64) for side in "ab")
        sum_ = before[weight] + keys["adapter.lora.alpha"] / b.shape[-1] * (b @ a)
        assert np.abs(sum_ - after[weight]).max() <= 2e-6, weight


# --- types, names, metadata -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outtype", "code", "tolerance"), [("f16", 1, 2e-3), ("bf16", 32, 2e-2), ("q8_0", 7, 2e-2)])
def test_outtypes(outtype: str, code: int, tolerance: float, tmp_path: Path, base: Path) -> None:
    tensors = adapter_tensors()
    carried(peft(tmp_path / "a", tensors), tmp_path / "x.gguf", base, options={"outtype": outtype})
    assert_same(runtime_deltas(tmp_path / "x.gguf"), peft_deltas(tensors, lambda module, r: 8 / r), tolerance)
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    assert reader.get_field("general.file_type").contents() == code
    kinds = {t.name[-1]: t.tensor_type.name.lower() for t in reader.tensors}
    assert kinds == {"a": outtype, "b": "f16" if outtype == "q8_0" else outtype}, "rank 4 is no block of 32"


def test_f16_stays_f16_and_f64_becomes_f32(tmp_path: Path, base: Path) -> None:
    for dtype, expected in ((np.float16, "F16"), (np.float64, "F32")):
        tensors = adapter_tensors(dtype=dtype)
        carried(peft(tmp_path / "a", tensors), tmp_path / "x.gguf", base, force=True)
        assert {t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors} == {expected}
        assert_same(runtime_deltas(tmp_path / "x.gguf"), peft_deltas(tensors, lambda module, r: 8 / r))


def test_the_file_is_named_as_an_adapter(tmp_path: Path, base: Path) -> None:
    source = peft(tmp_path / "Tiny-Poet-lora", adapter_tensors(), base_model_name_or_path="acme/Tiny-7B")
    (tmp_path / "out").mkdir()
    result = carried(source, tmp_path / "out", base)
    assert os.path.basename(result.path).endswith("-F32-LoRA.gguf") and "Tiny-Poet" in result.path
    keys, _ = read(Path(result.path))
    assert keys["general.base_model.0.repo_url"] == "https://huggingface.co/acme/Tiny-7B"
    assert keys["general.type"] == "adapter" and keys["adapter.type"] == "lora"


def test_activated_lora_keeps_its_tokens(tmp_path: Path, base: Path) -> None:
    carried(peft(tmp_path / "a", adapter_tensors(), alora_invocation_tokens=[5, 7, 9]), tmp_path / "x.gguf", base)
    field = gguf.GGUFReader(tmp_path / "x.gguf").get_field("adapter.alora.invocation_tokens")
    assert field.contents() == [5, 7, 9]
    assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32]


def test_pickles_and_raw_state_dicts_give_the_same_bytes(tmp_path: Path, base: Path) -> None:
    import torch

    tensors = adapter_tensors()
    carried(peft(tmp_path / "a", tensors), tmp_path / "x.gguf", base, model_name="m")
    named = {name.replace(".weight", ".default.weight").removeprefix(PREFIX): x for name, x in tensors.items()}
    carried(peft(tmp_path / "b", named), tmp_path / "y.gguf", base, model_name="m")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "adapter_config.json").write_text(json.dumps(CONFIG))
    torch.save({name: torch.from_numpy(x) for name, x in tensors.items()}, tmp_path / "c" / "adapter_model.bin")
    carried(tmp_path / "c", tmp_path / "z.gguf", base, model_name="m")
    first = (tmp_path / "x.gguf").read_bytes()
    assert first == (tmp_path / "y.gguf").read_bytes() == (tmp_path / "z.gguf").read_bytes()


def test_a_gguf_adapter_is_carried_on(tmp_path: Path, base: Path) -> None:
    tensors = adapter_tensors()
    carried(peft(tmp_path / "a", tensors, alpha_pattern={"q_proj": 32}), tmp_path / "x.gguf", base)
    carried(tmp_path / "x.gguf", tmp_path / "y.gguf", options={"big_endian": True})
    carried(tmp_path / "y.gguf", tmp_path / "z.gguf")
    again, first = read(tmp_path / "z.gguf"), read(tmp_path / "x.gguf")
    assert again[0].keys() == first[0].keys() and again[0]["adapter.lora.alpha"] == 8.0
    assert all(np.array_equal(again[1][name], x) for name, x in first[1].items())


# --- the base -------------------------------------------------------------------------------------------------------


def test_without_the_base_the_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"--base DIR") as caught:
        carried(peft(tmp_path / "a", adapter_tensors()), tmp_path / "x.gguf")
    assert "me/b" in str(caught.value)


def test_the_base_is_found_where_the_adapter_says(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = peft(tmp_path / "a", adapter_tensors(), base_model_name_or_path=str(base))
    carried(source, tmp_path / "x.gguf", model_name="m")
    carried(source, tmp_path / "y.gguf", base / "config.json", model_name="m")
    assert (tmp_path / "x.gguf").read_bytes() == (tmp_path / "y.gguf").read_bytes()


def test_a_stated_class_is_enough_where_no_row_moves(tmp_path: Path) -> None:
    mapping = {"auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers"}}
    whole = adapter_tensors()
    down = {name: x for name, x in whole.items() if "down_proj" in name or "v_proj" in name}
    carried(peft(tmp_path / "a", down, **mapping), tmp_path / "x.gguf")
    assert_same(runtime_deltas(tmp_path / "x.gguf"), peft_deltas(down, lambda module, r: 8 / r))
    with pytest.raises(MissingError, match=r"n_head.*--base DIR"):
        carried(peft(tmp_path / "b", whole, **mapping), tmp_path / "y.gguf")


def test_another_base_is_refused(tmp_path: Path, base: Path) -> None:
    (base / "config.json").write_text(json.dumps(BASE | {"intermediate_size": 176}))
    with pytest.raises(ShapeError, match=r"does not fit the base.*n_ff=176"):
        carried(peft(tmp_path / "a", adapter_tensors()), tmp_path / "x.gguf", base)
    (base / "config.json").write_text(json.dumps(BASE | {"num_key_value_heads": 6}))
    with pytest.raises(ShapeError, match="does not fit"):
        carried(peft(tmp_path / "a", adapter_tensors()), tmp_path / "x.gguf", base)


def test_an_output_the_base_does_not_have(tmp_path: Path, base: Path) -> None:
    (base / "config.json").write_text(json.dumps(BASE | {"tie_word_embeddings": True}))
    a, b = low_rank(300, 96, 4)
    head = {f"{PREFIX}lm_head.lora_A.weight": a, f"{PREFIX}lm_head.lora_B.weight": b}
    with pytest.raises(UnexpectedTensorError, match="lm_head"):
        carried(peft(tmp_path / "a", head), tmp_path / "x.gguf", base)
    (base / "config.json").write_text(json.dumps(BASE))
    carried(peft(tmp_path / "a", head), tmp_path / "x.gguf", base)
    assert runtime_deltas(tmp_path / "x.gguf").keys() == {"output.weight"}


# --- refusals -------------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], type[GgferryError], str]] = {
    "dora": ({"use_dora": True}, UnsupportedError, "DoRA"),
    "another method": ({"peft_type": "LOHA"}, UnsupportedError, "LOHA"),
    "bias": ({"bias": "lora_only"}, UnsupportedError, "bias"),
    "lora_bias": ({"lora_bias": True}, UnsupportedError, "lora_bias"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, UnsupportedError, "modules_to_save"),
    "layer_replication": ({"layer_replication": [[0, 2], [1, 3]]}, UnsupportedError, "layer_replication"),
    "parameters": ({"target_parameters": ["experts.gate_up_proj"]}, UnsupportedError, "target_parameters"),
    "token rows": ({"trainable_token_indices": [1, 2]}, UnsupportedError, "trainable_token_indices"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, UnsupportedError, "changed the base"),
    "a later invention": ({"use_qalora": True}, UnsupportedError, "use_qalora"),
    "alpha 0": ({"lora_alpha": 0}, OutOfRangeError, "scale of 1"),
    "alpha inf": ({"lora_alpha": 1e300}, OutOfRangeError, "alpha"),
    "alpha huge": ({"lora_alpha": 10**400}, InconsistentError, "lora_alpha"),
    "alpha text": ({"lora_alpha": "8"}, InconsistentError, "a number"),
    "rslora text": ({"use_rslora": "yes"}, InconsistentError, "use_rslora"),
    "another rank": ({"r": 8}, InconsistentError, "rank of"),
    "another rank pattern": ({"rank_pattern": {"q_proj": 3}}, InconsistentError, "rank of"),
    "an evil pattern": ({"alpha_pattern": {r"(\w+\.?)+x": 4}}, UnsupportedError, "does not evaluate"),
    "a slow pattern": ({"alpha_pattern": {r"\d+\d+\d+x": 4}}, UnsupportedError, "does not evaluate"),
    "pattern list": ({"alpha_pattern": [1]}, InconsistentError, "an object"),
    "tokens": ({"alora_invocation_tokens": ["a"]}, InconsistentError, "token ids"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_are_refused_by_name(case: str, tmp_path: Path, base: Path) -> None:
    config, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        carried(peft(tmp_path / "a", adapter_tensors(), **config), tmp_path / "x.gguf", base)
    assert sorted(os.listdir(tmp_path)) == ["a", "base"]


F = np.float32
Q = f"{PREFIX}model.layers.0.self_attn.q_proj"
TENSORS: dict[str, tuple[dict[str, np.ndarray], type[GgferryError], str]] = {
    "whole": ({f"{PREFIX}lm_head.weight": np.zeros((300, 96), F)}, UnsupportedError, "modules_to_save.*lm_head"),
    "magnitudes": ({f"{Q}.lora_magnitude_vector": np.zeros(96, F)}, UnsupportedError, "DoRA"),
    "embedding": (
        {f"{PREFIX}model.embed_tokens.lora_embedding_A": np.zeros((4, 300), F)},
        UnsupportedError,
        "embedding",
    ),
    "bias of B": ({f"{Q}.lora_B.bias": np.zeros(96, F)}, UnsupportedError, "biases"),
    "half": ({f"{PREFIX}model.layers.0.mlp.up_proj.lora_A.weight": np.zeros((4, 96), F)}, MissingError, "lora_B"),
    "two adapters": ({f"{Q}.lora_A.other.weight": np.zeros((4, 96), F)}, AmbiguousError, "other"),
    "no such layer": (
        {
            f"{PREFIX}model.layers.0.self_attn.w_proj.lora_{s}.weight": np.zeros(shape, F)
            for s, shape in (("A", (4, 96)), ("B", (96, 4)))
        },
        UnexpectedTensorError,
        "w_proj",
    ),
    "on an embedding": (
        {
            f"{PREFIX}model.embed_tokens.lora_{s}.weight": np.zeros(shape, F)
            for s, shape in (("A", (4, 96)), ("B", (300, 4)))
        },
        UnsupportedError,
        "embedding",
    ),
    "a norm": ({f"{PREFIX}model.norm.weight": np.zeros(96, F)}, UnsupportedError, "modules_to_save"),
    "ranks": ({f"{Q}.lora_B.weight": np.zeros((96, 3), F)}, ShapeError, "do not multiply|rank"),
    "a vector": ({f"{Q}.lora_B.weight": np.zeros(96, F)}, GgferryError, "q_proj"),
    "no rank": (
        {f"{Q}.lora_A.weight": np.zeros((0, 96), F), f"{Q}.lora_B.weight": np.zeros((96, 0), F)},
        GgferryError,
        "q_proj",
    ),
    "integers": ({f"{Q}.lora_A.weight": np.zeros((4, 96), np.int8)}, UnsupportedError, "I8"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_refused_by_name(case: str, tmp_path: Path, base: Path) -> None:
    more, error, words = TENSORS[case]
    with pytest.raises(error, match=words):
        carried(peft(tmp_path / "a", adapter_tensors() | more, r=None), tmp_path / "x.gguf", base)


def test_weights_without_a_configuration(tmp_path: Path, base: Path) -> None:
    source = peft(tmp_path / "a", adapter_tensors())
    (source / "adapter_config.json").unlink()
    with pytest.raises(MissingError, match="adapter_config"):
        carried(source, tmp_path / "x.gguf", base)


def test_options_an_adapter_does_not_have(tmp_path: Path, base: Path) -> None:
    source = peft(tmp_path / "a", adapter_tensors())
    for options in ({"outtype": "q4_k_m"}, {"vocab_only": True}, {"split_max_tensors": 2}):
        with pytest.raises(UsageError):
            carried(source, tmp_path / "x.gguf", base, options=options)
    with pytest.raises(UsageError, match="ggla"):
        carried(source, tmp_path / "x.gguf", base, ggla_permute=True)


def test_a_product_that_overflows_is_not_written(tmp_path: Path, base: Path) -> None:
    tensors = adapter_tensors(dtype=np.float16)
    tensors[f"{Q}.lora_B.weight"][0, 0] = 40000
    with pytest.raises(GgferryError):
        carried(peft(tmp_path / "a", tensors, alpha_pattern={"q_proj": 32}), tmp_path / "x.gguf", base)
    assert sorted(os.listdir(tmp_path)) == ["a", "base"]


# --- the proof can fail ---------------------------------------------------------------------------------------------


def test_mutations_are_caught(tmp_path: Path, base: Path) -> None:
    source = peft(tmp_path / "a", adapter_tensors())
    carried(source, tmp_path / "x.gguf", base)
    data = (tmp_path / "x.gguf").read_bytes()
    at = data.index(b"adapter.lora.alpha") + len("adapter.lora.alpha") + 4
    assert struct.unpack_from("<f", data, at) == (8.0,)
    wrong_alpha = data[:at] + struct.pack("<f", 16.0) + data[at + 4 :]
    last = data[:-64] + bytes(4) + data[-60:]
    checkpoint = open_checkpoint(str(source))
    adapter = understand_adapter(checkpoint, str(base))
    for number, broken in enumerate((wrong_alpha, last)):
        path = tmp_path / f"broken{number}.gguf"
        path.write_bytes(broken)
        with pytest.raises(VerificationError):
            prove_adapter(adapter, open_checkpoint(str(path)), level="fast")
    # The deltas alone see the alpha, and rows in another order.
    with pytest.raises(VerificationError, match="is not the adapter"):
        check_deltas(adapter, understand_adapter(open_checkpoint(str(tmp_path / "broken0.gguf"))))
    other = base.parent / "other.json"
    other.write_text(json.dumps(BASE | {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}))
    (base / "config.json").write_text(json.dumps(BASE | {"num_attention_heads": 12, "num_key_value_heads": 6}))
    rotated = understand_adapter(checkpoint, str(base))
    with pytest.raises(VerificationError, match="attn_"):
        check_deltas(rotated, understand_adapter(open_checkpoint(str(tmp_path / "x.gguf"))))


def test_a_weight_that_gguf_takes_apart_is_refused_by_name(fixtures: Path, tmp_path: Path) -> None:
    a, b = low_rank(4 * (16 + 16), 32, 4)
    stem = f"{PREFIX}model.layers.0.self_attn.kv_b_proj"
    source = peft(tmp_path / "a", {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b})
    with pytest.raises(UnsupportedError, match="kv_b_proj"):
        carried(source, tmp_path / "x.gguf", fixtures / "hf" / "ckpt" / "deepseek2")


def test_verify_proves_it_again(tmp_path: Path, base: Path) -> None:
    source = peft(tmp_path / "a", adapter_tensors(), alpha_pattern={"q_proj": 24})
    carried(source, tmp_path / "x.gguf", base)

    def again(level: str = "full", **more: Any) -> Any:
        request = Request(str(source), level=level, jobs=1, base=str(base), **more)
        return reverify(request, str(tmp_path / "x.gguf"), silent)

    report = again()
    assert report.proof.deltas.pairs == 12 and report.proof.deltas.relative_rms <= 1e-6
    assert "pairs add" in report.line and again("fast").proof.deltas is None
    assert [t.grade for t in report.proof.tensors].count("rounded") == 3
    os.remove(f"{tmp_path / 'x.gguf'}.receipt.json")
    peft(tmp_path / "a", adapter_tensors(), alpha_pattern={"q_proj": 24})
    with pytest.raises(VerificationError):
        again()
