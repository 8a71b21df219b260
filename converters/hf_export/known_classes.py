"""What transformers knows of a class: its model type, and the keys of its configuration.

`transformers_keys.txt` is made by tools/transformers_keys.py, `other_classes.txt` is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from importlib.resources import files

from ggferry.support.records import dataclass

PARTIAL, FLAT, NESTED = "partial_rotary_factor", "rope_parameters.rope_theta", "rope_parameters.full_attention."
_SETS = ("rope_parameters.", "rope_scaling.")
_PARTS = ("attn_config.", "ffn_config.")
EITHER = (NESTED, "rope_parameters.sliding_attention.")
TEXT = "text_config."
_KIND = re.compile(r"rope_parameters\.\w+\.")
"""Where the rotary parameters of a kind of block are."""
_ITEM = re.compile(r"(?P<key>[^=:!]+)(?:=(?P<words>[^!]*))?(?P<whole>:int)?(?P<solid>!)?")


@dataclass(frozen=True, slots=True)
class KnownClass:
    """A class of config.json.

    Attributes:
        name: Its name.
        model_type: What its configurations call themselves.
        keys: The keys of its configuration; empty where only its author knows them.
        words: The words that the defaults of some keys use.
        whole: The keys that hold whole numbers.
        solid: The keys that must not be null.
    """

    name: str
    model_type: str
    keys: frozenset[str] = frozenset()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    solid: frozenset[str] = frozenset()

    @property
    def config_section(self) -> str:
        """The member of its configuration that describes the text half, with a dot; '' where there is none."""
        return TEXT if any(key.startswith(TEXT) for key in self.keys) and "hidden_size" not in self.keys else ""

    def takes(self, place: str) -> bool:
        """Return whether a value at `place` means something to the class."""
        key = self.config_section + place
        parent = f"{key.partition('.')[0]}."
        if not self.keys or key in self.keys or (place.startswith(_PARTS) and parent in self._parents):
            return True
        if ".*." in place:
            return True
        rotary = {name for name in self.keys if name.startswith(f"{self.config_section}rope_parameters.")}
        if kind := _KIND.match(place):
            own = (kind[0], NESTED) if place.startswith(EITHER) else (kind[0],)
            return any(name.startswith(tuple(self.config_section + each for each in own)) for name in rotary)
        if place == PARTIAL and self.config_section + NESTED + PARTIAL in self.keys:
            return False
        old = place in ("rope_theta", PARTIAL) or place.startswith("rope_scaling.")
        flat = self.config_section + FLAT in rotary
        return bool(rotary) and (
            (old and (flat or place == PARTIAL)) or (flat and place.startswith("rope_parameters."))
        )

    @property
    def _parents(self) -> frozenset[str]:
        return frozenset(f"{key.partition('.')[0]}." for key in self.keys if "." in key)

    def places(self, places: str) -> tuple[str, ...]:
        """Return at which of the places ('a.b|c') a value is stated; none where the class knows none of them.

        It is one. Of rotary parameters the older form is preferred, which every version reads, unless each kind of
        block has its own: what is stated for a kind stands beside it, too, where the class has a key for that. Code
        beside weights reads the base itself, which is none of a scaling.
        """
        taken = [place for place in places.split("|") if self.takes(place)]
        if not self.keys:
            return (min(taken, key=lambda place: place.startswith("rope_parameters.") + place.startswith(_SETS)),)
        plain = [place for place in taken if not place.startswith("rope_parameters.")]
        exact = [place for place in plain if self.config_section + place in self.keys]
        own = [place for place in taken if _KIND.match(place) and not place.startswith(NESTED)]
        return (own[0], *exact) if own else (*exact, *plain, *taken)[:1]


@cache
def _listed() -> dict[str, list[KnownClass]]:
    found: dict[str, list[KnownClass]] = {}
    for model_type, names, text in _lines("transformers_keys.txt"):
        items = [_ITEM.fullmatch(item) for item in text.split()]
        keys = {item["key"]: item for item in items if item}
        words = {key: tuple((item["words"] or "").split(",")) for key, item in keys.items()}
        whole = frozenset(key for key, item in keys.items() if item["whole"])
        solid = frozenset(key for key, item in keys.items() if item["solid"])
        for name in names.split():
            found.setdefault(name, []).append(KnownClass(name, model_type, frozenset(keys), words, whole, solid))
    for name, model_type in _lines("other_classes.txt"):
        found.setdefault(name, []).append(KnownClass(name, model_type))
    return found


def _lines(name: str) -> Iterator[list[str]]:
    text = files("ggferry.converters.hf_export").joinpath(name).read_text("utf-8")
    return (line.split(" | ") for line in text.splitlines() if not line.startswith("#"))


def known_class(name: str) -> KnownClass | None:
    """Return what is known of a class, under several model types of one with a text model's keys.

    It is the one that the class is named after (not 'sarvam_mla' for DeepSeek V3's), else the shortest.
    """
    listed = _listed().get(name)
    return min(listed, key=lambda each: _order(name, each)) if listed else None


def _order(name: str, known: KnownClass) -> tuple[bool, bool, int]:
    named_after = name.lower().startswith(known.model_type.replace("_", "").replace("-", ""))
    return bool(known.config_section), not named_after, len(known.model_type)
