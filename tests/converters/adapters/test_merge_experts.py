"""Adapters of experts merged into their base: `target_parameters` as PEFT merges it, and pairs of single experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.formats.errors import GgferryError, InconsistentError, ShapeError, UnexpectedTensorError, UnsupportedError
from helpers.merged_adapters import assert_alike, converted, tensors, with_peft
from helpers.tiny_models import make

pytestmark = pytest.mark.filterwarnings("ignore")
TARGETS = ["experts.gate_up_proj", "experts.down_proj"]
A, B = (f"base_model.model.model.layers.0.mlp.experts.lora_{side}.weight" for side in "AB")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen3moe", {"target_modules": ["q_proj"]}),  # a matrix for each expert in the checkpoint
        pytest.param(  # under names of its own
            "mixtral", {"target_modules": [], "use_rslora": True}, marks=pytest.mark.slow
        ),
        ("gpt-oss", {"target_modules": []}),  # stacked, as (in, out)
        pytest.param("qwen35moe", {"target_modules": []}, marks=pytest.mark.slow),  # beside shared experts
    ],
)
def test_target_parameters_are_merged_as_peft_does(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    make(name, tmp_path / "base")
    with_peft(tmp_path / "base", tmp_path / "a", tmp_path / "m", target_parameters=TARGETS, **more)
    ours = converted(tmp_path / "base", tmp_path / "ours.gguf", str(tmp_path / "a"))
    converted(tmp_path / "m", tmp_path / "theirs.gguf", level="fast")
    converted(tmp_path / "base", tmp_path / "plain.gguf", level="fast")
    assert_alike(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")
    before, after = tensors(tmp_path / "plain.gguf"), tensors(tmp_path / "ours.gguf")
    changed = {key.rpartition("blk.0.")[2] for key in after if not np.array_equal(before[key], after[key])}
    assert {"ffn_down_exps.weight"} < changed and any("gate" in key for key in changed)
    assert ours.proof.logits is not None


@pytest.mark.parametrize(
    "name", ["qwen3moe", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mixtral", "qwen35moe"))]
)
def test_onto_a_gguf_file_they_are_as_onto_its_source(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "base")
    with_peft(tmp_path / "base", tmp_path / "a", None, target_parameters=TARGETS, target_modules=["q_proj"])
    converted(tmp_path / "base", tmp_path / "base.gguf", level="fast")
    converted(tmp_path / "base", tmp_path / "one.gguf", str(tmp_path / "a"), level="fast")
    done = converted(tmp_path / "base.gguf", tmp_path / "two.gguf", str(tmp_path / "a"))
    assert_alike(tmp_path / "two.gguf", tmp_path / "one.gguf")
    before, after = tensors(tmp_path / "base.gguf"), tensors(tmp_path / "two.gguf")
    changed = {key.rpartition("blk.0.")[2] for key in after if not np.array_equal(before[key], after[key])}
    assert {f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")} < changed and done.proof.logits is not None


def test_onto_a_gguf_file_whose_source_has_them_stacked_they_are_refused(tmp_path: Path) -> None:
    make("gpt-oss", tmp_path / "base")
    with_peft(tmp_path / "base", tmp_path / "a", None, target_parameters=TARGETS, target_modules=[])
    converted(tmp_path / "base", tmp_path / "base.gguf", level="fast")
    with pytest.raises(UnsupportedError, match="target_parameters of an adapter for a GGUF model of this architecture"):
        converted(tmp_path / "base.gguf", tmp_path / "two.gguf", str(tmp_path / "a"))


@pytest.mark.slow
def test_pairs_of_single_experts(tmp_path: Path) -> None:
    """As PEFT saved them where every expert was a module: some experts of a block change, the others do not."""
    make("qwen3moe", tmp_path / "base")
    weights, rng = load_file(tmp_path / "base" / "model.safetensors"), np.random.default_rng(3)
    name, found = "model.layers.1.mlp.experts.{e}.up_proj", {}
    for e in (0, 3):
        rows, columns = weights[f"{name.format(e=e)}.weight"].shape
        a, b = (rng.normal(0, 0.3, size).astype("<f4") for size in ((2, columns), (rows, 2)))
        found |= {f"base_model.model.{name.format(e=e)}.lora_{side}.weight": x for side, x in (("A", a), ("B", b))}
        weights[f"{name.format(e=e)}.weight"] += (b.astype(float) @ a * 2.5).astype(np.float32)
    save(tmp_path / "a", found, r=2, lora_alpha=5)
    converted(tmp_path / "base", tmp_path / "ours.gguf", str(tmp_path / "a"))
    save_file(weights, tmp_path / "base" / "model.safetensors")
    converted(tmp_path / "base", tmp_path / "theirs.gguf", level="fast")
    assert_alike(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with experts."""
    folder = tmp_path_factory.mktemp("base")
    make("qwen3moe", folder)
    return folder


def save(folder: Path, found: dict[str, np.ndarray], **config: Any) -> None:
    """An adapter with these tensors."""
    folder.mkdir(exist_ok=True)
    save_file(found, folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "adapter_config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize(
    ("a", "b", "config", "error", "words"),
    [
        ((10, 48), (80, 10), {"r": 4}, ShapeError, "does not fit the base"),
        ((10, 47), (80, 10), {}, ShapeError, "does not fit the base"),
        ((10, 48), (80, 8), {}, ShapeError, "does not fit the base"),
        ((10, 48), (80, 10), {"r": None}, InconsistentError, "rank"),
        ((10, 48), (80, 10), {"rank_pattern": {"experts": 3}}, UnsupportedError, "rank_pattern beside"),
        ((10, 48), (80, 10), {"target_parameters": [3]}, InconsistentError, "target_parameters"),
        ((10, 48), (80, 10), {"target_parameters": ["experts.w9"]}, UnexpectedTensorError, "experts that the base"),
    ],
)
def test_what_does_not_fit_is_refused(
    a: tuple[int, ...],
    b: tuple[int, ...],
    config: dict[str, Any],
    error: type[GgferryError],
    words: str,
    tmp_path: Path,
    base: Path,
) -> None:
    found = {A: np.ones(a, "<f4"), B: np.ones(b, "<f4")}
    save(tmp_path / "a", found, **{"target_parameters": TARGETS, **config})
    with pytest.raises(error, match=words):
        converted(base, tmp_path / "x.gguf", str(tmp_path / "a"))
