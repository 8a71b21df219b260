"""Adapters merged into their base: the output is the conversion of what PEFT's own merge_and_unload saves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.adapters.merge_parts import path_and_scale, receipt_form
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import (
    GgferryError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    ShapeError,
    UnexpectedTensorError,
    UnsupportedError,
    UsageError,
    VerificationError,
)
from ggferry.support.progress import silent
from helpers.merged_adapters import assert_alike, converted, tensors, with_peft
from helpers.tiny_models import make

ATTENTION = ["q_proj", "k_proj", "down_proj"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"target_modules": ATTENTION}),
    "rslora": ("llama", {"target_modules": ATTENTION, "use_rslora": True}),
    "patterns": (
        "llama",
        {"target_modules": ATTENTION, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.self_attn.k_proj": 3}},
    ),
    "dora": ("llama", {"target_modules": ATTENTION, "use_dora": True}),
    "embedding": ("llama", {"target_modules": ["embed_tokens", "v_proj"]}),
    "dora embedding": ("llama", {"target_modules": ["embed_tokens", "v_proj"], "use_dora": True}),
    "saved": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt2 dora": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "use_dora": True}),
    "gpt2 bias": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "lora_bias": True, "fan_in_fan_out": True}),
    "gpt2 biases": ("gpt2", {"target_modules": ["c_attn"], "bias": "all"}),
    "gemma": ("gemma2", {"target_modules": ATTENTION, "modules_to_save": ["norm"]}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Base models, each made once."""
    made: dict[str, Path] = {}

    def model(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("bases") / name
            make(name, made[name])
        return made[name]

    return model


QUICK = ("llama", "gpt2 dora")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in CASES]
)
def test_it_is_what_peft_merges(name: str, models: Any, tmp_path: Path) -> None:
    base, config = CASES[name]
    with_peft(models(base), tmp_path / "a", tmp_path / "m", **config)
    result = converted(models(base), tmp_path / "ours.gguf", str(tmp_path / "a"))
    converted(tmp_path / "m", tmp_path / "theirs.gguf", level="fast")
    assert_alike(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")
    assert result.proof.logits is not None


def test_verify_finds_the_adapters_of_the_receipt_where_they_stood(models: Any, tmp_path: Path) -> None:
    base, first, second, out = models("llama"), tmp_path / "a", tmp_path / "c", tmp_path / "ours.gguf"
    with_peft(base, first, None, 1, target_modules=["q_proj"])
    with_peft(base, second, None, 9, target_modules=["q_proj"])
    converted(base, out, f"{first}:0.5", str(second), level="fast")
    request = Request(str(base), vocab=VocabOptions(none=True), level="fast")
    report = reverify(request, str(out), silent)
    assert [note for note in report.notes if f"--lora {first}:0.5: found by the receipt" in note]
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match="the adapter 'c', with which the output was made") as caught:
        reverify(request, str(out), silent)
    assert caught.value.hint == "--lora PATH:1" and caught.value.found is None
    shutil.copytree(first, second)  # one of that name, but another
    with pytest.raises(NotFoundError, match="other bytes in"):
        reverify(request, str(out), silent)
    elsewhere = (f"{first}:0.5", str(tmp_path / "elsewhere"))
    reverify(replace(request, lora=elsewhere), str(out), silent)


