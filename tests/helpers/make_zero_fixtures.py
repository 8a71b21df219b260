"""Write `fixtures/training/zero2/` and `zero3/` as DeepSpeed's engine does, and what its zero_to_fp32.py makes of them.

    pip download --no-deps --no-binary :all: deepspeed      # 0.19.8, unpacked; it is not installed
    python tests/helpers/make_zero_fixtures.py deepspeed-0.19.8

The model is that of `helpers.checkpoints`, its head tied to its embeddings, with frozen parameters in bfloat16, on
three processes. The files are laid out as `DeepSpeedEngine._save_checkpoint`, `stage_1_and_2.py` and `stage3.py` lay
them out; zero_to_fp32.py of the distribution then reads them, and the sha256 of its tensors are kept in
`zero_to_fp32.json`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]
FOLDER = ROOT / "fixtures" / "training"
RANKS = 3
FROZEN = ("model.norm.weight", "model.layers.0.self_attn.k_proj.weight")
TIED = {"lm_head.weight": "model.embed_tokens.weight"}
BUFFER = "model.rotary_emb.inv_freq"


def stub(name: str, **members: Any) -> ModuleType:
    """A module of DeepSpeed's name with these classes, for pickles to name."""
    module = ModuleType(name)
    for key, value in members.items():
        if isinstance(value, type):
            value.__module__, value.__qualname__ = name, key
        setattr(module, key, value)
    sys.modules[name] = module
    return module


class LossScaler:
    """As `deepspeed.runtime.fp16.loss_scaler` has it: an object with a number."""

    def __init__(self) -> None:
        self.cur_scale = 1.0


class fragment_address:
    """As `deepspeed.utils.tensor_fragment` has it."""

    def __init__(self, numel: int, start: int) -> None:
        self.numel, self.start = numel, start


ZeroStageEnum = IntEnum("ZeroStageEnum", {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3})


def model() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The trained parameters in float32, and the frozen ones in bfloat16."""
    from helpers.checkpoints import weights

    found = {name: torch.from_numpy(value) for name, value in weights().items() if name not in TIED}
    frozen = {name: found.pop(name).bfloat16() for name in FROZEN}
    return found, frozen


def groups(trained: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Matrices and vectors, as weight decay groups them, the former in the order of round robin."""
    matrices = [name for name, value in trained.items() if value.dim() > 1]
    order = [name for rank in range(RANKS) for name in matrices[rank::RANKS]]
    return [order, [name for name, value in trained.items() if value.dim() < 2]]


def common(trained: Mapping[str, torch.Tensor], module: dict[str, Any]) -> dict[str, Any]:
    """What every file of model states has."""
    return {
        "module": module,
        "buffer_names": [BUFFER],
        "optimizer": None,
        "param_shapes": [OrderedDict((name, trained[name].shape) for name in group) for group in groups(trained)],
        "shared_params": TIED,
        "lr_scheduler": {"last_epoch": 3},
        "skipped_steps": 0,
        "global_steps": 3,
        "dp_world_size": RANKS,
        "mp_world_size": 1,
        "ds_config": {"train_batch_size": 3},
        "ds_version": "0.19.8",
    }


