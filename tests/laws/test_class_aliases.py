"""A key that a class of transformers also takes under another name (`attribute_map`) is read under both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.class_defaults.text_models import ClassDefaults, in_force, model_types
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.schema.architecture import Architecture

FURTHER = "counts blocks that predict further tokens, which are found by their tensors"
OTHERWISE = {
    **{
        (kind, "num_mtp_layers"): FURTHER
        for kind in ("bailing_hybrid", "deepseek_v3", "glm4_moe", "sarvam_mla", "sarvam_moe")
    },
    **dict.fromkeys(
        (
            ("exaone", "num_layers"),
            ("exaone", "activation_function"),
            ("exaone", "layer_norm_epsilon"),
            ("sarvam_moe", "use_qkv_bias"),
        ),
        "published ones name classes of their own, whose tables read it",
    ),
    **{
        ("whisper", f"num_{each}"): "it repeats the encoder's"
        for each in (
            "attention_heads",
            "hidden_layers",
            "key_value_heads",
        )
    },
    ("whisper", "hidden_size"): "it repeats d_model, which every published one states",
    ("glm4_moe_lite", "head_dim"): "published configurations state it beside qk_rope_head_dim, and both alike",
}
"""Model type and other name → why it is not read."""


PARTS = 10
"""transformers' modules of configurations take long to import: the default suite asks of some."""


@cache
def tables() -> dict[str, dict[str, Architecture]]:
    """Return class → the tables that read it, by name."""
    found: dict[str, dict[str, Architecture]] = defaultdict(dict)
    for spec in architectures().values():
        for name in (*spec.hf_classes, *(name for dialect in spec.dialects for name in dialect.classes)):
            found[name][spec.name] = spec
    return found


def unread(kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield model types and other names of keys that a table of one of their classes reads under one name only."""
    for kind in kinds:
        for spec in {k: v for name in model_types()[kind].classes for k, v in tables()[name].items()}.values():
            read = {place for param in spec.hparams for place in param.fields.get("hf", "").split("|")}
            for alias, key in getattr(CONFIG_MAPPING[kind], "attribute_map", {}).items():
                if key in read and alias not in read:
                    yield kind, alias


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_alias_of_a_class_is_read(part: int) -> None:
    kinds = sorted(model_types())[part::PARTS]
    assert set(unread(kinds)) == {(kind, alias) for kind, alias in OTHERWISE if kind in kinds}


def test_every_reason_is_of_a_model_type() -> None:
    assert {kind for kind, _ in OTHERWISE} <= {*model_types()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_of_two_names_that_contradict_each_other_counts_what_transformers_takes(part: int) -> None:
    for kind in sorted(model_types())[part::PARTS]:
        cls, listed = CONFIG_MAPPING[kind], model_types()[kind]
        for alias, key in listed.aliases.items():
            if type(taken := getattr(cls(), key, None)) is int:
                config = {key: taken + 2, alias: taken}
                found = in_force(config, "", ClassDefaults("", {}, listed.aliases))
                assert found.config[key] == getattr(cls(**config), key) == taken, (kind, alias)
                assert f"{key} and {alias} contradict" in " ".join(found.notes)
