"""What transformers takes where a configuration is silent: the defaults of the classes whose towers our tables read.

`projectors.txt` is made by tools/projector_defaults.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.expressions import names_in
from ggferry.formats.errors import UnsupportedError

SOURCE = "hf"
"""The column of places in config.json."""


@cache
def _known() -> Mapping[str, str]:
    from importlib.resources import files

    lines = (files(__package__) / "projectors.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if not line.startswith("#"))


def class_default(name: str, config: Mapping[str, Any], place: str) -> Any:
    """Return what class `name` takes for the key at `place`, which `config` does not state; None for nothing known."""
    defaults = json.loads(_known().get(name, "{}"))
    part = place.rpartition(".")[0]
    declared = _member(config, part) if part else config
    if not isinstance(declared, Mapping) and place in defaults.get("absent", {}).get(part, {}):
        return defaults["absent"][part][place]
    if part in defaults.get("types", {}):
        own = declared.get("model_type") if isinstance(declared, Mapping) else None
        kind = own if isinstance(own, str) else defaults["types"][part]
        return json.loads(_known().get(f":{kind}", "{}")).get("keys", {}).get(place.removeprefix(f"{part}."))
    return defaults.get("keys", {}).get(place)


def with_class_defaults(spec: Architecture, name: str, config: Mapping[str, Any], path: str) -> Architecture:
    """Return the table with the defaults of the class that `config` names, for what `config` does not state.

    The table's own defaults come first; what a tensor's shape tells is not given one.

    Args:
        spec: The table of an mmproj file.
        name: The dialect.
        config: The whole configuration.
        path: The checkpoint, for errors.

    Raises UnsupportedError where the class's default is a word that the table does not compute.
    """
    dialect, classes = spec.dialect(name), config.get("architectures")
    known = (
        [each for each in classes if isinstance(each, str) and each in _known()] if isinstance(classes, list) else []
    )
    if not known or dialect.source != SOURCE:
        return spec
    shaped = {word for role in spec.roles for text in role.shape for word in names_in(text)}
    hparams = (
        param
        if param.name in dialect.fixed or (param.key is None and param.name in shaped)
        else _completed(param, dialect, known[0], config, path)
        for param in spec.hparams
    )
    return replace(spec, hparams=tuple(hparams))


def _completed(param: HParam, dialect: Dialect, name: str, config: Mapping[str, Any], path: str) -> HParam:
    places = [place for place in param.fields.get(SOURCE, "").split("|") if place]
    if any(_member(config, place) is not None for place in places):
        return param
    found = next(
        ((place, value) for place in places if (value := class_default(name, config, place)) is not None), None
    )
    if found is None:
        return param
    value = _worded(param, *found, name, path)
    last = Default(value, f"transformers' default of {name}", dialect=SOURCE)
    return replace(param, defaults=(*param.defaults, last))


def _worded(param: HParam, place: str, value: Any, name: str, path: str) -> Any:
    items: Iterable[Any] = value if isinstance(value, list) else (value,)
    known = param.words or dict.fromkeys(items)
    for item in items:
        if item not in known:
            raise UnsupportedError(
                f"config: {place} (not stated: transformers' default of {name})",
                path=path,
                found=item,
                expected=", ".join(map(repr, known)),
            )
    worded = tuple(param.words.get(item, item) for item in items)
    return worded if isinstance(value, list) else worded[0]


def _member(config: Any, place: str) -> Any:
    for name in place.split("."):
        if not isinstance(config, Mapping):
            return None
        config = config.get(name)
    return config
