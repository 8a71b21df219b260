"""Recipes against llama-quantize's own choices: its dry runs, its files, its functions; then names, options, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ggferry.quant.codec import block_type
from ggferry.quant.recipes.choose import (
    Choice,
    ModelFacts,
    Recipe,
    TensorInfo,
    choose,
    expected_file_type,
    recipe,
    require_imatrix,
    sorted_names,
)
from ggferry.quant.recipes.file_types import file_type_name, file_types
from ggferry.quant.recipes.mixtures import FALLBACKS, needing_imatrix, recipe_ids
from ggferry.quant.recipes.rules import role_of, target_types
from ggferry.quant.recipes.text import parse_recipe
from ggferry.quant.types import BlockError
from helpers.peers import metadata_of
from helpers.third_party_fixtures import FIXTURES, cases, listed, read_json, record

SHAPES = [
    "llama_mha_L16",
    "llama_gqa4_L16",
    "llama_mha_L22_tied",
    "llama_mha_L7",
    "mixtral8_L16",
    "moe4_L16",
    "falcon_L16",
    "gptneox_L16",
    "llama_row96_L2",
    "llama_row80_L2",
    "llama_ff352_L16",
]
LLAMA_QUANTIZE = [
    "Q1_0",
    "Q2_0",
    "Q4_0",
    "Q4_1",
    "MXFP4_MOE",
    "Q5_0",
    "Q5_1",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ1_S",
    "IQ1_M",
    "TQ1_0",
    "TQ2_0",
    "Q2_K",
    "Q2_K_S",
    "IQ3_XXS",
    "IQ3_S",
    "IQ3_M",
    "IQ3_XS",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "IQ4_NL",
    "IQ4_XS",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
    "F16",
    "BF16",
    "F32",
]
GOLDEN: dict[str, Any] = json.loads((FIXTURES / "quantize" / "mixtures.json").read_text())


def llama(layers: int = 8, width: int = 256, ff: int = 512, head: bool = True, type: str = "F16") -> list[TensorInfo]:
    """A dense LLaMA with 4 heads and 2 K/V heads, in no particular order."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (1000, width), "output_norm.weight": (width,)}
    if head:
        shapes["output.weight"] = (1000, width)
    for block in reversed(range(layers)):
        shapes |= {
            f"blk.{block}.{role}.weight": shape
            for role, shape in {
                "attn_norm": (width,),
                "attn_q": (width, width),
                "attn_k": (width // 2, width),
                "attn_v": (width // 2, width),
                "attn_output": (width, width),
                "ffn_up": (ff, width),
                "ffn_gate": (ff, width),
                "ffn_down": (width, ff),
            }.items()
        }
    return [TensorInfo(name, shape, "F32" if len(shape) < 2 else type) for name, shape in shapes.items()]


FACTS = ModelFacts("llama", 8, 4, 2)


def model_of(config: dict[str, Any]) -> tuple[list[TensorInfo], ModelFacts]:
    """The model behind an entry of QUANT_MIX.json, from its config: what it does not name is 512 wide."""
    width, heads, experts = config.get("H", 512), config.get("heads", 4), config.get("experts", 0)
    ff, kv = config.get("ff", width), config.get("kv", heads)
    kv_width = width // heads * kv
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (512, width), "output_norm.weight": (width,)}
    if not config.get("tied"):
        shapes["output.weight"] = (512, width)
    for block in range(config["L"]):
        rows: dict[str, tuple[int, ...]] = {"attn_norm": (width,), "ffn_norm": (width,), "attn_output": (width, width)}
        if config.get("fused"):
            rows |= {"attn_qkv": (width + 2 * kv_width, width), "ffn_up": (ff, width), "ffn_down": (width, ff)}
        else:
            rows |= {"attn_q": (width, width), "attn_k": (kv_width, width), "attn_v": (kv_width, width)}
        if experts:
            rows |= {"ffn_gate_inp": (experts, width), "ffn_down_exps": (experts, width, ff)}
            rows |= {"ffn_gate_exps": (experts, ff, width), "ffn_up_exps": (experts, ff, width)}
        elif not config.get("fused"):
            rows |= {"ffn_gate": (ff, width), "ffn_up": (ff, width), "ffn_down": (width, ff)}
        shapes |= {f"blk.{block}.{role}.weight": shape for role, shape in rows.items()}
    facts = ModelFacts(config["arch"], config["L"], heads, kv, experts)
    return [TensorInfo(name, shape, "F32") for name, shape in shapes.items()], facts


@pytest.mark.parametrize("shape", SHAPES)
def test_every_tensor_of_every_dry_run(shape: str) -> None:
    mixes = read_json("quantize/QUANT_MIX.json")
    assert list(mixes) == SHAPES
    tensors, facts = model_of(mixes[shape]["config"])
    assert sorted(mixes[shape]["types"]) == sorted(set(LLAMA_QUANTIZE) - {"F32"})
    for name, types in mixes[shape]["types"].items():
        if "error" in types:
            refused = types["error"][0].removeprefix("warning: ").split()[0]
            with pytest.raises(BlockError, match=f"^{refused}: "):
                choose(recipe(name), tensors, facts)
            continue
        choices = choose(recipe(name), tensors, facts)
        assert list(choices) == list(types), name
        assert {tensor: choice.type for tensor, choice in choices.items()} == {
            tensor: type.upper() for tensor, type in types.items()
        }, name


LLAMA_QUANTIZES = listed("quantize/*k256.[!i]*.gguf")


@pytest.mark.parametrize("name", cases(LLAMA_QUANTIZES))
def test_every_file_of_llama_quantize(name: str) -> None:
    source, made = record("quantize/k256.F16.gguf"), record(name)
    tensors = [TensorInfo(ref["name"], tuple(ref["shape"]), ref["type"]) for ref in source["tensors"]]
    asked, weighed = recipe(name.split(".")[1]), name.startswith("quantize/im_")
    choices = choose(asked, tensors, ModelFacts("llama", 2, 4, 1), imatrix=weighed)
    assert [(tensor, choice.type) for tensor, choice in choices.items()] == [
        (ref["name"], ref["type"]) for ref in made["tensors"]
    ]
    # A model without experts as MXFP4_MOE holds no MXFP4: ours is called what it is, Q8_0.
    stated = 7 if asked.name == "MXFP4_MOE" else metadata_of(made)["general.file_type"].data
    assert expected_file_type(asked, choices, tensors) == stated
    if not weighed:
        require_imatrix(choices, tensors, None)  # it was made without one


def test_all_files_of_llama_quantize_are_there() -> None:
    assert len(LLAMA_QUANTIZES) == 20  # the source and 19 outputs


def golden_model(name: str) -> tuple[list[TensorInfo], ModelFacts]:
    model = GOLDEN["models"][name]
    return [TensorInfo(tensor, tuple(shape), "F32") for tensor, shape in model["tensors"].items()], ModelFacts(
        **model["facts"]
    )


def spelled(choices: dict[str, Choice]) -> list[str]:
    return [choice.type + "!" * choice.needs_imatrix for choice in choices.values()]


def runs(text: str) -> list[str]:
    """'Q4_K*2 F32' → ['Q4_K', 'Q4_K', 'F32']"""
    words = (word.partition("*") for word in text.split())
    return [kind for kind, _, count in words for _ in range(int(count or 1))]


@pytest.mark.parametrize("name", GOLDEN["models"])
def test_types_of_invented_models(name: str) -> None:
    """Where the dry runs have no witness: importance matrices, 70B models, experts of every kind, hybrids, ragged."""
    tensors, facts = golden_model(name)
    assert sorted(GOLDEN["types"][name]) == sorted(LLAMA_QUANTIZE)
    for asked, expected in GOLDEN["types"][name].items():
        for imatrix in (False, True):
            text = expected[-1] if imatrix else expected[0]
            if text is None:
                with pytest.raises(BlockError, match="nothing to fall back to"):
                    choose(recipe(asked), tensors, facts, imatrix=imatrix)
            else:
                assert spelled(choose(recipe(asked), tensors, facts, imatrix=imatrix)) == runs(text), (asked, imatrix)


def test_options_on_invented_models() -> None:
    assert len(GOLDEN["options"]) > 100
    for model, asked, options, expected in GOLDEN["options"]:
        tensors, facts = golden_model(model)
        if expected is None:
            with pytest.raises(BlockError):
                choose(recipe(asked), tensors, facts, **options)
        else:
            assert spelled(choose(recipe(asked), tensors, facts, **options)) == runs(expected), (model, asked, options)


def test_names_aliases_and_numbers() -> None:
    assert {name: recipe(name).file_type for name in LLAMA_QUANTIZE} == {
        name: file_type for name, file_type in recipe_ids().items() if name != "NVFP4"
    }
    for name, file_type in recipe_ids().items():
        assert recipe(name) == recipe(name.lower()) == recipe(f" {name} ") == recipe(str(file_type))
        assert recipe(name).name == name == file_type_name(file_type)
        assert recipe(name).default == file_types()[file_type].main[0]
    for alias, name in {"q3_k": "Q3_K_M", "Q4_K": "Q4_K_M", "q5_K": "Q5_K_M", "MOSTLY_Q6_K": "Q6_K"}.items():
        assert recipe(alias) == recipe(name)
    assert recipe("COPY") == Recipe("copy", "keep") and recipe("Keep") == Recipe("keep", "keep")


@pytest.mark.parametrize("name", ["", "Q9_K", "Q4_2", "Q4_1_SOME_F16", "4", "33", "1024", "99999", "-1", "q4_k_m.gguf"])
def test_no_such_recipe(name: str) -> None:
    with pytest.raises(BlockError, match=r"unknown quantization .*known: F32, .*NVFP4.*COPY, KEEP"):
        recipe(name)


def test_sorted_names() -> None:
    names = ["blk.10.a", "blk.9.b", "token_embd", "blk.9.a", "output", "blk.x", "v.blk.1.a", "enc.blk.0.b", "blk.2"]
    assert sorted_names(names) == [
        "blk.x",
        "enc.blk.0.b",
        "output",
        "token_embd",
        "v.blk.1.a",
        "blk.2",
        "blk.9.a",
        "blk.9.b",
        "blk.10.a",
    ]


def test_roles() -> None:
    roles = {
        "output.weight": "output",
        "output.bias": "other",
        "output_norm.weight": "other",
        "token_embd.weight": "token_embd",
        "per_layer_token_embd.weight": "token_embd",
        "token_embd_norm.weight": "other",
        "blk.3.attn_qkv.weight": "attn_v",
        "blk.3.attn_kv_b.weight": "attn_v",
        "blk.3.attn_kv_a_mqa.weight": "other",
        "blk.3.attn_k_norm.weight": "other",
        "blk.3.cross_attn_k.weight": "attn_k",
        "blk.3.attn_q_a.weight": "other",
        "blk.3.attn_output.weight": "attn_output",
        "blk.3.ffn_gate_up_exps.weight": "ffn_gate",
        "blk.3.ffn_down_shexp.weight": "ffn_down",
    }
    assert {name: role_of(name) for name in roles} == roles


def test_every_fallback_fills_rows_of_32_and_ends_in_f16() -> None:
    for wanted in target_types():
        kind, passed = wanted, [wanted]
        while kind in FALLBACKS:
            smaller = FALLBACKS[kind]
            assert block_type(smaller).elements < block_type(kind).elements
            kind = smaller
            passed.append(kind)
        if wanted in {"F32", "F16", "BF16", "Q1_0", "NVFP4"}:
            assert passed == [wanted]
        else:
            assert kind == "F16" and block_type(passed[-2]).elements == 32


@pytest.mark.parametrize(("columns", "expected"), [(512, "Q4_K"), (288, "Q5_0"), (32, "Q5_0"), (80, "F16"), (1, "F16")])
def test_a_fallback_says_so(columns: int, expected: str) -> None:
    tensors = [TensorInfo("blk.0.attn_q.weight", (8, columns), "F32")]
    (choice,) = choose(recipe("q4_k_s"), tensors, FACTS).values()
    assert choice.type == expected
    assert ("are not whole Q4_K blocks" in choice.why) == (columns % 256 != 0)


def test_why() -> None:
    choices = choose(recipe("q4_k_m"), llama(), FACTS, tensor_types=[("blk.7.*attn_q", "q8_0")])
    whys = {name: choices[name].why for name in choices}
    assert whys["output.weight"] == "Q4_K_M: output -> Q6_K"
    assert whys["output_norm.weight"] == "kept: a vector"
    assert whys["token_embd.weight"] == "Q4_K_M: default"
    assert whys["blk.0.attn_v.weight"] == "Q4_K_M: attn_v more -> Q6_K"
    assert whys["blk.2.attn_v.weight"] == "Q4_K_M: default"
    assert whys["blk.7.attn_q.weight"] == "--tensor-type blk.7.*attn_q"
    router = TensorInfo("blk.0.ffn_gate_inp.weight", (8, 256), "F32")
    assert choose(recipe("q4_0"), [router], FACTS)[router.name] == Choice("F32", "kept: routes tokens to experts")


def test_copies_keep_everything_but_what_is_named() -> None:
    tensors = llama(type="BF16")
    for name in ("copy", "keep"):
        assert [c.type for c in choose(recipe(name), tensors, FACTS, imatrix=True, pure=True).values()] == [
            t.type for t in sorted(tensors, key=lambda t: sorted_names([u.name for u in tensors]).index(t.name))
        ]
        some = choose(recipe(name), tensors, FACTS, tensor_types=[("ffn_down", "Q6_K")], output_tensor_type="q8_0")
        assert some["blk.3.ffn_down.weight"].type == "Q6_K" and some["output.weight"].type == "Q8_0"
        assert {c.type for n, c in some.items() if "ffn_down" not in n and n != "output.weight"} == {"BF16", "F32"}
        assert expected_file_type(recipe(name), choose(recipe(name), tensors, FACTS), tensors, source=32) == 32


def test_floats_obey_the_options_too() -> None:
    choices = choose(recipe("f16"), llama(type="F32"), FACTS, tensor_types=[("attn_v", "Q8_0")])
    assert choices["blk.0.attn_v.weight"].type == "Q8_0" and choices["blk.0.attn_q.weight"].type == "F16"
    assert choices["blk.0.attn_norm.weight"].type == "F32"
    tied = choose(recipe("bf16"), llama(head=False), FACTS, output_tensor_type="Q8_0")
    assert tied["token_embd.weight"].type == "Q8_0"


def test_what_needs_an_importance_matrix() -> None:
    tensors = llama()
    choices = choose(recipe("iq2_xxs"), tensors, FACTS)
    with pytest.raises(BlockError, match=r"is needed for blk\.\d\.\S+ \(IQ2_XXS\), .* and \d+ more$"):
        require_imatrix(choices, tensors, None)
    lacking = {name for name, choice in choices.items() if choice.needs_imatrix}
    assert {choices[name].type for name in lacking} <= needing_imatrix() and "token_embd.weight" not in lacking
    require_imatrix(choices, tensors, lacking)
    with pytest.raises(BlockError, match=r"has no entry for blk\.5\.ffn_up\.weight \(IQ2_XXS\)$"):
        require_imatrix(choices, tensors, lacking - {"blk.5.ffn_up.weight"})
    for name in ("Q2_K", "Q4_K_M", "IQ4_XS", "IQ3_S", "TQ1_0"):
        require_imatrix(choose(recipe(name), tensors, FACTS), tensors, None)
    with pytest.raises(BlockError, match=r"\(Q2_K\)"):
        require_imatrix(choose(recipe("Q2_K_S"), tensors, FACTS), tensors, None)
    already = [TensorInfo("blk.0.attn_q.weight", (8, 256), "IQ1_S")]
    require_imatrix(choose(recipe("IQ1_S"), already, FACTS), already, None)


def test_wrong_requests() -> None:
    tensors = llama(1)
    for options, message in (
        ({"output_tensor_type": "Q4_7"}, "unknown tensor type 'Q4_7'"),
        ({"token_embedding_type": "q8_k"}, "Q8_K is not a type for weights"),
        ({"tensor_types": [("a", "I32")]}, "I32 is not a type for weights"),
        ({"tensor_types": [("a(", "Q4_0")]}, r"'a\(' is not a regular expression"),
        ({"tensor_types": [("a" * 1001, "Q4_0")]}, "a pattern of 1001 characters"),
    ):
        with pytest.raises(BlockError, match=message):
            choose(recipe("q4_0"), tensors, FACTS, **options)
    with pytest.raises(BlockError, match=r"'output_norm.weight' is listed 2 times"):
        choose(recipe("q4_0"), [*tensors, tensors[1]], FACTS)
    ragged = [TensorInfo("output.weight", (8, 96), "F32"), TensorInfo("token_embd.weight", (8, 96), "F32")]
    for options in ({"output_tensor_type": "Q6_K"}, {"token_embedding_type": "Q4_K"}):  # ggml asserts there
        with pytest.raises(BlockError, match=r"rows of 96 are not whole blocks of 256 \(--"):
            choose(recipe("q8_0"), ragged, FACTS, **options)


def test_layers_of_experts_are_told_by_name_those_of_others_by_count() -> None:
    """`layer` of ffn tensors: with experts the block's number, however many of the role a block has."""
    names = [f"blk.{b}.ffn_down{kind}.weight" for b in range(16) for kind in ("_exps", "_shexp")]
    tensors = [TensorInfo(name, (8, 256), "F32") for name in names]
    mine = parse_recipe("default Q4_K\nffn_down layer<n/8 -> Q6_K")
    moe = choose(mine, tensors, ModelFacts("llama", 16, n_expert=4))
    assert [name for name, choice in moe.items() if choice.type == "Q6_K"] == names[:4]
    dense = choose(mine, tensors, ModelFacts("llama", 16))
    assert [name for name, choice in dense.items() if choice.type == "Q6_K"] == names[:2]
    outside = TensorInfo("v.blk.0.ffn_down.weight", (8, 256), "F32")
    assert choose(mine, [outside], ModelFacts("llama", 16, n_expert=4))[outside.name].type == "Q4_K"


PATTERNS = st.sampled_from(["attn", "ffn_down", r"blk\.[0-3]\.", "^output", "embd", r"\.weight$", "norm", "x^", "k|q"])
KINDS = st.sampled_from(["Q8_0", "Q6_K", "Q4_0", "F16", "IQ2_S", "BF16", "MXFP4"])


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(PATTERNS, KINDS), max_size=5), name=st.sampled_from([*LLAMA_QUANTIZE, "keep"]))
@example(pairs=[("attn", "Q8_0"), ("attn_v", "F16")], name="Q4_K_M")
def test_the_first_pattern_that_is_found_decides(pairs: list[tuple[str, str]], name: str) -> None:
    import re

    tensors = llama(4)
    choices = choose(recipe(name), tensors, FACTS, tensor_types=pairs)
    for tensor in tensors:
        hits = [kind for pattern, kind in pairs if re.search(pattern, tensor.name)]
        if tensor.axes < 2 or "_norm" in tensor.name:
            assert choices[tensor.name].type == tensor.type
        elif hits:
            assert choices[tensor.name].type == hits[0]
        elif name == "keep":
            assert choices[tensor.name].type == tensor.type


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.sampled_from(LLAMA_QUANTIZE), st.booleans())
def test_the_order_given_is_of_no_matter(random: Any, name: str, imatrix: bool) -> None:
    tensors = llama(6)
    expected = choose(recipe(name), tensors, FACTS, imatrix=imatrix)
    random.shuffle(tensors)
    assert list(choose(recipe(name), tensors, FACTS, imatrix=imatrix).items()) == list(expected.items())


