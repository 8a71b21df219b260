"""Write `fixtures/training/dcp/` by torch.distributed.checkpoint, on four processes that speak over the loopback.

    python tests/helpers/make_dcp_fixture.py

The model is that of `helpers.checkpoints`. On a mesh of two by two, tensors are cut into rows, into columns, into both,
or repeated; beside the model stand the states of an optimizer, of a scheduler and of the random numbers.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]
FOLDER = ROOT / "fixtures" / "training" / "dcp"
RANKS = 4


def placements(name: str, shape: tuple[int, ...]) -> list[Any]:
    """How a tensor is laid over the mesh (data, tensor): as tensor parallelism with FSDP lays it, and otherwise."""
    from torch.distributed.tensor import Replicate, Shard

    if len(shape) < 2:
        return [Shard(0), Replicate()] if name.endswith("input_layernorm.weight") else [Replicate(), Replicate()]
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return [Shard(0), Shard(1)]
    if name.endswith("up_proj.weight"):
        return [Replicate(), Shard(1)]
    return [Shard(0), Shard(0)] if name.startswith("lm_head") else [Replicate(), Shard(0)]


def write(rank: int) -> None:
    """Save the checkpoint as one of the processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    from helpers.checkpoints import weights

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29417", RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = {
        name: distribute_tensor(torch.from_numpy(value), mesh, placements(name, value.shape))
        for name, value in weights().items()
    }
    few = {name: value for name, value in model.items() if "layernorm" in name}
    moments = {name: {"step": torch.tensor(3.0), "exp_avg": value * 0.5} for name, value in few.items()}
    state = {
        "model": model,
        "optim": {"state": moments, "param_groups": [{"lr": 1e-4, "params": list(few)}]},
        "lr_scheduler": {"last_epoch": 3, "base_lrs": [1e-4]},
        "rng": torch.get_rng_state(),
        "step": 3,
    }
    dcp.save(state, checkpoint_id=os.fspath(FOLDER))
    dist.destroy_process_group()


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    mp.spawn(write, nprocs=RANKS)
