"""A layout with other values of its keys is the one that would be laid out anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggferry.formats.gguf.header_layout import lay_out, with_values
from ggferry.formats.gguf.values import ValueType, array, string, u32
from ggferry.quant.codec import block_type

TENSORS = [("a", block_type("F32"), (3, 40)), ("b", block_type("Q8_0"), (2, 64)), ("c", block_type("F16"), (7,))]
KEYS = ("general.name", "general.tags", "llama.block_count", "general.version")


def keys(name: str, tags: list[str], version: str) -> dict[str, object]:
    return dict(zip(KEYS, (string(name), array(ValueType.STRING, tags), u32(7), string(version)), strict=True))


WORDS = st.text("abcé", max_size=40)


@given(st.lists(WORDS, min_size=2, max_size=2), st.lists(WORDS, max_size=3), st.lists(WORDS, min_size=2, max_size=2))
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("alignment", [32, 64])
def test_the_layout_is_that_of_the_new_values(
    alignment: int, big_endian: bool, names: list[str], tags: list[str], versions: list[str]
) -> None:
    before, after = keys(names[0], [], versions[0]), keys(names[1], tags, versions[1])
    whole = [lay_out(each, TENSORS, alignment=alignment, big_endian=big_endian) for each in (before, after)]
    if alignment != 32:
        assert "general.alignment" not in before
    found = with_values(whole[0], before, after)
    if len(whole[0].header) == len(whole[1].header):
        assert found == whole[1]
    else:
        assert found is None


def test_what_is_not_done_by_the_header_alone() -> None:
    one = [TENSORS[0]]
    before, after = keys("a", [], "1"), keys("b", [], "1")
    assert with_values(lay_out(before, one), before, after) is None  # the last offset is 0: where does padding begin?
    assert with_values(lay_out(before, TENSORS), before, dict(reversed(after.items()))) is None
