"""Read tensors of torchao's classes as the plain tensors and settings that they are made of.

They get the names that torchao gives them in safetensors: `MODULE._NAME_ATTRIBUTE`, with a line of JSON for each, of
its class and its other attributes. Source: torchao 0.18.0 `prototype/safetensors/safetensors_support.py`, `utils.py`
(`TorchAOBaseTensor`).
"""

from __future__ import annotations

import json
from typing import Any

from ggferry.formats.limits import MAX_NAME, MAX_RANK
from ggferry.formats.pytorch.pickle_names import WRAPPER, Global, Record, View
from ggferry.formats.pytorch.trainer_fields import TrainerClasses

CLASSES = TrainerClasses("torchao.", WRAPPER)


def expand(value: Any) -> tuple[Any, dict[str, str]]:
    """Return a dictionary with the tensors of such classes in place of them, and the line of each; others as they are.

    The state dicts that stand in it under a key of their own are looked through, too.
    """
    if not isinstance(value, dict):
        return value, {}
    made: dict[Any, Any] = {}
    lines: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            inner, more = expand(item) if not any(isinstance(each, dict) for each in item.values()) else (item, {})
            made[key], lines = inner, lines | more
        elif isinstance(item, Record) and isinstance(key, str) and isinstance(item.state, dict):
            module, _, name = key.rpartition(".")
            views = {end: each for end, each in item.state.items() if isinstance(end, str) and isinstance(each, View)}
            made |= {f"{module}._{name}_{end}": each for end, each in views.items()}
            rest = {end: _plain(each) for end, each in item.state.items() if isinstance(end, str) and end not in views}
            lines[key] = json.dumps({"_type": item.name.rpartition(".")[2], "_data": rest})
        else:
            made[key] = item
    return made, lines


def _plain(value: Any) -> Any:
    """Return a setting for JSON: a number, a short word, a list of numbers, the name of a dtype; else of its type."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value[:MAX_NAME]
    if isinstance(value, Global):
        return value.name.removeprefix("torch.")
    if isinstance(value, (list, tuple)) and len(value) <= MAX_RANK and all(type(each) is int for each in value):
        return list(value)
    return type(value).__name__
