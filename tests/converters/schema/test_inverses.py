"""Inverses of derivations that no checkpoint of the other tests exercises."""

from __future__ import annotations

import pytest

from ggferry.converters.architectures import _limits as limits
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.schema.derivations import rule_name
from ggferry.converters.schema.inverses.numbers import fraction
from ggferry.converters.schema.inverses.table import HINGES, INVERSES


@pytest.mark.parametrize("whole", [24, 64, 80, 96, 128, 192])
def test_a_fraction_of_a_head_turns_as_much_of_it(whole: int) -> None:
    for part in range(2, whole + 1, 2):
        assert int(whole * fraction(part, whole)) == part, part


@pytest.mark.parametrize(
    ("part", "whole", "expected"), [(8, 24, 0.34), (32, 128, 0.25), (64, 192, 0.334), (64, 64, 1.0)]
)
def test_a_fraction_is_short(part: int, whole: int, expected: float) -> None:
    assert fraction(part, whole) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((0.7, 0.7), {"limit": 0.7}), (0.7, {"limit": 0.7}), ((0.7, 0.5), {}), (None, {"limit": None})],
)
def test_one_bound_is_that_of_all_blocks(bounds: object, expected: dict[str, object]) -> None:
    undo = limits.of_experts("").undo
    assert undo is not None and undo({"expert_limit": bounds}) == expected


def test_every_inverse_is_of_a_derivation_or_computed_tensor_of_some_table() -> None:
    used = {rule_name(param.derive) for spec in architectures().values() for param in spec.hparams if param.derive}
    for spec in architectures().values():
        for role in spec.roles:
            used |= {rule_name(origin.computed) for origin in role.sources.values() if origin.computed}
    assert set(INVERSES) <= used, sorted(set(INVERSES) - used)
    assert set(HINGES) <= {param.name for spec in architectures().values() for param in spec.hparams}
