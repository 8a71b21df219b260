"""Write what transformers takes for keys that a configuration leaves out.

    python tools/transformers_defaults.py > converters/model_graph/class_defaults/text_models.txt

Run where transformers is installed. Only classes that a table of ggferry names, and only keys that a table reads, are
listed. A default is that of the configuration class before it looks at other keys: what it makes of them is for the
tables (`HParam.derive`), and `tests/laws/test_class_defaults.py` holds both together against transformers.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ggferry.converters.model_graph.open_checkpoint import architectures

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from transformers_keys import classes

HEAD = """\
# What transformers {version} takes for keys that a config.json leaves out: model type | classes | parts | other
# names | read | key=value. A part is a member that describes the text model, with its model type; another name is one
# that the class takes for a key; read are the keys without such a value that its code names, of those that families
# share (`HParam.own_only`). Made by tools/transformers_defaults.py; not edited by hand.
"""
ROPE = "rope_parameters"
PROBE = 12345.0


def read_keys() -> set[str]:
    """Return the places of config.json that our tables read, without the members of the rotary parameters."""
    tables = architectures().values()
    fields = (param.fields.get("hf", "") for spec in tables for param in spec.hparams)
    return {place for text in fields for place in text.split("|") if place and not place.startswith("rope_")} | {
        "rope_theta",
        "partial_rotary_factor",
    }


def shared_keys() -> set[str]:
    """Return the keys of which a class reads only its own."""
    params = (param for spec in architectures().values() for param in spec.hparams if param.own_only)
    return {place for param in params for place in param.fields.get("hf", "").split("|") if "." not in place}


def parts() -> set[str]:
    """Return the members that describe the text model of a larger one, as our tables of its classes know them."""
    own = (spec for spec in architectures().values() if any(hasattr(transformers, name) for name in spec.hf_classes))
    dialects = (dialect for spec in own for dialect in spec.dialects)
    return {dialect.config_section for dialect in dialects if dialect.config_section}


def part_of(config: Any, place: str) -> Any:
    """Return the configuration of a part ('thinker_config.text_config'); None where there is none."""
    for name in place.split("."):
        config = getattr(config, name, None)
    return config if isinstance(config, transformers.PretrainedConfig) else None


def changed_parts(kind: Any, parts: Mapping[str, Any], asked: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of a part that are others in this model than where its class stands alone, by their places."""
    for part, sub in parts.items():
        if "." not in part:
            own, alone = made(kind, **{part: {"model_type": sub.model_type}})[part], made(sub)
            for place, value in _flat(own):
                taken = place in asked or place in (
                    "rope_parameters.rope_theta",
                    "rope_parameters.partial_rotary_factor",
                )
                if taken and place != "model_type" and value is not None and value != _at(alone, place):
                    yield f"{part}.{place.removeprefix('rope_parameters.')}", value


def _at(tree: Any, place: str) -> Any:
    for name in place.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def can_be_empty(kind: str) -> bool:
    """Return whether a configuration of this type may leave out every key."""
    try:
        CONFIG_MAPPING[kind]()
    except StrictDataclassError:  # gemma4_assistant takes no default of its text part
        return False
    return True


def stated(kind: Any) -> dict[str, Any]:
    """Return the default of every key of a configuration class that has one other than null."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        value = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            value = item.default_factory()
        if isinstance(value, bool | int | float | str | list | tuple | dict):
            found[item.name] = value
    return found


def rope(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of the rotary parameters.

    They are `rope_parameters` as a whole where a base beside it would not be taken, and else the base alone: for all
    blocks, or for those of a kind.
    """
    if "rope_parameters" not in {item.name for item in dataclasses.fields(kind)}:
        return
    found = made(kind).get(ROPE) or {}
    nested = {name: value for name, value in found.items() if isinstance(value, dict)}
    if nested:
        made_of_others = {item.name for item in dataclasses.fields(kind) if item.default is None}
        for name, value in nested.items():
            kept = ((key, one) for key, one in value.items() if one is not None and key not in made_of_others)
            yield from ((f"{ROPE}.{name}.{key}", one) for key, one in kept)
        return
    beside = {"rope_theta": PROBE, "partial_rotary_factor": 0.5}
    probed = made(kind, **beside).get(ROPE) or {}
    alone = {key for key, one in beside.items() if found.get(key) is not None and probed.get(key) == one}
    if not found.keys() - beside.keys() - {"rope_type"} and found.get("rope_type", "default") == "default":
        alone = beside.keys() & found.keys()  # GPT-NeoX has other names for them
    whole = {key: one for key, one in found.items() if one is not None and key not in alone}
    if whole.keys() - {"rope_type"}:
        yield ROPE, whole
    if isinstance(kind.default_theta, int | float):
        yield "rope_theta", kind.default_theta
    yield from ((key, found[key]) for key in sorted(alone))


