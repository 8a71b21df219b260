"""Names biject: every pattern of every dialect names one place, and every place has one GGUF name."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.model_graph.tensor_roles import _index as index_of
from ggferry.converters.model_graph.tensor_roles import _places as found_places
from ggferry.converters.model_graph.tensor_roles import origin_of, pattern_regex, spelled
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.formats.gguf.values import KEY_PATTERN
from ggferry.formats.limits import MAX_GGUF_NAME, MAX_LAYERS

ARCHITECTURES = architectures()
SPOKEN = [(spec, dialect) for spec in ARCHITECTURES.values() for dialect in spec.dialects]
IDS = [f"{spec.name}-{dialect.name}" for spec, dialect in SPOKEN]
each_architecture = pytest.mark.parametrize("spec", ARCHITECTURES.values(), ids=ARCHITECTURES)
each_dialect = pytest.mark.parametrize(("spec", "dialect"), SPOKEN, ids=IDS)


def places(spec: Architecture, dialect: Dialect) -> dict[str, list[tuple[str, int, object]]]:
    """Pattern → the (role, number, layout) it fills."""
    found = defaultdict(list)
    for role in spec.roles:
        origin = origin_of(role, dialect)
        for number, pattern in enumerate(origin.patterns if origin else ()):
            found[pattern].append((role.name, number, origin.layout))
    return found


@each_dialect
def test_a_name_is_matched_by_its_own_pattern_alone(spec: Architecture, dialect: Dialect) -> None:
    patterns = places(spec, dialect)
    for pattern in patterns:
        for n, e in ((0, 0), (7, 31), (MAX_LAYERS - 1, 255)):
            name = pattern.format(n=n, e=e)
            matching = {other for other in patterns if pattern_regex(other).fullmatch(name)}
            # A role of block 0 alone has its number written out, beside the pattern of all blocks (RWKV-7).
            assert pattern in matching
            assert {other.replace("{n}", "0") for other in matching} == {pattern.replace("{n}", "0")}
            filled = [role for role, _ in found_places(name, index_of(spec, dialect), {})]
            assert len(set(filled)) == len(filled)
            groups = pattern_regex(pattern).fullmatch(name).groupdict()
            assert groups == {key: str(value) for key, value in {"n": n, "e": e}.items() if f"{{{key}}}" in pattern}
            assert spelled(name, dialect) == name


APART = {"n_head_kv > 0": "attends", "n_head_kv == 0": "is recurrent"}
"""Conditions of which a block fulfils one."""


@each_dialect
def test_a_tensor_that_fills_several_roles_is_cut_for_each(spec: Architecture, dialect: Dialect) -> None:
    for pattern, found in places(spec, dialect).items():
        layouts = [(repr(layout), APART.get(spec.role(name).when, "")) for name, _, layout in found]
        assert len(set(layouts)) == len(layouts), f"{pattern} would be copied twice"


@each_architecture
def test_names_of_roles_are_ggufs(spec: Architecture) -> None:
    names = [role.name for role in spec.roles]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(
            r"((enc|dec|t|v)\.|(posnet|convnext)\.\{n\}\.)?(blk\.(\{n\}|0)\.)?"
            r"((shortconv\.|indexer\.|cls\.|nextn\.)?[a-z0-9_]+\.(weight|bias|scale)|ssm_[ad]|ssm_(dt|b|c)_norm|ffn_norm"
            r"|(attn|ffn)_[a-z]+\.lora_[ab]|post_(attention|ffw)_norm|exp_probs_b|hrm\.z_l_init|(attn|ffn)_conv_base|d2t|class_embd)",
            name,
        )
        assert len(name.format(n=MAX_LAYERS)) <= MAX_GGUF_NAME


@each_architecture
def test_every_role_comes_from_somewhere(spec: Architecture) -> None:
    columns = {dialect.column for dialect in spec.dialects} - {"gguf"}
    for role in spec.roles:
        assert role.sources and set(role.sources) <= columns


@each_architecture
def test_blocks_and_their_numbers_go_together(spec: Architecture) -> None:
    for role in spec.roles:
        for origin in role.sources.values():
            assert bool(origin.patterns) != bool(origin.computed)
            assert all(("{n}" in pattern) == role.per_block for pattern in origin.patterns)


@each_architecture
def test_every_series_of_blocks_is_counted(spec: Architecture) -> None:
    assert {role.series for role in spec.roles} - {""} == set(spec.blocks)
    assert set(spec.blocks.values()) <= {hparam.name for hparam in spec.hparams}


@each_architecture
def test_keys_are_ggufs_and_each_has_one_meaning(spec: Architecture) -> None:
    keys = [hparam.key for hparam in spec.hparams if hparam.key and not (hparam.shared and hparam.length)]
    assert len(set(keys)) == len(keys) and all(re.fullmatch(KEY_PATTERN, key) for key in keys)
    names = [hparam.name for hparam in spec.hparams]
    assert len(set(names)) == len(names)


def test_a_class_belongs_to_one_architecture() -> None:
    classes = [name for spec in ARCHITECTURES.values() for name in spec.hf_classes]
    assert len(set(classes)) == len(classes)
