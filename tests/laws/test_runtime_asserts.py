"""Everything that llama.cpp's loaders assert, of every architecture that it is said to run, is a rule of ours or cannot
occur in our files, for a reason that stands here. A new llama.cpp shows what is new by what is in neither."""

from __future__ import annotations

import re

import pytest

from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.proof import runtime_keys
from ggferry.converters.proof.runtime_rules import assertions as rules
from ggferry.converters.proof.runtime_rules.listed import LIST, asserting, asserts
from helpers.third_party_fixtures import ROOT

OURS = {name for name, spec in architectures().items() if "llama.cpp" in spec.runtimes}
BY_RULE = {
    "_experts": r"loader .*(n_expert_used must be > 0|n_expert_used\(\) > 0).*",
    "_no_experts": r"loader .*(n_expert must be > 0|n_expert (&&|and) n_expert_used|zero experts).*",
    "_twice_as_wide": r"loader .*(2 \* n_embd == d_inner|expansion factor of 2).*",
    "_latent_heads": r"loader n_embd_head_qk_nope >= 1",
    "_equal_heads": r"loader (n_embd_v_gqa == n_embd_k_gqa|.*requires n_embd_head_k == n_embd_head_v\")",
    "_equal_window_heads": r"loader .*requires n_embd_head_k_swa == n_embd_head_v_swa\"",
    "_chooses": r"loader \"hy_v4: (bad indexer head count / key length|layer 0 must own an .*)\"",
    "_known_activation": r"loader \"unsupported DFlash hidden activation: .*",
    "_added_layers": r"loader \(hparams\.dense_[23]_feat_(in|out) == 0 .*",
    "_three_layers": r"loader \"EAGLE3 requires exactly 3 entries.*",
    "_without_original": r"loader \"invalid n_ctx_orig_yarn .*",
    "_counts": r"loader .*<= \(size_t\) LLAMA_MAX_LAYERS",
}
CHECKED = "the family's table has a `check` of it, so that no such model is planned"
REQUIRED = "the key or tensor is one that the table demands, and the loader's list says that it is written"
HASHED = "what hashes and chooses in Qwen4-Exp is checked by its table"
CANNOT: dict[str, str] = {
    r".*needs to define token type count\"": "every vocabulary of such a model states tokenizer.ggml.token_type_count",
    r".*decision (blocks|head|model).*|\"decision model .*": (
        "a head that we write no key of: decision.block_count is 0"
    ),
    r"n_ffn_up == n_ff \|\| n_ffn_up == n_ff \* 2": "the table derives one from the other",
    r".*embedding_length_out to carry.*": REQUIRED,
    r"\"missing Cohere2 MoE norm epsilon\"": REQUIRED,
    r".*architecture requires MLA\"|hparams\.is_mla\(\)": "the widths of latent heads are keys that the table demands",
    r".*declares neither expert_feed_forward_length.*": (
        "of blocks that guess further tokens, which no table of the family writes"
    ),
    r".*time_mix_lerp_fused == NULL.*": REQUIRED,
    r".*(too few for the PLE head ranges|only one PLE layer is supported|PLE layer %u is out of range).*": HASHED,
    r".*HYPER_CONNECTION_COUNT.*|.*(QSA layers must share|PLE layer %u is not a linear).*": HASHED,
    r".*PLE head %u range does not fit the int32 row index.*": HASHED,
    r".*(PLE head count %u|PLE n-gram size %u) is out of range.*|.*QSA needs a compress ratio above 1.*": (
        "the table checks the least, and a caveat says that llama.cpp does not run more"
    ),
    r"ss\.str\(\)": "of deepstack_mapping, whose numbers are those of the rows from 1 on, each once",
    r"hparams\.kda_safe_gate|hparams\.kda_gate_lower_bound < 0\.0f": CHECKED,
    r"\"Laguna: unexpected attention gate width.*": CHECKED,
    r"hparams\.n_group_experts > 0.*": CHECKED,
    r"hparams\.n_hrm_.* > 0|hparams\.n_layer\(\) == n_slot": CHECKED,
    r"hparams\.indexer_block_size > 0": CHECKED,
    r"hparams\.indexer_kpool > 1 .*|hparams\.dsv4_hc_mult == 4 .*": CHECKED,
    r"\"EAGLE3 model requires.*|\"DFlash model requires.*": REQUIRED,
    r"\"DFlash2 .*": CHECKED,
    r"hparams\.dsv4_o_group_count > 0|hparams\.n_swa > 0|\"DSpark DSV4 .*": (
        "of drafts of DeepSeek V4, which no table has"
    ),
    r"n_loops_u >= 1": CHECKED,
    r"format\( ?\"graniteswitch: .*": CHECKED,
    r"\"unknown posnet layer\"|hparams\.posnet\.n_embd == hparams\.convnext\.n_embd": CHECKED,
    r"n_compress_ratios <= LLAMA_MAX_LAYERS|\"DeepSeek-V4 .*": CHECKED,
}
LINES = sorted(
    {(name, line) for name in OURS & set(asserts()) for line in asserts()[name] if line.startswith("loader")}
)


def test_the_list_is_of_the_build_that_the_keys_are_of() -> None:
    text = (ROOT / "converters" / "proof" / LIST).read_text()
    version = next(line for line in text.splitlines() if line.startswith("version "))
    assert version == f"version {runtime_keys.version()}"
    assert {name for name in OURS if runtime_keys.loader(name) is not None} <= set(asserts())


def reasons(line: str) -> list[str]:
    by_rule = [name for name, pattern in BY_RULE.items() if re.fullmatch(pattern, line)]
    text = line.removeprefix("loader ")
    return [*by_rule, *(pattern for pattern in CANNOT if re.fullmatch(pattern, text))]


@pytest.mark.parametrize(("name", "line"), LINES, ids=lambda value: value if " " not in value else "")
def test_every_assert_of_a_loader_is_a_rule_or_cannot_occur(name: str, line: str) -> None:
    assert reasons(line), f"llama.cpp asserts of {name} what nobody looked at: {line}"


def test_no_reason_is_left_over() -> None:
    texts = [line for _, line in LINES]
    for pattern in BY_RULE.values():
        assert any(re.fullmatch(pattern, text) for text in texts), pattern
    for pattern in CANNOT:
        assert any(re.fullmatch(pattern, text.removeprefix("loader ")) for text in texts), pattern


def test_every_named_rule_is_one() -> None:
    held = {rule.holds.__name__ for rule in rules.RULES}
    assert set(BY_RULE) <= held


def test_a_rule_is_for_every_architecture_that_asserts_it() -> None:
    for name, pattern in BY_RULE.items():
        of = {one for rule in rules.RULES if rule.holds.__name__ == name for one in rule.of.split()}
        assert "*" in of or set(asserting(pattern).split()) & OURS <= of, name
