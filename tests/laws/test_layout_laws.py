"""Layouts: the inverse undoes, blocks are moved whole, and rows come from where the array form says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.converters.schema.expressions import evaluate, holds, solve
from ggferry.converters.schema.layouts.base import SAME, Layout, Same, Then, row_count
from ggferry.converters.schema.layouts.columns import Columns
from ggferry.converters.schema.layouts.order import (
    Heads,
    Rearrange,
    TailPairs,
    TrailingBlocks,
    heads_halves_to_pairs,
    heads_to_qkv,
    rotary_halves_to_pairs,
)
from ggferry.converters.schema.layouts.parts import (
    Concat,
    Pick,
    Reshape,
    Split,
    Squeeze,
    Stack,
    Transpose,
    Unsqueeze,
    Unstack,
)
from ggferry.converters.schema.layouts.values import ADD_ONE, NEG_EXP, Halved, Scaled
from ggferry.quant.codec import codecs

SIZES = {"n_head": 6, "n_head_kv": 3, "head_dim": 16, "n_embd": 96, "n_rot": 10}
QKV = Rearrange("(g three d) -> (three g d)", (("g", "n_head"), ("three", 3)))
UNARY = {
    "same": (SAME, (96, 64)),
    "q": (heads_halves_to_pairs("n_head"), (96, 64)),
    "k": (heads_halves_to_pairs("n_head_kv"), (48, 64)),
    "bias": (heads_halves_to_pairs("n_head"), (96,)),
    "qkv": (QKV, (288, 64)),
    "experts": (heads_halves_to_pairs("n_head"), (4, 24, 64)),
    "groups": (heads_to_qkv("n_head_kv"), (192, 64)),
    "groups back": (heads_to_qkv("n_head_kv").bind(SIZES).inverse(), (192, 64)),
    "groups of a bias": (heads_to_qkv("n_head"), (288,)),
    "behind": (TrailingBlocks("n_embd", heads_halves_to_pairs("n_head")), (192, 64)),
    "behind, of a stack": (TrailingBlocks(2, heads_halves_to_pairs("n_head")), (4, 48, 64)),
    "turned part of heads": (rotary_halves_to_pairs("n_head"), (96, 64)),
    "turned part of a bias": (rotary_halves_to_pairs("n_head_kv"), (48,)),
    "turned rear of heads": (TailPairs("n_head", 6, 1), (96, 64)),
    "turned rear of heads, back": (TailPairs("n_head", 6, 1).bind(SIZES).inverse(), (96, 64)),
    "columns": (Columns(heads_halves_to_pairs("n_head_kv")), (5, 48)),
    "squeeze": (Squeeze(1), (48, 1, 64)),
    "unsqueeze": (Unsqueeze(1), (48, 64)),
    "then": (Then(QKV, heads_halves_to_pairs("n_head")), (288, 64)),
    "transpose": (Transpose(), (48, 64)),
    "stacked transpose": (Transpose(), (4, 48, 64)),
}


def bound(layout):
    return layout.bind(SIZES)


@pytest.mark.parametrize("name", UNARY)
def test_inverse_undoes(name: str) -> None:
    layout, shape = UNARY[name]
    layout = bound(layout)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = layout.apply(x)
    assert y.shape == layout.shape(shape)
    assert np.array_equal(layout.inverse().apply(y), x)
    assert layout.inverse().shape(y.shape) == shape


@pytest.mark.parametrize("layout", [NEG_EXP, NEG_EXP.inverse(), ADD_ONE, ADD_ONE.inverse()], ids=repr)
def test_pointwise_inverse(layout: Layout) -> None:
    below = layout == NEG_EXP.inverse()
    x = -np.linspace(0.5, 4, 50, dtype=np.float32) if below else np.linspace(-2, 2, 50, dtype=np.float32)
    assert np.allclose(layout.inverse().apply(layout.apply(x)), x, rtol=1e-6, atol=1e-6)


def test_halves_to_pairs_is_the_specifications_permute() -> None:
    """gguf-spec.md, LLaMA: reshape(n_head, 2, rows // n_head // 2, …).swapaxes(1, 2)."""
    x = np.arange(96 * 8).reshape(96, 8)
    expected = x.reshape(6, 2, 96 // 6 // 2, 8).swapaxes(1, 2).reshape(x.shape)
    assert np.array_equal(bound(heads_halves_to_pairs("n_head")).apply(x), expected)
    # With these sizes neither the identity nor an involution, so a dropped or doubled one is seen.
    assert not np.array_equal(expected, x)
    assert not np.array_equal(bound(heads_halves_to_pairs("n_head")).apply(expected), x)


def test_the_rear_of_heads_goes_from_halves_to_pairs() -> None:
    layout = TailPairs(2, 1, "flag")
    assert list(layout.bind({"flag": 1}).apply(np.arange(14))) == [0, 1, 4, 2, 5, 3, 6, 7, 8, 11, 9, 12, 10, 13]
    assert layout.bind({"flag": 0}) == SAME


def test_a_matrix_of_one_row_is_a_vector() -> None:
    """Qwen2-MoE's gate of the shared expert: (1, n) in Hugging Face's files, (n,) in GGUF."""
    x = np.arange(64).reshape(1, 64)
    assert np.array_equal(Squeeze(0).apply(x), x[0]) and np.array_equal(Unsqueeze(0).apply(x[0]), x)


@pytest.mark.parametrize(
    ("shape", "to"), [((1, 1, 96), ("n_embd",)), ((96,), ("n_embd", 1)), ((96,), ("n_head", "head_dim"))]
)
def test_reshaped_values_keep_their_order(shape: tuple[int, ...], to: tuple[str | int, ...]) -> None:
    x = np.arange(96).reshape(shape)
    y = bound(Reshape(to)).apply(x)
    assert y.shape == bound(Reshape(to)).shape(shape) and np.array_equal(y.ravel(), x.ravel())
    assert np.array_equal(Reshape(shape).apply(y), x)


def test_halving_is_exact_and_undone() -> None:
    """RWKV-6's blocks beyond the first `rescale_every`."""
    x = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    layout = Halved("n // every").bind({"n": 7, "every": 3})
    y = layout.apply(x)
    assert y.dtype == np.float32 and np.array_equal(y, x / 4) and np.array_equal(layout.inverse().apply(y), x)
    assert Halved("n // every").bind({"n": 2, "every": 3}) == SAME


def test_parts_of_a_tensor_are_moved_alone() -> None:
    x = np.arange(192 * 48).reshape(192, 48)
    heads, pairs = bound(heads_halves_to_pairs("n_head")), bound(heads_halves_to_pairs("n_head_kv"))
    expected = np.concatenate((x[:96], heads.apply(x[96:])))
    assert np.array_equal(bound(TrailingBlocks("n_embd", heads)).apply(x), expected)
    rotated = x[:96].reshape(6, 16, 48)
    first = rotated[:, :10].reshape(6, 2, 5, 48).swapaxes(1, 2).reshape(6, 10, 48)
    expected = np.concatenate((first, rotated[:, 10:]), 1).reshape(96, 48)
    assert np.array_equal(bound(rotary_halves_to_pairs("n_head")).apply(x[:96]), expected)
    assert np.array_equal(Columns(pairs).apply(x), pairs.apply(x.T).T)


def test_ranges_of_rows_are_multiplied_one_factor_after_another_in_float32() -> None:
    """llama.cpp `conversion/falcon_h1.py`: tensor * ssm_in, then each range by its own."""
    x = np.random.default_rng(1).standard_normal((16, 7)).astype(np.float32)
    layout = Scaled((("one", "many[0]"), ("one", "many[1]")), ("n_rot", 6)).bind(
        {**SIZES, "one": 1.1, "many": (0.7, 3.0)}
    )
    y = layout.apply(x)
    expected = x * np.float32(1.1)
    expected[:10] *= np.float32(0.7)
    expected[10:] *= np.float32(3.0)
    assert y.dtype == np.float32 and np.array_equal(y, expected)
    assert np.array_equal(layout.scaled(x[8:13], 8), expected[8:13])
    assert np.allclose(layout.inverse().apply(y), x, rtol=1e-6)
    assert Scaled((("one",),)).bind({"one": 1.0}) == SAME and layout.widens and not layout.lossless
    with pytest.raises(ValueError):
        layout.shape((15, 7))


def test_concat_and_its_parts() -> None:
    a, b = np.arange(12).reshape(3, 4), np.arange(12, 32).reshape(5, 4)
    joined = Concat().apply(a, b)
    assert np.array_equal(joined, np.concatenate([a, b]))
    for part, piece in zip(Concat().parts(a.shape, b.shape), (a, b), strict=True):
        assert np.array_equal(part.apply(joined), piece)


def test_stack_and_unstack() -> None:
    items = [np.arange(12).reshape(3, 4) + 100 * i for i in range(4)]
    stacked = Stack().apply(*items)
    assert np.array_equal(stacked, np.stack(items))
    for i, item in enumerate(items):
        assert np.array_equal(Unstack(i).apply(stacked), item)


def test_pick_takes_its_rows_of_every_group() -> None:
    """DeepSeek's kv_b_proj, gguf-py's view: (heads, keys + values, rank) split on the middle axis."""
    x = np.arange(96 * 8).reshape(96, 8)
    grouped = x.reshape(6, 16, 8)
    keys, values = bound(Pick("n_head", 0, 10)), bound(Pick("n_head", 10, "head_dim"))
    assert np.array_equal(keys.apply(x), grouped[:, :10]) and np.array_equal(values.apply(x), grouped[:, 10:])
    rotated = Then(keys, Transpose())
    assert rotated.shape(x.shape) == (6, 8, 10) and np.array_equal(rotated.apply(x), grouped[:, :10].swapaxes(1, 2))


def test_pick_takes_one_half_of_every_matrix_of_a_stack() -> None:
    """GraniteMoE's input_linear, gate and up of an expert in one matrix: `chunk(2, dim=-2)`."""
    x = np.arange(6 * 20 * 8).reshape(6, 20, 8)
    gate, up = bound(Pick("n_head", 0, 10)), bound(Pick("n_head", 10, 20))
    assert np.array_equal(gate.apply(x), x[:, :10]) and np.array_equal(up.apply(x), x[:, 10:])


def test_vectors_are_stacked_as_rows() -> None:
    vectors = [np.arange(5) + 10 * i for i in range(3)]
    assert np.array_equal(Stack().apply(*vectors), np.stack(vectors))
    source, row = Stack().locate(np.arange(3), *(v.shape for v in vectors))
    assert source.tolist() == [0, 1, 2] and row.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", [name for name in UNARY if UNARY[name][0].block_safe])
def test_rows_come_from_where_the_array_form_says(name: str) -> None:
    layout, shape = UNARY[name]
    layout = bound(layout)
    x = np.arange(np.prod(shape)).reshape(shape)
    whole = layout.apply(x)
    rows = row_count(whole.shape)
    wanted = np.random.default_rng(1).permutation(rows)[: rows // 2]
    source, row = layout.locate(wanted, shape)
    assert (source == 0).all()
    table = x.reshape(row_count(shape), -1)
    assert np.array_equal(table[row], whole.reshape(rows, -1)[wanted])


@pytest.mark.parametrize("name", sorted(name for name, one in codecs().items() if one.type.interleaved == 1))
@pytest.mark.parametrize("layout", ["q", "k", "qkv", "then"])
def test_block_safe_layouts_commute_with_every_codec(name: str, layout: str) -> None:
    codec = codecs()[name]
    form, shape = bound(UNARY[layout][0]), UNARY[layout][1]
    columns = max(64, codec.type.elements)
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 60, (shape[0], codec.type.row_bytes(columns)), dtype=np.uint8)
    moved = codec.decode(form.apply(blocks), columns)
    decoded = form.apply(codec.decode(blocks, columns))
    assert np.array_equal(moved, decoded, equal_nan=True)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.permutations(["a", "b", "c"]))
@settings(max_examples=50, deadline=None)
def test_any_row_permutation_has_an_inverse(a: int, b: int, c: int, order: list[str]) -> None:
    layout = Rearrange(f"(a b c) -> ({' '.join(order)})", (("a", a), ("b", b)))
    x = np.arange(a * b * c * 2).reshape(a * b * c, 2)
    y = layout.apply(x)
    expected = x.reshape(a, b, c, 2).transpose([*["abc".index(axis) for axis in order], 3]).reshape(x.shape)
    assert np.array_equal(y, expected)
    assert np.array_equal(layout.inverse().apply(y), x)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (heads_halves_to_pairs("n_head"), (95, 64)),
        (Split("n_embd", 200), (150, 4)),
        (Squeeze(1), (48, 2, 64)),
        (Transpose(), (4,)),
        (Transpose(), (4, 5, 6, 7)),
        (Pick("n_head", 0, "head_dim"), (95, 4)),
        (Pick("n_head", 0, "head_dim"), (90, 4)),
        (Pick("n_head", 3, 3), (96, 4)),
        (Pick("n_head", 0, 4), (96,)),
        (Pick("n_head", 0, 4), (3, 20, 8)),
        (Pick("n_head", 0, 21), (6, 20, 8)),
        (Unstack(4), (4, 5, 6)),
        (TrailingBlocks("n_embd", heads_halves_to_pairs("n_head")), (96, 4)),
        (TrailingBlocks("n_embd", heads_halves_to_pairs("n_head")), (97, 4)),
        (Columns(heads_halves_to_pairs("n_head")), (4, 97)),
        (rotary_halves_to_pairs("n_head"), (95, 4)),
        (Heads("n_head", 17, SAME), (96, 4)),
        (Reshape(("n_embd",)), (95,)),
        (Reshape(("n_embd",), of=("n_head", "head_dim")), (8, 12)),
    ],
)
def test_what_does_not_fit_is_refused(layout, shape) -> None:
    with pytest.raises(ValueError):
        bound(layout).shape(shape)


