"""Write `fixtures/training/fsdp*/` as verl's FSDPCheckpointManager does: torch.save of each process's state dict.

    python tests/helpers/make_fsdp_fixture.py

The model is that of `helpers.checkpoints`, its tensors DTensors of PyTorch: `fsdp/` on three processes, whose parts of
a tensor have unequal numbers of rows; `fsdp-ddp/` on two by two, of which each two have all of it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]
FOLDER = ROOT / "fixtures" / "training"


def write(rank: int, name: str, mesh: tuple[int, ...], names: tuple[str, ...], world: int) -> None:
    """Save as one of the processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from helpers.checkpoints import weights

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29421", RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    devices = init_device_mesh("cpu", mesh, mesh_dim_names=names)
    layout = [Replicate()] * (len(mesh) - 1) + [Shard(0)]
    state = {key: distribute_tensor(torch.from_numpy(value), devices, layout) for key, value in weights().items()}
    torch.save(state, FOLDER / name / f"model_world_size_{world}_rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    for each, shape, axes in (("fsdp", (3,), ("fsdp",)), ("fsdp-ddp", (2, 2), ("ddp", "fsdp"))):
        shutil.rmtree(FOLDER / each, ignore_errors=True)
        (FOLDER / each).mkdir()
        total = int(torch.tensor(shape).prod())
        mp.spawn(write, (each, shape, axes, total), nprocs=total)
