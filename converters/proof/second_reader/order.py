"""Hold the order of what is stacked and of blocks against the numbers in the source's own names.

Roles are found by patterns of names; here only the numbers are inspected. Experts that are stacked must be in the order
of their numbers, and blocks of the output must follow each other as those of the source do. Projectors of a Granite 4
Vision stand in the order of the text model's blocks that its configuration names for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.formats.errors import VerificationError

_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_PROJECTOR = re.compile(r"(layerwise|spatial)_projectors\.(\d+)\.")


def check_order(source: ModelGraph) -> None:
    """Check that parts and blocks come in the order of their numbers. Raises VerificationError."""
    last: dict[tuple[str, str], tuple[list[int], list[int], str]] = {}
    readers = _readers(source.checkpoint.metadata)
    for node in source.nodes:
        names = [ref.name for ref in node.inputs]
        if len(names) > 1:
            _check_parts(source, node.name, names)
        blocks = [int(number) for number in _NUMBER.findall(node.name)]
        if not blocks or not names:
            continue
        spelling = _PROJECTOR.sub(lambda found: f"projectors.{readers.get(found.groups(), found[2])}.", names[0])
        numbers = [int(number) for number in _NUMBER.findall(spelling)]
        if not numbers:
            continue
        kinds = (_NUMBER.sub("#", node.name), _NUMBER.sub("#", spelling))
        depth = len(blocks) if len(blocks) == len(numbers) else 1  # MobileNetV5's blocks have numbers within a stage's
        here = (blocks[:depth], numbers[:depth], names[0])
        before = last.get(kinds)
        if before is not None and (here[0] > before[0]) != (here[1] > before[1]) and here[1] != before[1]:
            raise VerificationError(
                f"tensor {node.name!r}: blocks in another order than the source's",
                path=source.checkpoint.path,
                found=f"{before[2]} before {here[2]}",
            )
        last[kinds] = here


def _readers(config: Mapping[str, Any]) -> dict[tuple[str | Any, ...], int]:
    """Return kind and number of a Granite 4 Vision's projectors → the block of the text model that reads their rows."""
    pairs, corners = config.get("deepstack_layer_map"), config.get("spatial_target_layers") or (12, 15, 18, 21)
    if not isinstance(pairs, list):
        return {}
    averaging = {("layerwise", str(number)): block for number, (_, block) in enumerate(pairs)}
    return averaging | {("spatial", str(number)): block for number, block in enumerate(corners)}


def _check_parts(source: ModelGraph, name: str, names: Sequence[str]) -> None:
    """Check the numbers of tensors that are stacked, where their names differ in one number alone."""
    if len({_NUMBER.sub("#", each) for each in names}) != 1:
        return
    numbers = [[int(number) for number in _NUMBER.findall(each)] for each in names]
    differing = [place for place, column in enumerate(zip(*numbers, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1:
        return
    found = [each[differing[0]] for each in numbers]
    if found != sorted(found):
        at = next(at for at in range(1, len(found)) if found[at] < found[at - 1])
        raise VerificationError(
            f"tensor {name!r}: stacked in another order than the source's numbers",
            path=source.checkpoint.path,
            found=f"{names[at - 1]} before {names[at]}",
        )