def test_several_adapters_apply_in_order_and_verify_reads_them_again(models: Any, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, first, second, out = models("llama"), tmp_path / "a", tmp_path / "c", tmp_path / "ours.gguf"
    with_peft(base, first, None, 1, target_modules=["q_proj", "up_proj"])
    with_peft(base, second, None, 9, target_modules=["q_proj"], use_dora=True)
    lora = (f"{first}:0.5", str(second))
    result = converted(base, out, *lora)
    receipt = json.loads(Path(result.receipt_path).read_text())
    assert receipt["options"]["lora"] == ["a:0.5", "c:1"]
    assert [each["name"] for each in receipt["source"]["files"]].count("adapter_model.safetensors") == 2
    (query,) = [each for each in receipt["tensors"] if each["name"] == "blk.0.attn_q.weight"]
    assert query["merged_from"] == "model.layers.0.self_attn.q_proj.weight + a × 0.5 + c"
    assert query["grade"] == "computed"
    request = Request(str(base), vocab=VocabOptions(none=True), lora=lora)
    reverify(request, str(out), silent)
    with pytest.raises(VerificationError):
        reverify(Request(str(base), vocab=VocabOptions(none=True), lora=lora[:1]), str(out), silent)

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(first), adapter_name="a")
    model.load_adapter(str(second), adapter_name="c")
    for module in model.modules():
        if hasattr(module, "set_scale") and "a" in module.scaling:
            module.set_scale("a", 0.5)
    model.base_model.merge_and_unload(adapter_names=["a", "c"]).save_pretrained(tmp_path / "both")
    for file in base.iterdir():
        if not (tmp_path / "both" / file.name).exists():
            shutil.copy(file, tmp_path / "both")
    converted(tmp_path / "both", tmp_path / "theirs.gguf", level="fast")
    assert_alike(out, tmp_path / "theirs.gguf")


OTHERS = ("llama", "dora embedding", "saved", "gpt2", "gpt2 bias", "gpt2 dora", "gemma")


@pytest.mark.parametrize("name", ["dora", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_onto_a_gguf_file_is_as_onto_its_source(name: str, models: Any, tmp_path: Path) -> None:
    base, config = CASES[name]
    with_peft(models(base), tmp_path / "a", None, **config)
    converted(models(base), tmp_path / "base.gguf", level="fast")
    converted(models(base), tmp_path / "one.gguf", str(tmp_path / "a"), level="fast")
    converted(tmp_path / "base.gguf", tmp_path / "two.gguf", str(tmp_path / "a"))
    one, two = tensors(tmp_path / "one.gguf"), tensors(tmp_path / "two.gguf")
    assert one.keys() == two.keys()
    for key, values in one.items():
        assert np.abs(two[key] - values).max() <= 1e-6 * np.abs(values).max(), key


def test_a_quantized_gguf_base_gets_f16_where_it_is_changed(models: Any, tmp_path: Path) -> None:
    with_peft(models("llama"), tmp_path / "a", None, target_modules=["q_proj"])
    converted(models("llama"), tmp_path / "base.gguf", outtype="q8_0", level="fast")
    converted(tmp_path / "base.gguf", tmp_path / "two.gguf", str(tmp_path / "a"), outtype="keep")
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "two.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == "F16"
    before = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "base.gguf").tensors}
    assert {name for name in kinds if kinds[name] != before[name]} <= {f"blk.{n}.attn_q.weight" for n in range(9)}


