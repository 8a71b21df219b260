"""Tables are parsed strictly: a word that nobody knows is an error that names file, line and word."""

from __future__ import annotations

import ast
import doctest
import re
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from ggferry.converters.architectures import qwen2
from ggferry.converters.forward.blocks.feed_forward import dense
from ggferry.converters.forward.blocks.rope import rotation
from ggferry.converters.forward.blocks.routing import route
from ggferry.converters.forward.evaluate import computation_name
from ggferry.converters.model_graph.open_checkpoint import (
    architectures,
    architectures_of_classes,
    architectures_of_headers,
    header_layouts,
)
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.recipe import Conventions, Recipe, recipe_of
from ggferry.converters.schema.roles import also, block, roles, varied
from ggferry.converters.schema.validate import validate
from ggferry.formats.errors import TableError, UnsupportedError
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout, readers
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockError, table
from helpers.held_weights import held_model
from helpers.parsed import parsed
from helpers.third_party_fixtures import ROOT

NORM = "output_norm.weight f32 : n_embd | hf model.norm.weight"


@pytest.mark.parametrize("spec", architectures().values(), ids=architectures())
def test_every_table_is_valid(spec: Architecture) -> None:
    validate(spec)


LINES = {
    "output_norm.weight optinal : n_embd | hf model.norm.weight": "optinal",
    "output_norm.weight f32 f32 : n_embd | hf model.norm.weight": "f32",
    "output_norm.weight when= : n_embd | hf model.norm.weight": "when=",
    "output_norm.weight when=n>0 and m : n_embd | hf model.norm.weight": "m",
    "output_norm.weight when=n = 0 : n_embd | hf model.norm.weight": "n = 0",
    "output_norm.weight when=n in m : n_embd | hf model.norm.weight": "n in m",
    "output_norm.weight when=0 < n < 3 : n_embd | hf model.norm.weight": "0 < n < 3",
    "output_norm.weight n_embd | hf model.norm.weight": "output_norm.weight n_embd | hf model.norm.weight",
    "output_norm.weight : | hf model.norm.weight": "output_norm.weight : | hf model.norm.weight",
    "output_norm.weight : n_embd": "output_norm.weight : n_embd",
    "output_norm.weight : n_embd | hf": "output_norm.weight : n_embd | hf",
    "output_norm.weight : n_embd | hf model.norm.weight | hf model.norm.bias": "hf",
    "output_norm.weight : n_embd | hf model.norm.weight @turn": "@turn",
    "output_norm.weight : n_embd | hf =llama3_factor": "=llama3_factor",
    "output_norm.weight : n_embd | hf model.norm.weight =llama3_factors": "model.norm.weight =llama3_factors",
    "output_norm.weight : n_embd**2 | hf model.norm.weight": "n_embd ** 2",
    "output_norm.weight : n_embd/ | hf model.norm.weight": "n_embd/",
    "output_norm.weight : round(n_embd) | hf model.norm.weight": "round(n_embd)",
    "output_norm.weight : -1 | hf model.norm.weight": "-1",
}


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_line_is_refused_with_its_word(line: str) -> None:
    table = roles(line)
    with pytest.raises(TableError) as caught:
        list(table)
    assert caught.value.found == LINES[line]


def test_an_error_names_the_line_it_is_on() -> None:
    table = block(
        """
        attn_norm.weight f32 : n_embd | hf input_layernorm.weight
        ffn_norm.weight optinal : n_embd | hf post_attention_layernorm.weight
        """
    )
    with pytest.raises(TableError) as caught:
        len(table)
    file, _, line = str(caught.value.path).rpartition(":")
    assert file == __file__
    with open(file) as text:
        assert "optinal : n_embd | hf post_attention" in text.read().splitlines()[int(line) - 1]
    assert "found optinal, expected f32, half, optional, plain, when=CONDITION" in str(caught.value)


