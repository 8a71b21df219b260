"""A key that is declared harmless whatever its value is one that transformers' code does not read when it computes, or
is listed here with the reason why its value changes nothing all the same."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.class_defaults.text_models import model_types
from ggferry.converters.model_graph.config_keys import GENERAL, Recorded, unread
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey

TRAINED = "it is used in training only"
BEGINS = "it says how weights began"
HOW = "it says in which steps the same is computed"
SHAPES = "the shapes of tensors say it: transformers loads no others"
ELSEWHERE = "another key or list says it, and transformers takes that one"
HEADS = "it is of a head that is not carried, or of what a call gives back"
READ: dict[str, str] = {
    "*dropout* *_pdrop layerdrop *_layerdrop *_jitter_* *_jitter router_jitter_noise *loss* altup_coef_clip": TRAINED,
    "L_bp_cycles apply_spec_augment mask_*": TRAINED,
    "time_step_m* time_step_floor time_step_scale time_step_init_scheme rescale_prenorm_residual init_*": BEGINS,
    "logit_scale_init_value sinusoidal_pos_embds learnable_sink_init initializer_*": BEGINS,
    "*chunk_size* chunk_size_* use_mamba* use_associative_scan residual_in_fp32 block_size use_cache": HOW,
    "slow_but_exact reorder_and_upcast_attn *softmax_in_fp32 enable_moe_fp32_combine pretraining_tp": HOW,
    "deterministic_flash_attn *dtype": HOW,
    "mamba_expand expand mamba_d_head mamba_head_dim mamba_d_ssm mamba_dt_rank time_step_rank": SHAPES,
    "vocab_size_per_layer_input model_parallel_size": SHAPES,
    "num_attention_heads head_dim per_layer_config num_key_value_heads": ELSEWHERE,
    "num_logits_to_keep problem_type classifier_* num_labels id2label summary_* output_* return_dict": HEADS,
    "use_weighted_layer_sum decoder_bias sparse_pred* num_nextn_predict_layers num_mtp_layers": HEADS,
    "tie_word_embeddings num_decoder_layers scale_decoder_outputs is_encoder_decoder": HEADS,
    "*_token_id": "the tokenizer has it",
    "vq_config vocabulary_map": "it is of the half that sees",
    "final_logit_softcapping use_bidirectional_attention": "an assistant neither caps logits nor sees ahead",
    "n_routed_experts moe_* num_experts_per_tok routed_scaling_factor n_group topk_group norm_topk_prob": (
        "a Nemotron-H without blocks of experts has none of it; one with them is another architecture"
    ),
    "num_local_experts": ELSEWHERE,
    "mamba_* time_step_limit": "a Granite without state spaces has none of it; one with them is another architecture",
    "num_centroids centroid_intermediate_top_k": "the tables of centroids are not carried: all tokens are scored",
    "scale_embedding": "Whisper's encoder and decoder keep the number, and multiply nothing by it",
    "max_window_layers": "Qwen3-MoE gives every block its window",
}
"""Shell patterns of keys that transformers' code reads → why any value of them is harmless where a table says so."""

OTHER_HALF = re.compile(r"\bhalf\b|that (sees|hears|speaks)|parts that see|(vision|audio) encoders?")
"""Reasons of keys that another file's model reads."""


def anyhow(entries: tuple[IgnoredKey, ...]) -> Iterator[IgnoredKey]:
    plain = (entry for entry in entries if not entry.values and not entry.follows)
    return (entry for entry in plain if not OTHER_HALF.search(entry.reason))


@cache
def code(kind: str) -> str:
    """What transformers computes models of this type with."""
    folder = Path(inspect.getfile(CONFIG_MAPPING[kind])).parent
    return "".join(path.read_text("utf-8") for path in sorted(folder.glob("modeling_*.py")))


def keys(kind: str) -> set[str]:
    found = CONFIG_MAPPING[kind]
    return {*found.__dataclass_fields__, *found.attribute_map}


LINES = [(spec, dialect) for spec in architectures().values() for dialect in spec.dialects if dialect.ignored_keys]


@pytest.mark.parametrize(("spec", "dialect"), LINES, ids=lambda each: each.name)
def test_what_is_harmless_whatever_it_says_is_not_read(spec: Architecture, dialect: Dialect) -> None:
    names = {*dialect.classes} or {*spec.hf_classes}
    kinds = {kind for kind, each in model_types().items() if names & {*each.classes}}
    kinds |= {part for kind in kinds for part in model_types()[kind].parts.values()}
    asked = {place for param in spec.hparams for place in param.fields.get("hf", "").split("|")}
    listed = [pattern for text in READ for pattern in text.split()]
    for kind in kinds & {*CONFIG_MAPPING}:
        for key in sorted(keys(kind) - asked):
            declared = [
                entry
                for entry in anyhow(dialect.ignored_keys)
                if any(fnmatch.fnmatch(key, pattern) for pattern in entry.keys.split())
            ]
            if declared and re.search(rf"config\.{re.escape(key)}\b", code(kind)):
                assert any(fnmatch.fnmatch(key, pattern) for pattern in listed), f"{kind}: {key} ({declared[0].reason})"


def test_what_is_harmless_everywhere_whatever_it_says_is_listed() -> None:
    listed = [pattern for text in READ for pattern in text.split()]
    for kind in sorted({*model_types()} & {*CONFIG_MAPPING}):
        for key in keys(kind):
            everywhere = any(
                fnmatch.fnmatch(key, pattern) for entry in anyhow(GENERAL) for pattern in entry.keys.split()
            )
            if everywhere and re.search(rf"config\.{re.escape(key)}\b", code(kind)):
                assert any(fnmatch.fnmatch(key, pattern) for pattern in listed), f"{kind}: {key}"


def test_every_reason_is_given() -> None:
    for spec in architectures().values():
        for dialect in spec.dialects:
            assert all(entry.reason for entry in dialect.ignored_keys)


def test_a_list_is_harmless_where_each_item_is() -> None:
    spec = architectures()["deepseek2-ocr"]
    dialect = next(each for each in spec.dialects if any("layer_types" in e.keys for e in each.ignored_keys))
    for items, expected in ((["reference_sliding_attention"] * 3, []), (["full_attention"] * 3, ["layer_types"])):
        assert unread(Recorded({"layer_types": items}), dialect, {}) == expected