def made(kind: Any, **stated: Any) -> dict[str, Any]:
    """Return a configuration of this class as transformers writes it."""
    found: dict[str, Any] = json.loads(json.dumps(kind(**stated).to_dict(), default=str))
    return found


def defaults(kind: Any, asked: set[str]) -> dict[str, Any]:
    """Return the defaults of the keys that our tables read, by their places."""
    found = stated(kind)
    for alias, name in kind.attribute_map.items():
        if name in found:
            found.setdefault(alias, found[name])
    flat = dict(_flat(found))
    for part, sub in kind.sub_configs.items():
        if dataclasses.is_dataclass(sub):
            flat |= {f"{part}.{key}": value for key, value in stated(sub).items()}
    kept = {place: value for place, value in flat.items() if place in asked and place not in ("rope_theta",)}
    return kept | dict(rope(kind))


def _flat(tree: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        yield f"{before}{key}", value


@cache
def words_of(folder: Path) -> frozenset[str]:
    """Return what the code in a folder of transformers may name: members and texts."""
    return frozenset(re.findall(r"""[."'](\w+)""", "".join(path.read_text("utf-8") for path in folder.glob("*.py"))))


def named(cls: Any, names: Iterable[str]) -> frozenset[str]:
    """Return the words by which a configuration class, or the code of the models that have it, may read a key."""
    classes = [cls, *(getattr(transformers, name) for name in names if hasattr(transformers, name))]
    code = frozenset[str]().union(*(words_of(Path(inspect.getfile(each)).parent) for each in classes))
    return code | {item.name for item in dataclasses.fields(cls)} | {*cls.attribute_map, *cls.attribute_map.values()}


def main() -> None:
    """Print the table."""
    print(HEAD.format(version=transformers.__version__), end="")
    asked, within, shared = read_keys(), parts(), shared_keys()
    wanted = {kind: names for kind, names in classes().items() if kind in CONFIG_MAPPING and can_be_empty(kind)}
    lines: dict[str, tuple[str, str, str, str, Any]] = {}
    rest = [(kind, CONFIG_MAPPING[kind], " ".join(sorted(names))) for kind, names in sorted(wanted.items())]
    while rest:
        kind, cls, names = rest.pop(0)
        inner = {part: type(found) for part in within if (found := part_of(cls(), part)) is not None}
        rest += [(sub.model_type, sub, "") for sub in inner.values() if sub.model_type not in wanted]
        if kind not in lines:
            said = " ".join(f"{part}:{sub.model_type}" for part, sub in sorted(inner.items()))
            own = {item.name for item in dataclasses.fields(cls)}  # set in their order: the key's own default is last
            aliases = sorted(pair for pair in cls.attribute_map.items() if pair[1] in asked and pair[0] not in own)
            others = " ".join(f"{alias}:{key}" for alias, key in aliases)
            found = defaults(cls, asked) | dict(changed_parts(cls, inner, asked))
            silent = {place for place in shared & named(cls, names.split()) if place not in found}
            lines[kind] = (names, said, others, " ".join(sorted(silent)), found)
    for kind, (names, said, others, read, found) in sorted(lines.items()):
        items = sorted(found.items())  # transformers makes some of sets
        text = " ".join(f"{key}={json.dumps(value, separators=(',', ':'), sort_keys=True)}" for key, value in items)
        print(kind, names, said, others, read, text, sep=" | ")


if __name__ == "__main__":
    main()