CALLS: dict[str, Any] = {
    "a role twice": lambda: roles(NORM, roles(NORM)),
    "an unused layout": lambda: roles(NORM, norm=SAME),
    "an unused layout of also": lambda: also(roles(NORM), "meta", "output_norm.weight norm.weight", norm=SAME),
    "no such role": lambda: also(roles(NORM), "meta", "output_nrom.weight norm.weight"),
    "a role twice in also": lambda: also(roles(NORM), "meta", "output_norm.weight a\noutput_norm.weight b"),
    "no origin": lambda: also(roles(NORM), "meta", "output_norm.weight"),
    "no such base": lambda: varied(roles(NORM), "meta", "fh"),
    "a function for a layout": lambda: roles("a.weight : n | hf b @f", f=lambda values: None),
    "a layout for a function": lambda: roles("a.weight : n | hf =f", f=SAME),
    "a condition of a call": lambda: roles(NORM, when="n>0 and m"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused(name: str) -> None:
    table = CALLS[name]()
    with pytest.raises(TableError):
        list(table)


def test_prefixes_and_conditions_add_up() -> None:
    inner = block("attn_q.weight when=a == 1 or b == 1 : n_embd | hf q.weight", layer="l.{n}.", when="n > 2")
    (role,) = roles(inner, when="c == 1", under={"hf": "model."})
    assert role.name == "blk.{n}.attn_q.weight" and role.sources["hf"].patterns == ("model.l.{n}.q.weight",)
    assert role.when == "c == 1 and n > 2 and (a == 1 or b == 1)"


def changed(**changes: Any) -> Architecture:
    return replace(qwen2.SPEC, **changes)


def with_hparam(**facts: Any) -> Architecture:
    return changed(hparams=(*qwen2.HPARAMS, HParam("more", **facts)))


def with_dialect(**facts: Any) -> Architecture:
    hf = replace(qwen2.SPEC.dialect("hf"), **facts)
    return qwen2.SPEC.with_dialect(hf)


def with_role(line: str, **named: Any) -> Architecture:
    return changed(roles=roles(qwen2.ROLES, line, **named))


def with_vocab(**facts: Any) -> Architecture:
    return changed(headers=(HeaderLayout("more", (("ggml", None),), Struct("more", ""), ("a",), VocabLayout(**facts)),))


SPECS: dict[str, tuple[Architecture, str]] = {
    "an hparam in a size": (with_role("a.weight : n_embed | hf a"), "n_embed"),
    "an hparam in a condition": (with_role("a.weight when=tide == 0 : n_embd | hf a"), "tide"),
    "an hparam in a layout": (with_role("a.weight : n_embd | hf a @l", l=Split(0, "n_embed")), "n_embed"),
    "axes of a pattern": (with_role("a.weight : n_embd | hf a @l", l=Rearrange("(h d) -> (d)", ())), "(h d) -> (d)"),
    "an axis of a pattern": (with_role("a.weight : n_embd | hf a @l", l=Rearrange("(h d) -> (d h)", (("e", 2),))), "e"),
    "a size of an axis": (with_role("a.weight : n_embd | hf a @l", l=Rearrange("(h d) -> (d h)")), "(h d) -> (d h)"),
    "a dialect in a role": (with_role("a.weight : n_embd | fh a"), "fh"),
    "a block in one name": (with_role("blk.{n}.a.weight : n_embd | hf a"), "a"),
    "blocks nobody counts": (with_role("enc.blk.{n}.a.weight : n_embd | hf a.{n}"), "enc.blk."),
    "a derivation": (with_hparam(derive="@rope_dimension"), "rope_dimension"),
    "an hparam in a derivation": (with_hparam(derive="n_embed / n_head"), "n_embed"),
    "no derivation": (with_hparam(derive="n_embd if tied else 0"), "n_embd if tied else 0"),
    "a condition of each block": (with_hparam(implied="each n"), "n"),
    "a check": (with_hparam(check="0 < mroe"), "mroe"),
    "a number of items": (with_hparam(length="n_layers"), "n_layers"),
    "a place": (with_hparam(fields={"hf": "a||b"}), ""),
    "a blank in a place": (with_hparam(fields={"hf": "a b"}), "a b"),
    "a dialect of a place": (with_hparam(fields={"fh": "a"}), "fh"),
    "a key": (with_hparam(key="Attention Head"), "Attention Head"),
    "a default's condition": (with_hparam(defaults=(Default(1, "", when="tied"),)), "tied"),
    "a default's dialect": (with_hparam(defaults=(Default(1, "", dialect="fh"),)), "fh"),
    "a default's name": (with_hparam(defaults=(Default(1, "", named="("),)), "("),
    "an hparam twice": (changed(hparams=(*qwen2.HPARAMS, qwen2.HPARAMS[0])), "n_vocab"),
    "what is given": (with_dialect(fixed={"tide": False}), "tide"),
    "a drop's condition": (with_dialect(drops=(Drop("a", "", when="tied"),)), "tied"),
    "what a drop repeats": (with_dialect(drops=(Drop("a", "", same_as="b"),)), "b"),
    "what follows": (with_dialect(ignored_keys=(IgnoredKey("a", "", follows="n_embed"),)), "n_embed"),
    "a remark's condition": (with_dialect(caveats=(Caveat("n_embed > 0", ""),)), "n_embed"),
    "a remark's text": (with_dialect(caveats=(Caveat("", "{n_embed}"),)), "n_embed"),
    "a remark's runtime": (with_dialect(caveats=(Caveat("", "", unsupported_by="lama.cpp"),)), "lama.cpp"),
    "a column": (with_dialect(names="fh"), "fh"),
    "a header": (with_dialect(layouts=("qwen",)), "qwen"),
    "a convention": (changed(recipe={"robe": "halves"}), "robe"),
    "a word of the recipe": (changed(recipe={"ffn": "gatted"}), "gatted"),
    "a word of a dialect's conventions": (with_dialect(conventions={"rope": "halfs"}), "halfs"),
    "a transposed role": (with_dialect(conventions={"transposed": ("attn_qvk",)}), "attn_qvk"),
    "a vocabulary's count": (with_vocab(count="agian"), "agian"),
    "a vocabulary's texts": (with_vocab(texts="byte"), "byte"),
    "who counts blocks": (changed(blocks={"blk.": "n_layers"}), "n_layers"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_wrong_word_in_an_architecture_is_refused(name: str) -> None:
    spec, word = SPECS[name]
    with pytest.raises(TableError) as caught:
        validate(spec)
    assert caught.value.found == word and re.search(r"\.py:\d+$", str(caught.value.path))


def line_of(text: str) -> int:
    """The first line of this module that holds `text`."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


PLACED = {
    "a remark": with_dialect(caveats=(Caveat("", "", unsupported_by="lama.cpp"),)),
    "a drop": with_dialect(drops=(Drop("a", "", when="tied"),)),
    "an hparam": changed(hparams=(*qwen2.HPARAMS, replace(qwen2.HPARAMS[0], name="more", key=None, check="0 < mroe"))),
    "a dialect": changed(
        dialects=(
            replace(
                qwen2.HF,
                fixed={"tide": False},
            ),
            *qwen2.SPEC.dialects[1:],
        )
    ),
    "a role": changed(
        roles=roles(
            qwen2.ROLES,
            """
        a.weight : n_embd | hf a
        b.weight : n_embed | hf b
        """,
        )
    ),
}
"""Mistakes in records, each on the line of this module that `LINE_OF` says."""
LINE_OF = {
    "a remark": '"a remark": with_',
    "a drop": '"a drop": with_',
    "an hparam": '"an hparam": changed',
    "a dialect": 'fixed={"tide": False},',
    "a role": "b.weight : n_embed | hf b",
}


@pytest.mark.parametrize("name", PLACED)
def test_an_error_names_the_record_that_is_wrong_and_no_other_file_that_has_the_word(name: str) -> None:
    """Each word also stands elsewhere; the line of `a dialect` and of `a role` first stands further up."""
    with pytest.raises(TableError) as caught:
        validate(PLACED[name])
    start = line_of("PLACED =") if name in ("a dialect", "a role") else 0
    with open(__file__) as file:
        wanted = next(n for n, line in enumerate(file, 1) if n > start and LINE_OF[name] in line)
    assert str(caught.value.path) == f"{__file__}:{wanted}"


def test_a_family_that_no_runtime_knows_may_share_remarks_on_one() -> None:
    validate(changed(runtimes=(), dialects=(qwen2.HF,)))


def test_a_new_table_claims_no_runtime() -> None:
    assert Architecture("more", (), (), (), {}).runtimes == ()


def test_what_a_table_says_of_a_recipe_has_the_recipes_fields_and_types() -> None:
    assert get_type_hints(Conventions) == get_type_hints(Recipe)
    for field in fields(Recipe):
        recipe_of({field.name: field.default})  # type: ignore[misc]


@pytest.mark.parametrize(
    "conventions",
    [{"norm": "RMS"}, {"pre_norm": "no"}, {"norm_offset": "1"}, {"transposed": "attn_q"}, {"transposed": (1,)}],
)
def test_a_convention_of_another_type_is_refused(conventions: Any) -> None:
    with pytest.raises(ValueError, match=str(next(iter(conventions)))):
        recipe_of(conventions)


@pytest.mark.parametrize("layout", header_layouts(), ids=lambda layout: layout.name)
def test_headers_name_block_types_and_containers_that_exist(layout: HeaderLayout) -> None:
    for name in (*layout.planar, *(name for codes in layout.codes.values() for name in codes.values())):
        assert block_type(name)
    known = {container.name for reader in readers() for container in reader.containers}
    assert {container for container, _ in layout.containers} <= known


@pytest.mark.parametrize("spec", architectures().values(), ids=architectures())
def test_every_computation_exists(spec: Architecture) -> None:
    for dialect in spec.dialects:
        assert find_spec(computation_name(recipe_of(spec.recipe, dialect.conventions)))


def test_a_computation_may_stand_anywhere() -> None:
    assert computation_name(Recipe(computation="toy_models.forward")) == "toy_models.forward"


def words_that_are_asked_for() -> set[str]:
    """Texts that the forward pass compares with, has a case for, or looks up."""
    found: set[str] = set()
    for path in (ROOT / "converters" / "forward").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            asked += [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
            asked += [node.value] if isinstance(node, ast.MatchValue) else []
            found |= {one.value for one in asked if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def test_no_word_of_a_recipe_is_taken_for_another() -> None:
    """Of the words of a convention at most one is what remains when it is none of the others."""
    asked = words_that_are_asked_for()
    for name, kind in get_type_hints(Recipe).items():
        if get_origin(kind) is Literal:
            assert len(set(get_args(kind)) - {""} - asked) <= 1, f"{name}: the forward pass does not ask for every word"


@pytest.mark.parametrize(
    ("name", "value"), [("expert_gating", 9), ("rope_scaling", "stretched"), ("activation", "swoosh")]
)
def test_a_word_of_a_file_that_nobody_knows_is_refused(name: str, value: Any) -> None:
    """A GGUF file may say what no table says: nothing else is computed in its place."""
    ones = torch.ones(8, 8)
    tensors = {f"blk.0.ffn_{part}.weight": ones for part in ("up", "gate", "down", "gate_inp")}
    sizes = {"n_embd": 8, "eps": 1e-5, "n_ctx": 64, "n_rot": 4, "rope_base": 10000.0, "n_expert_used": 1, name: value}
    model = held_model(tensors, sizes)
    part = {"expert_gating": route, "rope_scaling": rotation, "activation": dense}[name]
    with pytest.raises(UnsupportedError) as caught:
        part(model, "blk.0.", ones) if name != "rope_scaling" else rotation(model, 8)
    assert caught.value.found == value


PAGE = doctest.DocTestParser().get_doctest((ROOT / "docs" / "tables.md").read_text(), {}, "tables.md", None, 0)


def test_the_examples_of_the_page_run() -> None:
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(PAGE, out=told.append).failed == 0, "".join(told)
    assert sum(bool(example.exc_msg) for example in PAGE.examples) >= 10


BLOCK_LINES = {
    "Q4_0 2 32": "Q4_0 2 32",
    "q4_0 2 32 d:f2": "q4_0",
    "Q4_0 two 32 d:f2": "two",
    "Q4_0 2 0 d:f2": "0",
    "Q4_0 2 32 d=f2": "d=f2",
    "Q4_0 2 32 d:f2*": "d:f2*",
    "Q4_0 2 32 d:f2*0": "d:f2*0",
    "Q4_0 2 32 d:f3": "f3",
    "Q4_0 2 32 d:f2 d:u1": "d:u1",
    "Q4_0 2 32 d:f2\nQ4_0 3 32 d:f2": "Q4_0",
}


@pytest.mark.parametrize("line", BLOCK_LINES)
def test_a_wrong_line_of_a_block_table_is_refused_with_its_word(line: str) -> None:
    with pytest.raises(BlockError, match=rf"\.py:\d+: .*: {re.escape(BLOCK_LINES[line])}$"):
        table(line)


def test_a_class_is_written_out_in_the_table_that_reads_it() -> None:
    """`architectures_of_classes` looks for it in the texts of tables, and imports no other."""
    for name in {name for spec in architectures().values() for name in _classes(spec)}:
        named = {spec.name for spec in architectures().values() if name in _classes(spec)}
        assert named <= set(architectures_of_classes((name,))), name


def test_headers_are_found_without_importing_every_table() -> None:
    headed = {name: spec for name, spec in architectures().items() if spec.headers}
    assert architectures_of_headers() == headed


def _classes(spec: Architecture) -> set[str]:
    return {*spec.hf_classes, *(name for dialect in spec.dialects for name in dialect.classes)}
