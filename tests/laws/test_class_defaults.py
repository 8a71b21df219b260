"""What is taken where a configuration leaves out a key is what transformers' class takes: for every class of our tables
and every key that a table reads.

The class itself says what it takes: its configuration, written by transformers, must mean to us what the one without
the key means. Only what a file would hold is compared, and not what the shapes of tensors tell.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.class_defaults.text_models import class_defaults, model_types
from ggferry.converters.model_graph.config_keys import descend
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import same
from ggferry.converters.schema.expressions import names_in
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError

OTHERS = {"shieldgemma2": "it has Gemma 3's class in a list, and computes one of its own"}
"""Types that only list a class of ours → why."""
CLASSES = [(kind, name) for kind, each in model_types().items() if kind not in OTHERS for name in each.classes]
UNUSABLE = {
    "qwen4_exp": "the default gates delta nets by silu, which llama.cpp's graph does not",
    "qwen4_exp_text": "the default gates delta nets by silu, which llama.cpp's graph does not",
    "step3p7": "heads turn whole, of which llama.cpp's graph turns half",
    "deepseek_v2": "transformers' own default says of no number of experts that it is used",
    "deepseek_ocr2": "transformers' own default says of no number of experts that it is used",
    "glm4_moe": "no head is as wide as the default says",
    "glm4v_moe": "no head is as wide as the default says",
    "qwen3_omni_moe": "no head is as wide as the default says",
    "minimax_m3_vl": "the default chooses more blocks than llama.cpp's graph",
}
"""Classes whose default configuration is refused: type, and class where not all of the type → the reason."""
SAME = {
    "sparse_end": "-1 is the last block",
    "window_stated": "there is none in use",
    "nextn_stated": "blocks that predict further tokens are dropped unless asked for, and then counted",
}
"""Hparams that say the same in other words → why."""
BY_TENSORS = {
    "n_dense": "a block with or without experts has other tensors: another number is refused",
    "n_head_kv": "a block with or without attention has other tensors: another number is refused",
    "lightning": "a block of either kind of attention has other tensors: another list is refused",
    "n_layer": "it is required",
    "target_layers": "it is required",
    "n_deepstack": "it is stated with the half that sees",
}
"""Hparams that are wrong of a configuration alone, and refused with tensors."""
REQUIRED = {
    "dots3_note",
    "dots3_note_text",
    "muse_glimmer_assistant",
    "gemma4_unified_assistant",
    "gpt_neo",
}
"""Types whose lists of kinds of blocks must be stated: without them nothing is converted."""

LISTED = ("layer_types", "mlp_layer_types", "per_layer_config", "attention_layers")
"""What says of which kind a block is."""


def written(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with what transformers makes of it."""
    stated = {key: value for key, value in copy.deepcopy(dict(config)).items() if key != "architectures"}
    found: dict[str, Any] = json.loads(json.dumps(CONFIG_MAPPING[kind].from_dict(stated).to_dict(), default=str))
    return {**found, "architectures": config["architectures"]}


def read(config: Mapping[str, Any]) -> ModelGraph:
    return understand(Checkpoint("safetensors", None, (), {}, metadata=config), vocab_only=True)


def differing(here: ModelGraph, there: ModelGraph, kind: str) -> Iterator[str]:
    """The hparams that differ in what a file would hold."""
    spec = here.architecture
    sized = {name for role in spec.roles for text in role.shape for name in names_in(text)}
    for param in spec.hparams:
        a, b = (graph.hparams.get(param.name) for graph in (here, there))
        silent = (a is None or b is None) and (param.key is None or kind in REQUIRED)
        if a is b or silent or param.name in (*sized, *SAME, *BY_TENSORS):
            continue
        if a is None or b is None or not same(a.value, b.value):
            if param.name == "swa_layers" and a is None and b is not None and all(b.value):
                continue  # without a list all have the window
            yield f"{param.name}: {a and a.value} where the class has {b and b.value}"


def bare(kind: str, name: str) -> dict[str, Any]:
    """The configuration that states its class, and of which type its text part is."""
    config: dict[str, Any] = {"architectures": [name], "model_type": kind}
    for within, part in model_types()[kind].parts.items():
        inner = config
        for member in within.split("."):
            inner = inner.setdefault(member, {})
        inner["model_type"] = part
    return config


@cache
def default(kind: str, name: str) -> tuple[dict[str, Any], ModelGraph]:
    config = written(kind, bare(kind, name))
    return config, read(config)


def is_unusable(kind: str, name: str) -> bool:
    return kind in UNUSABLE or f"{kind} {name}" in UNUSABLE


BY_SHAPES = {"per_layer_config": "Dots 3 Note's sizes of blocks with a window, which the shapes of their tensors show"}
"""Keys whose default no table has → why."""
USABLE = [one for one in CLASSES if not is_unusable(*one)]


@pytest.mark.parametrize(("kind", "name"), USABLE)
def test_where_nothing_is_stated_it_is_what_the_class_takes(kind: str, name: str) -> None:
    config, expected = default(kind, name)
    part = descend(config, expected.dialect.config_section or "?")
    listed = {key: part[key] for key in LISTED if part.get(key)} if isinstance(part, dict) and kind in REQUIRED else {}
    shortest = bare(kind, name)
    (descend(shortest, expected.dialect.config_section) if listed else {}).update(listed)
    listed = {key: config[key] for key in LISTED if config.get(key)} if kind in REQUIRED else {}
    assert not [*differing(read({**shortest, **listed}), expected, kind)]


@pytest.mark.parametrize(("kind", "name"), [one for one in CLASSES if is_unusable(*one)])
def test_a_default_that_no_file_can_hold_is_refused(kind: str, name: str) -> None:
    with pytest.raises(GgferryError):
        default(kind, name)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), USABLE)
def test_where_a_key_is_not_stated_it_is_what_the_class_takes(kind: str, name: str) -> None:
    config, whole = default(kind, name)
    within = (
        whole.dialect.config_section if isinstance(descend(config, whole.dialect.config_section or "?"), dict) else ""
    )
    asked = {p.partition(".")[0] for h in whole.architecture.hparams for p in h.fields.get("hf", "").split("|") if p}
    for key in sorted(asked - {"model_type", *BY_SHAPES}):
        shorter = copy.deepcopy(config)
        part = descend(shorter, within) if within else shorter
        if key not in part:
            continue
        del part[key]
        try:
            expected = read(written(kind, shorter))
        except (StrictDataclassError, ValueError, TypeError, AttributeError, KeyError):
            continue  # transformers takes no default
        except GgferryError:
            with pytest.raises(GgferryError):
                read(shorter)
            continue
        assert not [*differing(read(shorter), expected, kind)], key


def test_classes_without_usable_defaults_are_known() -> None:
    types = {kind for kind, _ in CLASSES} | {f"{kind} {name}" for kind, name in CLASSES}
    assert set(UNUSABLE) <= types
    assert set(model_types()) >= REQUIRED


@pytest.mark.parametrize(
    ("name", "kind"),
    [("LlamaForCausalLM", "llama"), ("GPT2LMHeadModel", "gpt2"), ("Gemma3ForConditionalGeneration", "gemma3")],
)
def test_a_class_that_several_types_have_is_its_own(name: str, kind: str) -> None:
    """A configuration that states no model type is not that of another type with the same class, such as InternLM 3."""
    alone, stated = ({"architectures": [name], **more} for more in ({}, {"model_type": kind}))
    assert class_defaults(alone, "") == class_defaults(stated, "")
