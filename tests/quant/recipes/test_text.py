"""The texts users write: recipe files, --tensor-type, --prune-layers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggferry.quant.recipes.choose import ModelFacts, Recipe, TensorInfo, choose, recipe
from ggferry.quant.recipes.mixtures import recipe_ids
from ggferry.quant.recipes.rules import FLAGS, NUMBERS, ROLES, WORDS, Amount, Condition, Rule, parse_rule
from ggferry.quant.recipes.text import (
    format_recipe,
    parse_layers,
    parse_recipe,
    parse_tensor_type,
    parse_tensor_types,
    prune,
)
from ggferry.quant.types import BlockError
from helpers.third_party_fixtures import ROOT

MINE = """
# ours, for a model of 32 layers
recipe    careful
base      Q4_K_M

attn_v,attn_k                    -> Q8_0     # V and K are small
ffn_down  layer<n/8 !imatrix     -> q6_k
blk.*.ffn_gate.weight            -> Keep
blk.31.* columns>=512            -> Q5_K
"""


def test_rules_see_how_the_source_stores_a_tensor() -> None:
    """In any case; where nothing else is said, its source is its type."""
    mine = parse_recipe("default keep\nany source=FP8,nf4 -> Q8_0\nany source!=fp8,bf16 -> Q6_K\n")
    assert parse_recipe(format_recipe(mine)) == mine
    sources = {"a": "fp8", "b": "int4", "c": ""}
    tensors = [TensorInfo(f"blk.0.{name}.weight", (256, 256), "BF16", source=kind) for name, kind in sources.items()]
    types = {name[6]: choice.type for name, choice in choose(mine, tensors, ModelFacts("llama", 1)).items()}
    assert types == {"a": "Q8_0", "b": "Q6_K", "c": "BF16"}


@pytest.mark.parametrize("name", [*recipe_ids(), "copy", "keep"])
def test_built_in_recipes_can_be_written_and_read(name: str) -> None:
    assert parse_recipe(format_recipe(recipe(name))) == recipe(name)


def test_a_recipe_on_top_of_another() -> None:
    mine, base = parse_recipe(MINE), recipe("Q4_K_M")
    assert (mine.name, mine.default, mine.file_type) == ("careful", "Q4_K", 15)
    assert mine.rules[: len(base.rules)] == base.rules and len(mine.rules) == len(base.rules) + 4
    assert parse_recipe(format_recipe(mine)) == mine
    facts = ModelFacts("llama", 32, 8, 4)
    tensors = [
        TensorInfo(f"blk.{block}.{role}.weight", (512, 256 if role == "attn_q" else 512), "F16")
        for block in range(32)
        for role in ("attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up")
    ]
    types = {name: choice.type for name, choice in choose(mine, tensors, facts).items()}
    assert {types[f"blk.{block}.attn_v.weight"] for block in range(31)} == {"Q8_0"}
    assert {types[f"blk.{block}.ffn_down.weight"] for block in range(4)} == {"Q6_K"}
    assert types["blk.4.ffn_down.weight"] == "Q4_K" and types["blk.6.ffn_down.weight"] == "Q6_K"  # the base's `more`
    assert types["blk.9.ffn_gate.weight"] == "F16"
    last = {name: kind for name, kind in types.items() if name.startswith("blk.31.")}
    assert set(last.values()) == {"Q5_K", "Q4_K"} and last["blk.31.attn_q.weight"] == "Q4_K"


def test_own_recipes_without_a_base() -> None:
    mine = parse_recipe("default keep\nfile_type Q5_K_S\nimatrix Q3_K q2_k\n\nany type=F16,BF16 -> Q5_K\n", "x")
    assert mine == Recipe(
        "x",
        "keep",
        (Rule(("any",), (Condition("type", "=", ("F16", "BF16")),), "Q5_K"),),
        16,
        recipe("F16").needs_imatrix | {"Q3_K", "Q2_K"},
    )
    tensors = [TensorInfo(f"blk.{i}.a.weight", (4, 256), kind) for i, kind in enumerate(("F16", "Q8_0", "BF16", "F32"))]
    assert [c.type for c in choose(mine, tensors, ModelFacts("x", 4)).values()] == ["Q5_K", "Q8_0", "Q5_K", "F32"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a line 'base NAME' or 'default TYPE'"),
        ("attn_v -> Q4_K", "needs a line 'base NAME' or 'default TYPE'"),
        ("base Q4_K_M\n\nattn_vv -> Q4_K", "line 3: 'attn_vv' is neither a role"),
        ("base Q4_K_M\nattn_v -> Q4_M", "line 2: unknown tensor type 'Q4_M'"),
        ("base Q4_K_M\nattn_v -> I32", "line 2: I32 is not a type for weights"),
        ("base Q4_K_M\nattn_v ->", "line 2: 'attn_v ->' is not 'PATTERN"),
        ("base Q4_K_M\n-> Q4_K", "line 2: '-> Q4_K' is not 'PATTERN"),
        ("base Q4_K_M\nattn_v -> Q4_K Q5_K", "line 2: .* is not 'PATTERN"),
        ("base Q4_K_M\nattn_v layer -> Q4_K", "line 2: 'layer': layer is compared with a number: layer<n/8"),
        ("base Q4_K_M\nattn_v layer<x -> Q4_K", "line 2: 'x' is not a number, nor a share"),
        ("base Q4_K_M\nattn_v layer<n/0 -> Q4_K", "line 2: 'n/0' is not a number, nor a share"),
        ("base Q4_K_M\nattn_v more=3 -> Q4_K", "line 2: 'more=3': more is a flag: more or !more"),
        ("base Q4_K_M\nattn_v arch<llama -> Q4_K", "line 2: .*arch is compared with words"),
        ("base Q4_K_M\nattn_v !arch=llama -> Q4_K", "line 2: .*arch is compared with words"),
        ("base Q4_K_M\nattn_v type=Q4_9 -> Q4_K", "line 2: unknown tensor type 'Q4_9'"),
        ("base Q4_K_M\nattn_v depth<3 -> Q4_K", "line 2: 'depth<3': unknown condition; known: more, imatrix"),
        ("base Q4_K_M\nattn_v layer < 3 -> Q4_K", "line 2: 'layer': layer is compared with a number"),
        ("base Q4_K_M\nattn_v <3 -> Q4_K", "line 2: '<3' is not a condition"),
        ("base nothing", "line 1: unknown quantization 'nothing'"),
        ("base Q4_K\nbase Q5_K", "line 2: base a second time"),
        ("default Q4_K\nbase Q5_K", "line 2: base stands before the other headings"),
        ("default", "line 1: default without a value"),
        ("default I8", "line 1: I8 is not a type for weights"),
        ("file_type Q7", "line 1: 'Q7' is not the name of a file type"),
        ("color blue", "line 1: 'color' is not a heading"),
        ("base Q4_K\nattn_v -> Q6_K\nfile_type Q8_0", "line 3: .*headings stand before the rules"),
        ("\n" * 10_001, "10001 lines; at most 10000"),
        ("a" * 4097, "line 1: 4097 characters; at most 4096"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        parse_recipe(text)


@given(st.text(max_size=80) | st.text("attn_v\n -><=!n/8Q4Kbase,#", max_size=80))
def test_any_text_is_a_recipe_or_a_block_error(text: str) -> None:
    for parse in (parse_recipe, parse_tensor_types, parse_layers):
        try:
            parse(text)  # type: ignore[operator]
        except BlockError as error:
            assert str(error)


AMOUNTS = st.builds(Amount, st.integers(0, 999_999_999)) | st.builds(Amount, st.integers(0, 9999), st.integers(1, 9999))
TYPES = st.sampled_from(["Q4_K", "F16", "IQ2_XXS"])
CONDITIONS = st.one_of(
    st.builds(Condition, st.sampled_from(list(FLAGS)), st.sampled_from(["", "!"])),
    st.builds(Condition, st.just("type"), st.sampled_from(["=", "!="]), st.lists(TYPES, min_size=1).map(tuple)),
    st.builds(Condition, st.just("arch"), st.sampled_from(["=", "!="]), st.just(("llama", "glm5-next"))),
    st.builds(Condition, st.sampled_from(list(NUMBERS)), st.sampled_from(["<", "<=", ">", ">=", "=", "!="]), AMOUNTS),
)
RULES = st.builds(
    Rule,
    st.lists(st.sampled_from([*ROLES, "any", "other", "blk.*.x", "*[qk]*"]), min_size=1, max_size=3).map(tuple),
    st.lists(CONDITIONS, max_size=4).map(tuple),
    TYPES | st.just("keep"),
)


@given(RULES)
def test_every_rule_can_be_written_and_read(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@given(st.integers(0, 500), st.integers(0, 500))
def test_shares_of_the_layers_round_down(i: int, n: int) -> None:
    condition = parse_rule("ffn_down layer<7n/8 -> F16").when[0]
    assert isinstance(condition.value, Amount)
    assert (i < condition.value.of(n)) == (8 * i + 8 <= 7 * n)  # i < floor(7n/8), in whole numbers


def test_tensor_type_arguments() -> None:
    assert parse_tensor_type("attn_v=q6_k") == ("attn_v", "Q6_K")
    assert parse_tensor_type(r"BLK\.[0-3]\.FFN_(up|down)=f16") == (r"blk\.[0-3]\.ffn_(up|down)", "F16")
    assert parse_tensor_type(r"a\\B=f16") == (r"a\\b", "F16")
    text = "attn_v=q8_0 ffn_down=q6_k\n\n\tblk\\.0\\.=F16\n"
    assert parse_tensor_types(text) == (("attn_v", "Q8_0"), ("ffn_down", "Q6_K"), (r"blk\.0\.", "F16"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attn_v", "'attn_v' is not REGEX=TYPE"),
        ("=q4_0", "is not REGEX=TYPE"),
        ("attn_v=", "is not REGEX=TYPE"),
        ("attn_v=q4_9", "unknown tensor type 'q4_9'"),
        ("attn_v=q8_1", "Q8_1 is not a type for weights"),
        (r"\S+_v=q4_0", r"patterns become lower case, and \\S would mean \\s"),
        ("a[=q4_0", "is not a regular expression"),
    ],
)
def test_wrong_tensor_types(text: str, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        parse_tensor_type(text)
    with pytest.raises(BlockError, match=r"^line 3: "):
        parse_tensor_types(f"attn_q=q4_0\n\nattn_k=q5_0 {text}")


def test_pruned_blocks_are_left_out_and_the_others_renumbered() -> None:
    names = ["output.weight", *(f"blk.{block}.attn_q.weight" for block in range(12)), "enc.blk.3.x", "enc.blk.4.x"]
    renamed = prune(names, parse_layers("3, 0,3"))
    assert renamed["output.weight"] == "output.weight"
    assert renamed["blk.0.attn_q.weight"] is None and renamed["blk.3.attn_q.weight"] is None
    assert renamed["enc.blk.3.x"] is None and renamed["enc.blk.4.x"] == "enc.blk.2.x"
    stay = [name for name in renamed.values() if name and name.startswith("blk")]
    assert stay == [f"blk.{block}.attn_q.weight" for block in range(10)]
    assert renamed["blk.11.attn_q.weight"] == "blk.9.attn_q.weight"
    assert prune(names, ()) == {name: name for name in names}


def test_layers_that_cannot_be_pruned() -> None:
    for text in ("", "a", "1,,2", "-1", "1;2", "1" * 10):
        with pytest.raises(BlockError, match="is not a list of block numbers"):
            parse_layers(text)
    with pytest.raises(BlockError, match="no block 7 to prune; the model has 1"):
        prune(["blk.0.a"], [0, 7])
    with pytest.raises(BlockError, match="every block would be pruned"):
        prune(["blk.0.a", "blk.1.a"], [0, 1])


def test_the_documentation_is_true() -> None:
    """Every recipe in docs/recipes.md parses; every word of the language is explained there."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    examples = re.findall(r"```recipe\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= 2
    for text in examples:
        parsed = parse_recipe(text)
        assert parse_recipe(format_recipe(parsed)) == parsed
    for word in (*ROLES, *FLAGS, *WORDS, *NUMBERS):
        assert f"`{word}`" in page, word
