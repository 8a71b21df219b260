"""Checkpoints as training leaves them: names of wrapping modules, states beside the model, the Hub's cache."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import OF_WRAPPING_MODULES
from ggferry.formats.errors import DuplicateError, UnknownFormatError
from ggferry.formats.pytorch import nested_state
from ggferry.formats.pytorch.nested_state import plain_names
from ggferry.service.plan.make_plan import PlanRequest, plan
from helpers.merged_adapters import tensors
from helpers.third_party_fixtures import FIXTURES

LLAMA = FIXTURES / "hf" / "ckpt" / "llama"
Names = Callable[[str], str]


def _compiled_blocks(name: str) -> str:
    """Blocks compiled and checkpointed one by one, as trainers do."""
    head, dot, rest = name.partition("layers.")
    number, _, inner = rest.partition(".")
    return f"{head}layers.{number}._orig_mod._checkpoint_wrapped_module.{inner}" if dot else name


WRAPPED: dict[str, Names] = {
    "DDP": lambda name: f"module.{name}",
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "torch.compile in DDP": lambda name: f"module._orig_mod.{name}",
    "FSDP": lambda name: f"_fsdp_wrapped_module.{name}",
    "Fabric": lambda name: f"_forward_module.{name}",
    "blocks": _compiled_blocks,
    "PEFT": lambda name: f"base_model.model.{name}",
    "Lightning": lambda name: f"model.{name}",
}


def _folder(source: Path, target: Path) -> Path:
    """Copy what stands beside the weights."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    return target


def _converted(source: Path, out: Path, level: str = "fast") -> list[str]:
    (result,) = convert(
        Request(str(source), str(out), Options(outtype="f32"), vocab=VocabOptions(none=True), level=level)
    )
    second = result.receipt["second_reader"]
    assert second["unread"] == () and second["tensors"] >= 21
    return list(result.receipt["notes"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRAPPED)
def test_names_of_wrapping_modules_are_left_out(name: str, tmp_path: Path) -> None:
    folder = _folder(LLAMA, tmp_path / "in")
    found = load_file(LLAMA / "model.safetensors")
    save_file({WRAPPED[name](key): each for key, each in found.items()}, folder / "model.safetensors", {"format": "pt"})
    (note,) = [each for each in _converted(folder, tmp_path / "x.gguf") if "the modules that training puts" in each]
    assert any(f"{WRAPPED[name](key)!r} is {key!r}" in note for key in found)
    _converted(LLAMA, tmp_path / "plain.gguf")
    ours, plain = tensors(tmp_path / "x.gguf"), tensors(tmp_path / "plain.gguf")
    assert ours.keys() == plain.keys() and all((ours[key] == each).all() for key, each in plain.items())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.embed_tokens.weight", "model.norm.weight"], None),  # a LLaMA without an output of its own
        (["model.transformer.wte.weight", "model.transformer.ln_f.weight"], None),  # LLaDA's own names
        (["model.language_model.norm.weight", "model.visual.norm.weight"], None),
        (["module.norm.weight", "norm.weight"], None),  # not all of them: a module of the model's own
        (["model.model.norm.weight", "model.lm_head.weight"], ["model.norm.weight", "lm_head.weight"]),
        (["module.model.model.norm.weight", "module.model.lm_head.weight"], ["model.norm.weight", "lm_head.weight"]),
        (["a._orig_mod.weight", "b.weight"], ["a.weight", "b.weight"]),
    ],
)
def test_only_what_stands_around_a_whole_model_is_left_out(names: list[str], expected: list[str] | None) -> None:
    assert list(plain_names(names, "x").values()) == (names if expected is None else expected)
    assert expected is None or any(sign in name for name in names for sign in OF_WRAPPING_MODULES)


def test_every_wrapping_module_is_noticed_before_its_file_is_loaded() -> None:
    around = (*nested_state._ADDED, *nested_state._AROUND, *nested_state._WHOLE)
    assert not [each for each in around if not any(sign in each for sign in OF_WRAPPING_MODULES)]


def test_two_tensors_never_become_one() -> None:
    with pytest.raises(DuplicateError, match="duplicate tensor name"):
        plain_names(["a.weight", "a._orig_mod.weight"], "x")


def test_a_lightning_checkpoint_is_the_model_of_its_folder(tmp_path: Path) -> None:
    """Optimizer states stand in lists there, whose tensors the second reader finds, too."""
    folder = _folder(LLAMA, tmp_path / "in")
    found = load_file(LLAMA / "model.safetensors")
    step = {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}}
    saved = {
        "epoch": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"model.{key}": each for key, each in found.items()},
        "optimizer_states": [{"state": step, "param_groups": [{"lr": 0.1, "params": [0]}]}],
    }
    torch.save(saved, folder / "last.ckpt")
    notes = _converted(folder, tmp_path / "x.gguf")
    assert any("the model was found under 'state_dict'" in note for note in notes)
    _converted(LLAMA, tmp_path / "plain.gguf")
    ours, plain = tensors(tmp_path / "x.gguf"), tensors(tmp_path / "plain.gguf")
    assert all((ours[key] == each).all() for key, each in plain.items())


@pytest.mark.unix("links, which Windows lets only administrators make")
@pytest.mark.parametrize("named", [True, False])
def test_a_model_in_the_cache_of_the_hub_is_its_snapshot(named: bool, tmp_path: Path) -> None:
    cached, blobs = tmp_path / "models--a--b", tmp_path / "models--a--b" / "blobs"
    snapshot = cached / "snapshots" / "0f"
    for folder in (blobs, snapshot, cached / "refs"):
        folder.mkdir(parents=True)
    if named:
        (cached / "refs" / "main").write_text("0f")
        (cached / "snapshots" / "1e").mkdir()
    for number, file in enumerate(sorted(LLAMA.iterdir())):
        shutil.copy(file, blobs / f"{number:064x}")
        os.symlink(f"../../blobs/{number:064x}", snapshot / file.name)
    assert "snapshot 0f of the Hub's cache was opened" in _converted(cached, tmp_path / "x.gguf")
    (cached / "refs" / "main").write_text("../../../other")
    with pytest.raises(UnknownFormatError):
        _converted(cached, tmp_path / "y.gguf")


def test_what_the_trainer_saves_beside_a_model_is_no_model_that_failed(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    folder = tmp_path / "in" / "checkpoint-500"
    shutil.copytree(LLAMA, folder)
    linear = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(linear.parameters())
    linear(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": 3}, folder / "scheduler.pt")
    torch.save({"python": random.getstate(), "cpu": torch.get_rng_state()}, folder / "rng_state_0.pth")
    torch.save(TrainingArguments(output_dir=str(tmp_path), report_to=[]), folder / "training_args.bin")
    _, entries = plan(PlanRequest((str(tmp_path / "in"),)))
    found = {os.path.basename(entry.source): entry for entry in entries}
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin"):
        assert found[name].verdict == "other" and "state of a training, not a model" in str(found[name].reason), name
    assert not {entry.verdict for entry in entries} & {"unsupported", "corrupt"}