def test_an_adapter_of_mlx_is_the_same_change(models: Any, tmp_path: Path) -> None:
    base = models("llama")
    with_peft(base, tmp_path / "a", tmp_path / "m", target_modules=ATTENTION, use_dora=True)
    found = load_file(tmp_path / "a/adapter_model.safetensors")
    ends = {"lora_A.weight": "lora_a", "lora_B.weight": "lora_b", "lora_magnitude_vector": "m"}
    own = {}
    for name, values in found.items():
        end = next(end for end in ends if name.endswith(end))
        short = name.removeprefix("base_model.model.").removesuffix(end) + ends[end]
        own[short] = np.ascontiguousarray(values.T)
    (tmp_path / "mlx").mkdir()
    save_file(own, tmp_path / "mlx/adapters.safetensors")
    stated = {"fine_tune_type": "dora", "lora_parameters": {"rank": 4, "scale": 1.5, "dropout": 0.0}}
    (tmp_path / "mlx/adapter_config.json").write_text(json.dumps(stated))
    converted(base, tmp_path / "ours.gguf", str(tmp_path / "mlx"), level="fast")
    converted(tmp_path / "m", tmp_path / "theirs.gguf", level="fast")
    assert_alike(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


def test_a_tied_output_gets_its_own_tensor(models: Any, tmp_path: Path) -> None:
    base = models("llama tied")
    with_peft(base, tmp_path / "a", None, target_modules=["q_proj"], modules_to_save=["lm_head"])
    converted(base, tmp_path / "plain.gguf", level="fast")
    result = converted(base, tmp_path / "ours.gguf", str(tmp_path / "a"))
    before, after = tensors(tmp_path / "plain.gguf"), tensors(tmp_path / "ours.gguf")
    own = load_file(tmp_path / "a/adapter_model.safetensors")
    assert "output.weight" not in before
    assert np.array_equal(after["output.weight"], own["base_model.model.lm_head.weight"])
    assert np.array_equal(after["token_embd.weight"], before["token_embd.weight"])
    assert result.proof.logits is not None


def test_sums_are_rounded_once_to_the_type_of_the_output(models: Any, tmp_path: Path) -> None:
    base = models("llama")
    with_peft(base, tmp_path / "a", None, target_modules=["q_proj"])
    converted(base, tmp_path / "wide.gguf", str(tmp_path / "a"), level="fast")
    result = converted(base, tmp_path / "half.gguf", str(tmp_path / "a"), outtype="f16")
    assert result.proof.logits is not None
    name = "blk.1.attn_q.weight"
    assert np.array_equal(tensors(tmp_path / "half.gguf")[name], tensors(tmp_path / "wide.gguf")[name].astype("<f2"))


A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight" for side in "AB")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda found: found.update({A: np.zeros((4, 7), "<f4")}), ShapeError, "does not fit the base"),
        (lambda found: found.update({A: np.zeros((3, 48), "<f4")}), ShapeError, "do not multiply"),
        (lambda found: found.update({A: np.zeros((0, 48), "<f4"), B: np.zeros((48, 0), "<f4")}), GgferryError, "rank"),
        (lambda found: found.pop(A), MissingError, "lora_A"),
        (lambda found: found.update({B: np.full_like(found[B], np.nan)}), OutOfRangeError, "NaN"),
        (lambda found: found.update({"base_model.model.nowhere.weight": np.zeros(3, "<f4")}), UnexpectedTensorError,
         "nowhere"),
        (lambda found: found.update({A.replace("lora_A", "lora_Z"): np.zeros(3, "<f4")}), UnsupportedError, "lora_Z"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    change: Any, error: type[Exception], words: str, models: Any, tmp_path: Path
) -> None:
    with_peft(models("llama"), tmp_path / "a", None, target_modules=["q_proj"])
    found = load_file(tmp_path / "a/adapter_model.safetensors")
    change(found)
    save_file(found, tmp_path / "a/adapter_model.safetensors")
    with pytest.raises(error, match=words):
        converted(models("llama"), tmp_path / "out.gguf", str(tmp_path / "a"), level="fast")
    assert not (tmp_path / "out.gguf").exists()


def test_a_rank_that_the_matrices_have_not_is_refused(models: Any, tmp_path: Path) -> None:
    with_peft(models("llama"), tmp_path / "a", None, target_modules=["q_proj"])
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    (tmp_path / "a/adapter_config.json").write_text(json.dumps({**config, "r": 5}))
    with pytest.raises(InconsistentError, match="rank"):
        converted(models("llama"), tmp_path / "out.gguf", str(tmp_path / "a"))


def test_a_colon_counts_before_a_number_only(tmp_path: Path) -> None:
    assert path_and_scale(r"C:\adapters\mine") == (r"C:\adapters\mine", 1.0)
    assert path_and_scale(r"C:\adapters\mine:-0.5") == (r"C:\adapters\mine", -0.5)
    assert path_and_scale("mine:1e-1") == ("mine", 0.1)
    (tmp_path / "v:2").mkdir()
    assert path_and_scale(str(tmp_path / "v:2")) == (str(tmp_path / "v:2"), 1.0)
    assert receipt_form(f"{tmp_path}/mine/:2") == "mine:2"


def test_a_scale_of_nothing_is_refused(models: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="scale"):
        converted(models("llama"), tmp_path / "out.gguf", f"{tmp_path / 'a'}:0")
