"""Models of several kinds of blocks: what a converter could get wrong in them, the forward passes alone must see."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.understand import understand
from ggferry.formats.errors import VerificationError
from helpers.tiny_models import make, write

pytestmark = pytest.mark.filterwarnings("ignore")
Tensors = dict[str, np.ndarray]
Mutation = Callable[[Tensors], None]


def changed(name: str, how: Callable[[np.ndarray], np.ndarray]) -> Mutation:
    def mutate(tensors: Tensors) -> None:
        before = tensors[f"blk.{name}"]
        tensors[f"blk.{name}"] = np.ascontiguousarray(how(before)).reshape(before.shape)

    return mutate


def swapped(a: str, b: str) -> Mutation:
    def mutate(tensors: Tensors) -> None:
        tensors[f"blk.{a}"], tensors[f"blk.{b}"] = tensors[f"blk.{b}"], tensors[f"blk.{a}"]

    return mutate


def rows(*order: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.concatenate([x[start:stop] for start, stop in order])


def untiled(start: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """Six heads of values behind row `start`, dealt out over two keys, back one after the other."""

    def how(x: np.ndarray) -> np.ndarray:
        heads = x[start:].reshape(3, 2, -1)
        return np.concatenate((x[:start].ravel(), heads.swapaxes(0, 1).ravel()))

    return how


def columns(how: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: how(np.ascontiguousarray(x.T)).reshape(x.T.shape).T


def pairs(heads: int) -> Callable[[np.ndarray], np.ndarray]:
    """The permutation of whole heads from halves to pairs, where another or none is due."""
    return lambda x: x.reshape(heads, 2, -1, x.shape[-1]).swapaxes(1, 2)


def rotated(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2)


MUTATIONS: dict[str, dict[str, Mutation]] = {
    "qwen3next": {
        "values before keys": changed("0.attn_qkv.weight", rows((0, 20), (40, 100), (20, 40))),
        "correction and fading swapped": changed("0.ssm_ba.weight", rows((3, 6), (0, 3), (9, 12), (6, 9))),
        "A as its logarithm": changed("0.ssm_a", lambda x: np.log(-x)),
        "kernel the other way round": changed("1.ssm_conv1d.weight", lambda x: x[:, ::-1]),
        "the norm behind the delta net as the others": changed("1.ssm_norm.weight", lambda x: x + 1),
        "queries and gates swapped": changed("3.attn_q.weight", lambda x: x.reshape(8, 2, 12, -1)[:, ::-1]),
        "experts in another order": changed("2.ffn_up_exps.weight", lambda x: x[[1, 0, 2, 3, 4]]),
    },
    "qwen35": {
        "values not dealt out": changed("0.attn_qkv.weight", untiled(40)),
        "channels not dealt out": changed("0.ssm_conv1d.weight", untiled(40)),
        "gates not dealt out": changed("0.attn_gate.weight", untiled()),
        "rates not dealt out": changed("0.ssm_a", untiled()),
        "columns not dealt out": changed("1.ssm_out.weight", columns(untiled())),
        "correction and fading swapped": swapped("1.ssm_beta.weight", "1.ssm_alpha.weight"),
    },
    "granite hybrid": {
        "groups of the norm swapped": changed("0.ssm_norm.weight", lambda x: x[[1, 0, 2, 3]]),
        "gate and up of the experts swapped": swapped("0.ffn_gate_exps.weight", "0.ffn_up_exps.weight"),
        "gate and up beside them swapped": swapped("1.ffn_gate_shexp.weight", "1.ffn_up_shexp.weight"),
    },
    "bamba": {
        "whole heads turned": changed("1.attn_q.weight", lambda x: pairs(8)(x)),
        "gate and input swapped": changed("0.ssm_in.weight", rows((128, 256), (0, 128), (256, 352))),
    },
    "jamba": {
        "the norm of the step left out": changed("0.ssm_dt_norm.weight", np.ones_like),
        "D and the step's bias swapped": swapped("0.ssm_d", "0.ssm_dt.bias"),
    },
    "lfm2moe": {
        "gates of the convolution swapped": changed("0.shortconv.in_proj.weight", rows((64, 128), (0, 64), (128, 192))),
        "the bias of the choice left out": changed("1.exp_probs_b.bias", np.zeros_like),
    },
    "nemotron-h latent": {
        "the bias of the choice left out": changed("1.exp_probs_b.bias", np.zeros_like),
        "norms of two blocks swapped": swapped("0.attn_norm.weight", "1.attn_norm.weight"),
    },
    "falcon-h1": {
        "keys without their factor": changed("0.attn_k.weight", lambda x: x / 0.7),
        "one range of inputs without its factor": changed(
            "1.ssm_in.weight", lambda x: np.concatenate((x[:72] / 0.9, x[72:]))
        ),
    },
    "glm 5": {
        "keys of the expansion not turned": changed("0.attn_k_b.weight", lambda x: rotated(x)),
        "the indexer's weights left out": changed("0.indexer.proj.weight", np.ones_like),
        "the indexer's key norm without its bias": changed("2.indexer.k_norm.bias", lambda x: x + 1),
    },
    "mistral4": {"low ranks swapped": changed("0.attn_kv_a_mqa.weight", rows((8, 28), (0, 8)))},
    "minicpm3": {"values before keys": changed("0.attn_kv_b.weight", lambda x: x.reshape(8, 22, -1)[:, ::-1])},
    "kimi linear": {
        "fading and gate swapped": swapped("0.ssm_f_b.weight", "0.ssm_g_b.weight"),
        "convolutions swapped": swapped("0.ssm_conv1d_q.weight", "0.ssm_conv1d_k.weight"),
        "A as its logarithm": changed("1.ssm_a", lambda x: np.log(-x)),
    },
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelGraph]:
    folder = tmp_path_factory.mktemp("hybrids")

    @cache
    def made(name: str) -> ModelGraph:
        make(name, folder / name)
        return understand(open_checkpoint(str(folder / name)))

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("name", "what"), [(name, what) for name, kinds in MUTATIONS.items() for what in kinds])
def test_the_forward_pass_alone_shows_it(
    name: str, what: str, source: Callable[[str], ModelGraph], tmp_path: Path
) -> None:
    wrong = write(source(name), tmp_path / "wrong.gguf", MUTATIONS[name][what])
    with pytest.raises(VerificationError, match="forward pass"):
        check_logits(source(name), understand(open_checkpoint(str(wrong))))


@pytest.mark.parametrize("name", MUTATIONS)
def test_an_untouched_copy_passes(name: str, source: Callable[[str], ModelGraph], tmp_path: Path) -> None:
    written = understand(open_checkpoint(str(write(source(name), tmp_path / "x.gguf"))))
    proof = check_logits(source(name), written)
    assert proof.relative_rms <= proof.limit
