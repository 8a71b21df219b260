"""A verifier that cannot fail proves nothing: every kind of mistake a converter can make must be seen.

Each mutation is made in a finished, correct output. It must be caught by the comparison of values and metadata, and
independently by the forward passes alone, which know nothing of the tables that both sides of a converter share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import Case, compare_outputs
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.proof.tensors import Encoding, Sides
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import CorruptError, VerificationError
from ggferry.formats.gguf.values import Value
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from helpers.builders import Llama

MODEL = Llama(kind="F32", version=1)
SIZES = {"n_head": MODEL.n_head, "n_head_kv": MODEL.n_head_kv}
Tensors = dict[str, np.ndarray]
Keys = dict[str, Value]


def permuted(name: str, heads: str, inverse: bool = False) -> Callable[[Tensors, Keys], None]:
    """As if the permutation Hugging Face sources need had been applied, or undone, where none is due."""
    layout = heads_halves_to_pairs(heads).bind(SIZES)
    layout = layout.inverse() if inverse else layout

    def mutate(tensors: Tensors, keys: Keys) -> None:
        for block in range(MODEL.n_layer):
            key = f"blk.{block}.{name}.weight"
            tensors[key] = layout.apply(tensors[key])

    return mutate


def swapped(a: str, b: str) -> Callable[[Tensors, Keys], None]:
    def mutate(tensors: Tensors, keys: Keys) -> None:
        tensors[f"blk.1.{a}.weight"], tensors[f"blk.1.{b}.weight"] = (
            tensors[f"blk.1.{b}.weight"], tensors[f"blk.1.{a}.weight"],
        )

    return mutate


def changed(key: str, factor: float) -> Callable[[Tensors, Keys], None]:
    def mutate(tensors: Tensors, keys: Keys) -> None:
        value = keys[f"llama.{key}"]
        keys[f"llama.{key}"] = replace(value, data=type(value.data)(value.data * factor))

    return mutate


def one_block_negated(tensors: Tensors, keys: Keys) -> None:
    """What a flipped sign of one scale does: 32 values of one row."""
    tensors["blk.2.ffn_down.weight"][5, 32:64] *= -1


def one_value(tensors: Tensors, keys: Keys) -> None:
    tensors["output.weight"][17, 3] += 0.01


MUTATIONS = {
    "q permuted": permuted("attn_q", "n_head"),
    "q unpermuted": permuted("attn_q", "n_head", inverse=True),
    "k permuted": permuted("attn_k", "n_head_kv"),
    "k permuted with the wrong head count": permuted("attn_k", "n_head"),
    "gate and up swapped": swapped("ffn_gate", "ffn_up"),
    "k and v swapped": swapped("attn_k", "attn_v"),
    "q and output swapped": swapped("attn_q", "attn_output"),
    "norms swapped": swapped("attn_norm", "ffn_norm"),
    "eps": changed("attention.layer_norm_rms_epsilon", 10),
    "rope base": changed("rope.freq_base", 1.5),
    "rope dimensions": changed("rope.dimension_count", 0.5),
    "one scale": one_block_negated,
    "one value": one_value,
}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("mutations")
    source = MODEL.write(folder / "m.bin")
    return source, Path(convert(Request(str(source), str(folder / "right.gguf")))[0].path)


def rewritten(right: Path, path: Path, mutate: Callable[[Tensors, Keys], None]) -> Path:
    found = open_gguf(str(right))
    tensors = {
        name: np.frombuffer(found.files[0].read(ref.spans[0].offset, ref.nbytes), "<f4").reshape(ref.shape).copy()
        for name, ref in found.tensors.items()
    }
    keys = dict(found.metadata)
    mutate(tensors, keys)
    write_gguf(path, keys, [(name, found.tensors[name].type, array.shape, array) for name, array in tensors.items()])
    return path


def test_an_untouched_copy_passes(right: tuple[Path, Path], tmp_path: Path) -> None:
    source, output = right
    copy = rewritten(output, tmp_path / "copy.gguf", lambda tensors, keys: None)
    assert copy.read_bytes() == output.read_bytes()
    (proof,) = compare_outputs([Case(Sides(graph_of(str(source)), graph_of(str(copy)), Encoding()), "full")])
    assert proof.logits is not None and proof.logits.relative_rms == 0.0


@pytest.mark.parametrize("name", MUTATIONS)
def test_values_and_metadata_show_it(name: str, right: tuple[Path, Path], tmp_path: Path) -> None:
    source, output = right
    wrong = rewritten(output, tmp_path / "wrong.gguf", MUTATIONS[name])
    with pytest.raises(VerificationError):
        compare_outputs([Case(Sides(graph_of(str(source)), graph_of(str(wrong)), Encoding()), "fast")])


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_forward_pass_alone_shows_it(name: str, right: tuple[Path, Path], tmp_path: Path) -> None:
    source, output = right
    wrong = rewritten(output, tmp_path / "wrong.gguf", MUTATIONS[name])
    with pytest.raises(VerificationError, match="forward pass"):
        check_logits(graph_of(str(source)), graph_of(str(wrong)))


@pytest.mark.parametrize(
    ("key", "value"), [("attention.head_count_kv", 6), ("block_count", 2), ("feed_forward_length", 96)]
)
def test_counts_that_the_tensors_contradict_do_not_even_bind(
    key: str, value: int, right: tuple[Path, Path], tmp_path: Path
) -> None:
    def mutate(tensors: Tensors, keys: Keys) -> None:
        keys[f"llama.{key}"] = replace(keys[f"llama.{key}"], data=value)

    with pytest.raises(CorruptError):
        graph_of(str(rewritten(right[1], tmp_path / "wrong.gguf", mutate)))


def test_a_missing_tensor_is_seen(right: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"attn_v"):
        graph_of(str(rewritten(right[1], tmp_path / "w.gguf", lambda t, k: t.__delitem__("blk.1.attn_v.weight"))))


def test_wrong_head_count_is_seen(right: tuple[Path, Path], tmp_path: Path) -> None:
    """Half as many heads of twice the size fit every shape; only the forward pass tells."""
    source, output = right

    def mutate(tensors: Tensors, keys: Keys) -> None:
        for key, value in (("head_count", 2), ("head_count_kv", 1)):
            keys[f"llama.attention.{key}"] = replace(keys[f"llama.attention.{key}"], data=value)
        keys["llama.rope.dimension_count"] = replace(keys["llama.rope.dimension_count"], data=48)

    wrong: ModelGraph = graph_of(str(rewritten(output, tmp_path / "wrong.gguf", mutate)))
    with pytest.raises(VerificationError, match="forward pass"):
        check_logits(graph_of(str(source)), wrong)