def second(folder: Path) -> None:
    """Write the files of stage 2."""
    trained, frozen = model()
    module = {name: value.bfloat16() for name, value in trained.items()} | frozen
    module |= {BUFFER: torch.arange(4.0), "lm_head.weight": module["model.embed_tokens.weight"]}
    shapes = OrderedDict((name, value.shape) for name, value in frozen.items())
    extra = {"frozen_param_shapes": shapes, "frozen_param_fragments": OrderedDict(frozen)}
    torch.save({**common(trained, module), **extra}, folder / "mp_rank_00_model_states.pt")
    flats = [torch.cat([trained[name].reshape(-1) for name in group]) for group in groups(trained)]
    for rank in range(RANKS):
        own = []
        for flat in flats:
            size = 2 * math.ceil(len(flat) / (2 * RANKS))  # padded to a multiple of two a process, without the padding
            own.append(flat[rank * size : min(len(flat), (rank + 1) * size)].clone())
        state = {
            "loss_scaler": LossScaler(),
            "dynamic_loss_scale": False,
            "overflow": False,
            "base_optimizer_state": {"state": {0: {"exp_avg": own[1] * 0.5}}, "param_groups": [{"lr": 1e-4}]},
            "single_partition_of_fp32_groups": own,
            "zero_stage": ZeroStageEnum.gradients,
            "group_paddings": [0, 0],
            "partition_count": [RANKS, RANKS],
            "ds_version": "0.19.8",
            "param_slice_mappings": [OrderedDict(x=fragment_address(4, 0))],
        }
        torch.save({"optimizer_state_dict": state}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def third(folder: Path) -> None:
    """Write the files of stage 3."""
    trained, frozen = model()
    shapes = OrderedDict((name, value.shape) for name, value in frozen.items())

    def run(value: torch.Tensor, rank: int) -> torch.Tensor:
        size = math.ceil(value.numel() / RANKS)
        flat = torch.cat([value.reshape(-1), torch.zeros(size * RANKS - value.numel(), dtype=value.dtype)])
        return flat[rank * size : (rank + 1) * size].clone()

    for rank in range(RANKS):
        module = {name: torch.empty(0, dtype=torch.bfloat16) for name in (*trained, *frozen)} | {
            BUFFER: torch.arange(4.0)
        }
        fragments = OrderedDict((name, run(value, rank)) for name, value in frozen.items())
        extra = {"frozen_param_shapes": shapes, "frozen_param_fragments": fragments}
        torch.save({**common(trained, module), **extra}, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flats = [torch.cat([run(trained[name], rank) for name in group]) for group in groups(trained)]
        state = {
            "zero_stage": ZeroStageEnum.weights,
            "loss_scaler": LossScaler(),
            "partition_count": RANKS,
            "optimizer_state_dict": {"state": {0: {"exp_avg": flats[1] * 0.5}}, "param_groups": [{"lr": 1e-4}]},
            "fp32_flat_groups": flats,
        }
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state, "ds_version": "0.19.8"}, folder / name)


def gathered(folder: Path, source: Path) -> dict[str, list[Any]]:
    """Shape, type and sha256 of every tensor that zero_to_fp32.py of the distribution makes."""
    constants = spec_from_file_location("deepspeed.checkpoint.constants", source / "deepspeed/checkpoint/constants.py")
    program = spec_from_file_location("zero_to_fp32", source / "deepspeed/utils/zero_to_fp32.py")
    assert constants is not None and constants.loader is not None and program is not None and program.loader is not None
    sys.modules[constants.name] = module_from_spec(constants)
    constants.loader.exec_module(sys.modules[constants.name])
    made = module_from_spec(program)
    program.loader.exec_module(made)
    found = made.get_fp32_state_dict_from_zero_checkpoint(os.fspath(folder))
    return {
        name: [list(value.shape), str(value.dtype), hashlib.sha256(data(value)).hexdigest()]
        for name, value in found.items()
    }


def data(value: torch.Tensor) -> bytes:
    """The bytes of a tensor."""
    return bytes(np.asarray(value.contiguous().reshape(-1).view(torch.uint8)))


if __name__ == "__main__":
    import logging

    for name in (
        "deepspeed",
        "deepspeed.runtime",
        "deepspeed.runtime.fp16",
        "deepspeed.runtime.zero",
        "deepspeed.checkpoint",
    ):
        stub(name)
    stub("deepspeed.utils", logger=logging.getLogger("deepspeed"))
    stub("deepspeed.runtime.fp16.loss_scaler", LossScaler=LossScaler)
    stub("deepspeed.utils.tensor_fragment", fragment_address=fragment_address)
    stub("deepspeed.runtime.zero.config", ZeroStageEnum=ZeroStageEnum)
    for name, write in (("zero2", second), ("zero3", third)):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        (FOLDER / name / "global_step3").mkdir(parents=True)
        write(FOLDER / name / "global_step3")
        (FOLDER / name / "latest").write_text("global_step3")
        expected = gathered(FOLDER / name, Path(sys.argv[1]))
        (FOLDER / name / "zero_to_fp32.json").write_text(json.dumps(expected, indent=0) + "\n")
