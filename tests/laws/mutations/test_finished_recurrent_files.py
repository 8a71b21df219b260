"""Recurrent models: what a converter could get wrong in them, the forward passes alone must see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.understand import understand
from ggferry.formats.errors import VerificationError
from helpers.rwkv_models import finch, goose
from helpers.tiny_models import make, write

pytestmark = pytest.mark.filterwarnings("ignore")
Tensors = dict[str, np.ndarray]
Mutation = Callable[[Tensors], None]
BLOCK = "blk.1."


def changed(name: str, how: Callable[[np.ndarray], np.ndarray]) -> Mutation:
    def mutate(tensors: Tensors) -> None:
        tensors[BLOCK + name] = np.ascontiguousarray(how(tensors[BLOCK + name])).reshape(tensors[BLOCK + name].shape)

    return mutate


def swapped(a: str, b: str) -> Mutation:
    def mutate(tensors: Tensors) -> None:
        tensors[BLOCK + a], tensors[BLOCK + b] = tensors[BLOCK + b], tensors[BLOCK + a]

    return mutate


def rows(*order: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.concatenate([x[start:stop] for start, stop in order])


def exchanged(i: int, j: int) -> Callable[[np.ndarray], np.ndarray]:
    """Items i and j of the first axis."""

    def how(x: np.ndarray) -> np.ndarray:
        order = list(range(len(x)))
        order[i], order[j] = order[j], order[i]
        return x[order]

    return how


def rotated(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2)


MUTATIONS: dict[str, dict[str, Mutation]] = {
    "mamba": {
        "A as its logarithm": changed("ssm_a", lambda x: np.log(-x)),
        "A of another sign": changed("ssm_a", lambda x: -x),
        "kernel the other way round": changed("ssm_conv1d.weight", lambda x: x[:, ::-1]),
        "gate and input swapped": changed("ssm_in.weight", rows((96, 192), (0, 96))),
        "selections swapped": changed("ssm_x.weight", rows((0, 5), (15, 25), (5, 15))),
        "D and the step's bias swapped": swapped("ssm_d", "ssm_dt.bias"),
    },
    "mamba2": {
        "A as its logarithm": changed("ssm_a", lambda x: np.log(-x)),
        "heads in another order": changed("ssm_a", lambda x: x[::-1]),
        "groups of the norm swapped": changed("ssm_norm.weight", exchanged(0, 1)),
        "groups of a selection swapped": changed("ssm_conv1d.weight", rows((0, 96), (106, 116), (96, 106), (116, 156))),
        "gate and input swapped": changed("ssm_in.weight", rows((96, 192), (0, 96), (192, 264))),
    },
    "rwkv": {
        "decay as its exponential": changed("time_mix_decay.weight", lambda x: -np.exp(x)),
        "decay and bonus swapped": swapped("time_mix_decay.weight", "time_mix_first.weight"),
        "shares of another token": changed("time_mix_lerp_k.weight", lambda x: 1 - x),
        "shares swapped": swapped("time_mix_lerp_k.weight", "time_mix_lerp_v.weight"),
        "receptance and key swapped": swapped("time_mix_receptance.weight", "time_mix_key.weight"),
        "norms swapped": swapped("attn_norm.weight", "attn_norm_2.weight"),
    },
    "rwkv6": {
        "shares in another order": changed("time_mix_lerp_fused.weight", exchanged(0, 3)),
        "factors in another order": changed("time_mix_w2.weight", exchanged(0, 3)),
        "a factor not turned": changed("time_mix_decay_w2.weight", rotated),
        "items of a stack not turned": changed("time_mix_w2.weight", rotated),
        "gate and receptance swapped": swapped("time_mix_gate.weight", "time_mix_receptance.weight"),
        "heads of the bonus swapped": changed("time_mix_first.weight", exchanged(0, 1)),
        "halved where nothing is": changed("time_mix_output.weight", lambda x: x / 2),
    },
    "rwkv7": {
        "shares in another order": changed("time_mix_lerp_fused.weight", exchanged(1, 2)),
        "rate and values swapped": swapped("time_mix_a0.weight", "time_mix_v0.weight"),
        "a factor not turned": changed("time_mix_g1.weight", rotated),
        "heads of the bonus swapped": changed("time_mix_r_k.weight", lambda x: x.reshape(2, 64)[::-1]),
        "key's weights swapped": swapped("time_mix_k_k.weight", "time_mix_k_a.weight"),
    },
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelGraph]:
    import torch

    folder, found = tmp_path_factory.mktemp("recurrent"), {}
    for name in MUTATIONS:
        path = folder / name
        if name in ("rwkv6", "rwkv7"):
            tensors = finch() if name == "rwkv6" else goose()
            torch.save({key: torch.from_numpy(value) for key, value in tensors.items()}, path)
        else:
            make(name, path)
        found[name] = understand(open_checkpoint(str(path)))
    return found


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, kinds in MUTATIONS.items() for what in kinds])
def test_the_forward_pass_alone_shows_it(name: str, what: str, sources: dict[str, ModelGraph], tmp_path: Path) -> None:
    wrong = write(sources[name], tmp_path / "wrong.gguf", MUTATIONS[name][what])
    with pytest.raises(VerificationError, match="forward pass"):
        check_logits(sources[name], understand(open_checkpoint(str(wrong))))


@pytest.mark.parametrize("name", MUTATIONS)
def test_an_untouched_copy_passes(name: str, sources: dict[str, ModelGraph], tmp_path: Path) -> None:
    proof = check_logits(sources[name], understand(open_checkpoint(str(write(sources[name], tmp_path / "x.gguf")))))
    assert proof.relative_rms < 1e-6
