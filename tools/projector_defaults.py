"""Write what transformers takes where a configuration of a vision or audio encoder is silent.

    python tools/projector_defaults.py > converters/model_graph/class_defaults/projectors.txt

Run where transformers is installed. Only what a table of mmproj files asks for is listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.open_checkpoint import projectors
from ggferry.converters.schema.architecture import Architecture, Dialect

HEAD = """\
# What transformers {version} takes where a configuration of a multimodal model is silent, of the keys that our
# tables ask for. A class: the values of its keys, the type of each part that may be of several, the values of a part
# that is absent. A type of such a part, after a colon: the values of its keys.
# Made by tools/projector_defaults.py; not edited by hand.
"""
PARTS = ("vision_config", "audio_config", "encoder_config", "projector_config", "thinker_config")
"""The members that an mmproj file is made of."""
TYPES = ("clip_vision_model", "pixtral", "siglip_vision_model")
"""Types of parts that may be of several, besides each class's own."""


def spoken() -> Iterator[tuple[str, Architecture, Dialect]]:
    """Yield each class of our tables that transformers has, with its table and dialect."""
    for spec in projectors().values():
        listed = {name for dialect in spec.dialects for name in dialect.classes}
        for dialect in spec.dialects:
            if dialect.source != "gguf":
                own = dialect.classes or tuple(name for name in spec.hf_classes if name not in listed)
                yield from ((name, spec, dialect) for name in own if hasattr(transformers, name))


def asked(spec: Architecture, dialect: Dialect) -> set[str]:
    """Return the places that a dialect asks for in config.json."""
    found = {place for param in spec.hparams for place in param.fields.get(dialect.source, "").split("|")}
    return {place for place in found if place and not place.startswith("preprocessor.")}


def fields(kind: Any) -> dict[str, Any]:
    """Return what a class of configurations takes for each key, as config.json would state it; no nulls."""
    found = {name: value for name, value in kind.default_config_fields().items() if isinstance(name, str)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {name: value for name, value in plain.items() if isinstance(value, bool | int | float | str | list)}


def described(kind: Any, before: str = "") -> dict[str, Any]:
    """Return {'keys': place → value, 'types': part → type, 'absent': part → place → value} of a class."""
    keys = {f"{before}{name}": value for name, value in fields(kind).items()}
    types, absent = {}, {}
    for part, spec in kind.sub_configs_defaults.items():
        if part not in PARTS:
            continue
        if issubclass(spec.config_class, transformers.PreTrainedConfig):
            inner = described(spec.config_class, f"{before}{part}.")
            keys |= inner["keys"]
            types |= inner["types"]
        else:
            types[f"{before}{part}"] = spec.model_type
        if spec.init_kwargs:
            absent[f"{before}{part}"] = {f"{before}{part}.{name}": value for name, value in spec.init_kwargs.items()}
    return {"keys": keys, "types": types, "absent": absent}


def only(found: Mapping[str, Any], places: set[str]) -> dict[str, Any]:
    """Return what was asked for."""
    keys = {place: value for place, value in found["keys"].items() if place in places}
    absent = {part: {p: v for p, v in said.items() if p in places} for part, said in found["absent"].items()}
    all_of = {"keys": keys, "types": found["types"], "absent": {part: said for part, said in absent.items() if said}}
    return {name: value for name, value in all_of.items() if value}


def main() -> None:
    """Print the file."""
    print(HEAD.format(version=transformers.__version__), end="")
    places: dict[str, set[str]] = {}
    for name, spec, dialect in spoken():
        places.setdefault(name, set()).update(asked(spec, dialect))
    kinds, inner = set(TYPES), set()
    for name in sorted(places):
        found = described(getattr(transformers, name).config_class)
        kinds |= set(found["types"].values())
        inner |= {place.rpartition(".")[2] for place in places[name] if place.startswith(tuple(found["types"]))}
        if said := only(found, places[name]):
            print(name, json.dumps(said, sort_keys=True))
    for kind in sorted(kinds & set(CONFIG_MAPPING)):
        said = {key: value for key, value in fields(CONFIG_MAPPING[kind]).items() if key in inner}
        print(f":{kind}", json.dumps({"keys": said}, sort_keys=True))


if __name__ == "__main__":
    main()
