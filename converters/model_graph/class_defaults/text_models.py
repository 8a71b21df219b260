"""What transformers takes for keys that a configuration leaves out, and which of its rotary parameters are in force.

`text_models.txt` is made by tools/transformers_defaults.py. A class that it does not list has the defaults of its
table alone (`HParam.defaults`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ggferry.converters.model_graph.config_keys import NOTHING, WHOLE, descend
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.records import dataclass

ROPE, OLD_ROPE = "rope_parameters", "rope_scaling"
_FULL = f"{ROPE}.full_attention.rope_theta"


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """The defaults of a class of transformers.

    Attributes:
        origin: What they are, for a receipt.
        values: Place in the configuration of the text model → value.
        aliases: Another name that the class takes for a key of that configuration → the key.
        read: Further keys that the class may read; None where that is not known.
    """

    origin: str
    values: Mapping[str, Any]
    aliases: Mapping[str, str]
    read: Collection[str] | None = None

    def find(self, places: str) -> Any:
        """Return the default of the first of the places ('a.b|c') that has one, or NOTHING."""
        return next((self.values[place] for place in places.split("|") if place in self.values), NOTHING)

    def reads(self, place: str) -> bool:
        """Return whether the class may read what a configuration has at the place: no other is a word of its code."""
        known = self.read is None or "." in place or place in self.aliases
        return known or place in self.values or place in (self.read or ())


@dataclass(frozen=True, slots=True)
class ModelType:
    """A model type of transformers.

    Attributes:
        classes: The classes of our tables that it has.
        parts: Member of the configuration that describes a text model → its model type where none is stated.
        aliases: Another name of a key (`attribute_map`) → the key.
        read: Further keys of our tables that its code names.
        text: The defaults, as the file has them.
    """

    classes: tuple[str, ...]
    parts: Mapping[str, str]
    aliases: Mapping[str, str]
    read: frozenset[str]
    text: str


@cache
def _listed() -> tuple[str, Mapping[str, ModelType]]:
    """Return the version of transformers and its model types."""
    with open(os.path.join(os.path.dirname(__file__), "text_models.txt"), encoding="utf-8") as file:
        text = file.read()
    found = dict[str, ModelType]()
    for line in text.splitlines():
        if not line.startswith("#"):
            kind, names, parts, aliases, read, values = line.split(" | ", 5)
            further = frozenset(read.split())
            found[kind] = ModelType(tuple(names.split()), _pairs(parts), _pairs(aliases), further, values)
    return text.split(maxsplit=4)[3], found


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


def model_types() -> Mapping[str, ModelType]:
    """Return the model types that are listed, by their names."""
    return _listed()[1]


@cache
def _values(kind: str) -> Mapping[str, Any]:
    items = (item.partition("=") for item in _listed()[1][kind].text.split())
    return {key: json.loads(value) for key, _, value in items}


def _kind(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the class that a configuration names, and its model type; '' for one that transformers does not have."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kinds = [kind for kind, each in model_types().items() if name in each.classes]
    kinds.sort(key=lambda kind: not name.lower().startswith(re.sub(r"[_-]", "", kind)))  # llama before internlm3
    return name, next((kind for kind in kinds if kind == config.get("model_type")), kinds[0] if kinds else "")


def default_part(config: Mapping[str, Any], within: str) -> str:
    """Return the model type of a part that states none; '' where transformers has no such class."""
    kind = _kind(config)[1]
    return model_types()[kind].parts.get(within, "") if kind else ""


def class_defaults(config: Mapping[str, Any], within: str) -> ClassDefaults | None:
    """Return the defaults of the class that a configuration names; None for one that transformers does not have.

    Args:
        config: The configuration.
        within: The member of it that describes the text model, if there is one.
    """
    version, types = _listed()
    name, kind = _kind(config)
    if not kind:
        return None
    origin = f"what transformers {version} takes for a {name} where nothing states it"
    if not isinstance(descend(config, within) if within else NOTHING, Mapping):
        return ClassDefaults(origin, _values(kind), types[kind].aliases, types[kind].read)
    declared = descend(config, f"{within}.model_type")
    part = declared if isinstance(declared, str) else types[kind].parts.get(within, "")
    own = {
        key.removeprefix(f"{within}."): value for key, value in _values(kind).items() if key.startswith(f"{within}.")
    }
    whole = {key: value for key, value in _values(kind).items() if key in WHOLE}
    found = {**(_values(part) if part in types else {}), **own, **whole}
    if part not in types:
        return ClassDefaults(origin, found, {})
    return ClassDefaults(origin, found, types[part].aliases, types[part].read)


@dataclass(frozen=True, slots=True)
class InForce:
    """A configuration with the values and rotary parameters that are in force.

    Attributes:
        config: The configuration.
        notes: In what it contradicted itself.
        assumed: Whether the parameters are the class's.
        refused: Why nobody can say which parameters are in force; empty where it is known.
    """

    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    assumed: bool = False
    refused: str = ""


def in_force(config: Mapping[str, Any], within: str, defaults: ClassDefaults | None) -> InForce:
    """Return the configuration with the values and rotary parameters that are in force.

    Of a key and another name that the class takes for it, the other name's value counts: `PretrainedConfig` sets what
    is no field of the class behind its fields (transformers 5.24, `__post_init__`, `attribute_map`). Of
    `rope_parameters` and `rope_scaling`, transformers takes the latter where it is not empty; where both are, some
    classes have parameters of their own (`RotaryEmbeddingConfigMixin.convert_rope_params_to_dict`, version 5.23).
    """
    within = within if within and isinstance(descend(config, within), Mapping) else ""
    part = descend(config, within) if within else config
    pairs = defaults.aliases.items() if defaults else ()
    apart = {key: alias for alias, key in pairs if _contradict(part.get(alias), part.get(key))}
    if not apart:
        return _with_rotary(config, within, defaults)
    part = {**part, **{key: part[alias] for key, alias in apart.items()}}
    found = _with_rotary(_with(config, within, part), within, defaults)
    note = "config.json: {} and {} contradict each other: the latter counts, as in transformers"
    return replace(found, notes=(*(note.format(key, alias) for key, alias in apart.items()), *found.notes))


def _contradict(alias: Any, key: Any) -> bool:
    return alias is not None and key is not None and alias != key


def _with_rotary(config: Mapping[str, Any], within: str, defaults: ClassDefaults | None) -> InForce:
    part = descend(config, within) if within else config
    old, new = part.get(OLD_ROPE), part.get(ROPE)
    whole = defaults.values.get(ROPE) if defaults else None
    apart = defaults is not None and _FULL in defaults.values
    if apart and _is_typed(old) and not (isinstance(new, Mapping) and _by_kind(new)):
        return InForce(config, refused=_TYPED)
    if apart and isinstance(new, Mapping) and new and not _by_kind(new):
        kept = {key: value for key, value in part.items() if key != ROPE}
        note = f"config.json: {ROPE} is not by kind of block: transformers reads nothing of it"
        return InForce(_with(config, within, kept), (note,))
    of_all = defaults is not None and not any(place.startswith(f"{ROPE}.") for place in defaults.values)
    if of_all and isinstance(new, Mapping) and _by_kind(new):
        flat = {key: value for key, value in new.items() if not isinstance(value, Mapping)}
        if flat:  # else there are none of all blocks, and what the class computes is not known
            note = f"config.json: {', '.join(sorted(new.keys() - flat.keys()))} in {ROPE} beside those of all blocks: "
            part = {**part, ROPE: flat}
            found = _with_rotary(_with(config, within, part), within, defaults)
            return replace(found, notes=(note + "transformers reads nothing of it", *found.notes))
    if not old and new is None and whole is not None:
        return InForce(_with(config, within, {**part, ROPE: whole}), assumed=True)
    if not (isinstance(old, Mapping) and old and isinstance(new, Mapping) and new):
        return InForce(config)
    by_kind = _by_kind(new)
    if _meant(new.get("full_attention") if by_kind else new) == _meant(old):
        return InForce(config)
    note = f"config.json: {ROPE} and {OLD_ROPE} contradict each other: {OLD_ROPE} counts, as in transformers"
    if by_kind and _kind(config)[0] in _NEW_COUNTS:
        kept = {key: value for key, value in part.items() if key != OLD_ROPE}
        return InForce(_with(config, within, kept), (note.replace(f"{OLD_ROPE} counts", f"{ROPE} counts"),))
    if by_kind:
        full = new.get("full_attention")
        merged = {**new, "full_attention": {**(full if isinstance(full, Mapping) else {}), **old}}
        kept = {**part, ROPE: merged}
        del kept[OLD_ROPE]
    else:
        kept = {key: value for key, value in part.items() if key != ROPE}
    return InForce(_with(config, within, kept), (note,))


_NEW_COUNTS = ("Step3p7ForConditionalGeneration",)
"""Classes that look at the older parameters only where the new ones are not by kind of block."""
_TYPED = (
    f"{OLD_ROPE} names its kind under 'type', which transformers does not read in a model with rotary parameters for "
    "each kind of block: it would not scale at all. Under 'rope_type' it would; leave it out if nothing is to be scaled"
)


def _is_typed(parameters: Any) -> bool:
    """Return whether rotary parameters are scaled, and say so under the older name alone."""
    return isinstance(parameters, Mapping) and (
        "rope_type" not in parameters and parameters.get("type", "default") != "default"
    )


def _by_kind(parameters: Mapping[str, Any]) -> bool:
    """Return whether each kind of block has rotary parameters of its own."""
    return any(isinstance(member, Mapping) for member in parameters.values())


def _meant(parameters: Any) -> Any:
    """Return rotary parameters with one name for their type."""
    if not isinstance(parameters, Mapping):
        return parameters
    found = {key: value for key, value in parameters.items() if key not in ("type", "rope_type")}
    return {**found, "rope_type": parameters.get("rope_type", parameters.get("type", "default"))}


def _with(config: Mapping[str, Any], within: str, part: Mapping[str, Any]) -> JSONObject:
    """Return the configuration with another text part."""
    if not within:
        return dict(part)
    name, _, rest = within.partition(".")
    return {**config, name: _with(config[name], rest, part)}