@given(
    shape=st.lists(st.sampled_from([0, 1, 2, 32, 80, 256, 1 << 40]), max_size=4),
    name=st.text(max_size=12) | st.sampled_from([tensor.name for tensor in llama(1)]),
    asked=st.sampled_from(LLAMA_QUANTIZE),
    facts=st.builds(ModelFacts, st.just("llama"), *[st.integers(0, 200)] * 5),
)
def test_any_tensor_gets_a_type_its_rows_can_hold(shape: list[int], name: str, asked: str, facts: ModelFacts) -> None:
    tensor = TensorInfo(name, tuple(shape), "F32")
    try:
        (choice,) = choose(recipe(asked), [tensor], facts).values()
    except BlockError:
        assert asked == "Q1_0" and tensor.columns % 128
        return
    block_type(choice.type).nbytes(tensor.shape)


def test_axes_are_ggmls() -> None:
    shapes = {(): 1, (5,): 1, (1, 5): 1, (1, 1, 5): 1, (5, 1): 2, (2, 3): 2, (1, 2, 3): 2, (2, 1, 1): 3}
    assert {shape: TensorInfo("a", shape, "F32").axes for shape in shapes} == shapes


def test_importing_recipes_loads_no_numpy() -> None:
    code = "import sys, ggferry.quant.recipes.text as r; r.recipe('q4_k_m'); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