def test_unknown_size_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        heads_halves_to_pairs("n_expert").bind(SIZES)


def test_same_is_its_own_inverse_and_safe() -> None:
    assert Same().inverse() == SAME and SAME.block_safe and not Transpose().block_safe


def test_expressions() -> None:
    assert evaluate("n_head * head_dim", SIZES) == 96
    assert evaluate("n_embd / n_head", SIZES) == 16
    with pytest.raises(ValueError):
        evaluate("n_embd / 7", SIZES)
    with pytest.raises(ValueError):
        evaluate("n_embd / (n_head - 6)", SIZES)
    with pytest.raises(ValueError):
        evaluate("__import__('os')", SIZES)
    assert solve("n_ff", 160, SIZES) == ("n_ff", 160)
    assert solve("n_kv*head_dim", 48, SIZES) == ("n_kv", 3)
    assert solve("2*n_ff + n_embd", 416, SIZES) == ("n_ff", 160)
    assert solve("n_embd / n_x", 6, SIZES) == ("n_x", 16)
    assert solve("n_x*n_y", 48, SIZES) is None
    assert solve("n_head", 48, SIZES) is None
    with pytest.raises(ValueError):
        solve("n_kv*head_dim", 49, SIZES)
    assert holds("n_head_kv < n_head and n_embd == 96", SIZES)
    assert not holds("n_head_kv != 3", SIZES) and not holds("unknown < 3", SIZES) and holds("", SIZES)


def test_a_size_of_every_block_is_that_of_the_block() -> None:
    sizes = {"n_head_kv": (2, 0, 4), "head_dim": 8}
    assert [evaluate("n_head_kv * head_dim", {**sizes, "n": n}) for n in range(3)] == [16, 0, 32]
    assert [holds("n_head_kv == 0", {**sizes, "n": n}) for n in range(3)] == [False, True, False]
    with pytest.raises(ValueError, match="nothing of block 3"):
        evaluate("n_head_kv", {**sizes, "n": 3})
