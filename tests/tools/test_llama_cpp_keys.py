"""The reader of llama.cpp's sources: what it makes of C++, and that it ends where it does not understand.

That the list as a whole is right is asked of llama.cpp itself, in tests/laws/test_runtime_keys.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from cpp_statements import ParseError, functions, tokenize
from llama_cpp_keys import READ_BY_HAND, READ_FOR_RULES, _check_digests, _keys, _tensors
from loader_source import Source
from loader_walk import Walker

from ggferry.converters.proof.runtime_rules.broken import RULES

KEYS = {"LLM_KV_A": ".a", "LLM_KV_B": ".b", "LLM_KV_C": "c"}
TENSORS = {"LLM_TENSOR_X": "x", "LLM_TENSOR_Y": "blk.{n}.y"}
MEMBERS = {
    "hparams . a": ("uint32_t", "7"),
    "hparams . b": ("float", ""),
    "names": ("std::vector < std::string >", ""),
    "hparams . many": ("std::array < uint32_t , 512 >", ""),
}


def walked(body: str, more: str = "") -> Walker:
    read = dict(functions(f"void owner::load(llama_model_loader & ml) {{ {body} }} {more}"))
    empty: dict[str, Any] = {}
    source = Source(KEYS, TENSORS, {}, {}, {}, frozenset(), MEMBERS, {"LLAMA_TWO": "2"}, read, empty)
    walker = Walker(source, "LLM_ARCH_MINE")
    walker.follow(read["owner::load"]())
    return walker


def lines(body: str, more: str = "") -> list[str]:
    walker = walked(body, more)
    return [*_keys(walker.reads).values(), *_tensors(walker.tensors).values()]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("ml.get_key(LLM_KV_A, hparams.a);", ".a u32 required"),
        ("ml.get_key(LLM_KV_A, hparams.a, /* required */ false); // or not\n", ".a u32 optional = 7"),
        ("hparams.a = LLAMA_TWO; ml.get_key(LLM_KV_A, hparams.a, false);", ".a u32 optional = 2"),
        ("ml.get_key(LLM_KV_A, hparams.a, false); hparams.a = n + 1;", ".a u32 optional"),
        ("if (x) { hparams.a = 3; } ml.get_key(LLM_KV_A, hparams.a, false);", ".a u32 optional"),
        ('std::string s("mean"); ml.get_key(LLM_KV_C, s, false);', 'c str optional = "mean"'),
        ("ml.get_key_or_arr(LLM_KV_A, hparams.many, n, false);", ".a u32|[u32]|[i32]|[bool] optional"),
        ("ml.get_arr(LLM_KV_A, names);", ".a [str] required"),
        ("if (n > 1) ml.get_key(LLM_KV_A, hparams.a);", ".a u32 sometimes when n > 1"),
        ("if (n) { ml.get_key(LLM_KV_A, hparams.a); } else { ml.get_key(LLM_KV_A, hparams.a); }", ".a u32 required"),
        ("if (n) { return; } ml.get_key(LLM_KV_A, hparams.a);", ".a u32 sometimes when not(n)"),
        ("if (n) { throw 1; } ml.get_key(LLM_KV_A, hparams.a);", ".a u32 required"),
        ("if (arch == LLM_ARCH_MINE || y) { ml.get_key(LLM_KV_A, hparams.a); }", ".a u32 required"),
        ("if (arch == LLM_ARCH_YOURS) { f(); } else { ml.get_key(LLM_KV_A, hparams.a); }", ".a u32 required"),
        ("switch (n) { case 1: ml.get_key(LLM_KV_A, hparams.a); break; }", ".a u32 sometimes when switch(n)"),
        ('create_tensor(tn(LLM_TENSOR_X, "weight"), {n, m}, 0);', "tensor x.weight required"),
        ("create_tensor(tn(LLM_TENSOR_X), {n}, TENSOR_NOT_REQUIRED | TENSOR_SKIP);", "tensor x optional"),
        ("const int f = some; create_tensor(tn(LLM_TENSOR_X), {n}, f);", "tensor x sometimes"),
        ("for (int i = 0; i < n_layer; ++i) create_tensor(tn(LLM_TENSOR_Y, i), {n}, 0);", "tensor blk.{n}.y required"),
        ("for (int i = 2; i < n_layer; ++i) create_tensor(tn(LLM_TENSOR_Y, i), {n}, 0);", "tensor blk.{n}.y sometimes"),
        ("auto f = [&](llm_tensor t) { create_tensor(tn(t), {n}, 0); }; f(LLM_TENSOR_X);", "tensor x required"),
        ("try { create_tensor(tn(LLM_TENSOR_X), {n}, 0); } catch (e) { f(); }", "tensor x sometimes"),
    ],
)
def test_what_a_function_asks_for(body: str, line: str) -> None:
    assert lines(body) == [line]


def test_a_second_request_is_made_only_where_the_first_found_nothing() -> None:
    body = "ml.get_key(LLM_KV_A, hparams.a, false) || ml.get_arr_n(LLM_KV_B, n, true); uint32_t n;"
    assert lines("uint32_t n = 0; " + body)[0] == ".a u32 optional = 7"
    assert lines("uint32_t n = 0; " + body)[1].startswith(".b [] sometimes")


def test_helpers_are_followed_with_what_they_are_given() -> None:
    helper = "static void ask(llama_model_loader & ml, llm_kv kid, uint32_t value) { ml.get_key(kid, value, false); }"
    assert lines("ask(ml, LLM_KV_B, 4);", helper) == [".b u32 optional = 4"]


@pytest.mark.parametrize(
    "body",
    [
        "ml.get_key(LLM_KV_NEW, hparams.a);",
        "ml.get_key(LLM_KV_A, hparams.unheard_of);",
        "ml.get_key(LLM_KV_A, hparams.a, maybe);",
        "ml.get_something(LLM_KV_A, hparams.a);",
        "elsewhere(ml, LLM_KV_A);",
        "create_tensor(named_otherwise, {n}, 0);",
        "do { ml.get_key(LLM_KV_A, hparams.a); } while (n);",
    ],
)
def test_what_is_not_understood_ends_the_script(body: str) -> None:
    with pytest.raises(ParseError):
        walked(body)


def test_comments_strings_and_macros_are_told_apart() -> None:
    text = 'a "// no /* comment */" // one\n#define X \\\n  y\nb'
    assert tokenize(text) == ["a", '"// no /* comment */"', "b"]


def test_every_rule_names_functions_whose_change_is_noticed() -> None:
    assert {place for rule in RULES for place in rule.places} == set(READ_FOR_RULES)


def test_a_function_that_changed_ends_the_script() -> None:
    files: dict[str, str] = {}
    for place in READ_BY_HAND | READ_FOR_RULES:
        path, name = place.split()
        files[path] = files.get(path, "") + f"void {name}() {{}} "
    with pytest.raises(SystemExit, match="read these functions again") as caught:
        _check_digests(files)
    assert all(place in str(caught.value) for place in READ_FOR_RULES)
