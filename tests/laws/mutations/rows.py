"""What a row of the tables of planted mistakes is."""

from __future__ import annotations

from dataclasses import dataclass

ALONE = ("reading", "accounting", "keys", "decoders", "tensors", "vocabulary", "logits", "adapter", "second reader")
"""Who notices in a proof for which nobody else is asked."""
Change = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake. `model`: of `models.MODELS`; `by`: who notices (`planted.py`); `changes`: (module, old text, new)."""

    name: str
    model: str
    by: str
    changes: tuple[Change, ...]


def among(module: str, *rows: tuple[str, str, str, str, str]) -> tuple[Planted, ...]:
    """Rows (mistake, model, by whom, text, its place) of one module."""
    return tuple(Planted(name, model, by, ((module, old, new),)) for name, model, by, old, new in rows)


def several(name: str, model: str, by: str, *changes: Change) -> Planted:
    """A mistake that takes the place of several texts."""
    return Planted(name, model, by, changes)
