"""config.json from a bound model: the places of the hparams, read the other way."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from ggferry.converters.hf_export.known_classes import FLAT, PARTIAL, KnownClass
from ggferry.converters.hf_export.source_tensors import declared_flags
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known, implied
from ggferry.converters.model_graph.rows import laid_out_values
from ggferry.converters.model_graph.tensor_roles import origin_of, pattern_regex
from ggferry.converters.schema.architecture import Dialect, HParam
from ggferry.converters.schema.derivations import derive, rule_name
from ggferry.converters.schema.expressions import holds, names_in, solve, verdict
from ggferry.converters.schema.inverses.numbers import plain
from ggferry.converters.schema.inverses.table import HINGES, INVERSES
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.json_files.kinds import JSONObject

_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
_IDLE = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
"""What says how a scaling is done, where there is none."""
_ORIGINAL = "rope_parameters.original_max_position_embeddings"
_TIE = "tie_word_embeddings"
_LARGEST = 1 << 16
"""Most elements of a small tensor that follows from the configuration."""


class Extent(Enum):
    """What a configuration states, in the order in which that is tried."""

    KNOWN = "what the class has a key for"
    DECLARED = "also what the model states"
    ALL = "also what follows from what the model states"


def all_values(graph: ModelGraph, dialect: Dialect, hf_class: str) -> JSONObject:
    """Return the value of every hparam, by short name, that the model's keys and tensors lead to.

    Those that only a configuration has are found by the inverse of what was derived from them, by the tensors that
    depend on them, or are what the tables take where nothing is said.
    """
    absent = {
        param.name: param.absent for param in graph.architecture.hparams if param.key and param.absent is not None
    }
    keyless = {param.name for param in graph.architecture.hparams if not param.key}
    known = {
        name: param.value
        for name, param in graph.hparams.items()
        if not (name in keyless and param.known is Known.ASSUMED)
    }
    values: JSONObject = {**absent, **known}
    values |= {"hf_class": hf_class, "tensors": frozenset(node.role.name for node in graph.nodes)}
    values |= {"taken": frozenset(), "blocks": _blocks(graph), **_small_tensors(graph, dialect)}
    for name, value in dialect.fixed.items():
        values.setdefault(name, value)
    _invert(graph, dialect, values)
    _by_presence(graph, dialect, values)
    _by_default(graph, dialect, values)
    return values


def _blocks(graph: ModelGraph) -> dict[str, frozenset[int]]:
    """Return the blocks that have each role."""
    found: dict[str, set[int]] = {}
    for node in graph.nodes:
        match = pattern_regex(node.role.name).fullmatch(node.name) if node.role.per_block else None
        if match:
            found.setdefault(node.role.name, set()).add(int(match["n"]))
    return {name: frozenset(numbers) for name, numbers in found.items()}


def _small_tensors(graph: ModelGraph, dialect: Dialect) -> dict[str, tuple[float, ...]]:
    """Return the values of the tensors that follow from a configuration, by name."""
    found = {}
    for node in graph.nodes:
        origin = origin_of(node.role, dialect)
        if origin is not None and origin.computed and len(node.shape) == 1 and node.shape[0] <= _LARGEST:
            read = laid_out_values(graph.checkpoint, node, 0, 1)
            found[node.name] = tuple(float(value) for value in read.reshape(-1))
    return found


def _invert(graph: ModelGraph, dialect: Dialect, values: JSONObject) -> None:
    """Learn what the derivations of known hparams were derived from."""
    known = {param.name for param in graph.architecture.hparams}
    rules = {rule_name(param.derive): param for param in graph.architecture.hparams if param.derive}
    computed = (origin_of(role, dialect) for role in graph.architecture.roles)
    for param in graph.architecture.hparams:
        if param.name in HINGES and param.name not in values and len(set(param.words.values())) != 1:
            values |= {name: value for name, value in HINGES[param.name](values).items() if name == param.name}
    for param in graph.architecture.hparams:
        for other, value in (param.undo(values) if param.undo else {}).items():
            if other in known and value is not None:
                values.setdefault(other, value)
    names = [*rules, *dict.fromkeys(rule_name(origin.computed) for origin in computed if origin and origin.computed)]
    for name in names:
        derived = rules.get(name)
        found: Mapping[str, Any] = {}
        if name in INVERSES:
            found = INVERSES[name](values)
        elif derived is not None and isinstance(derived.derive, str) and values.get(derived.name) is not None:
            found = _solved(derived.derive, values[derived.name], values)
        for other, value in found.items():
            if other in known and other not in values and value is not None:
                values[other] = value


def _solved(expression: str, value: Any, values: Mapping[str, Any]) -> JSONObject:
    """Return the one unknown of a size expression."""
    sizes = {name: found for name, found in values.items() if isinstance(found, int | float)}
    try:
        answer = solve(expression, value, sizes) if isinstance(value, int) else None
    except ValueError:
        return {}
    return dict([answer]) if answer else {}


def _by_presence(graph: ModelGraph, dialect: Dialect, values: JSONObject) -> None:
    """Learn the truths and small numbers on which the presence of tensors depends."""
    unknown = [
        param
        for param in graph.architecture.hparams
        if not (param.length or param.key) and param.name not in values and len(set(param.words.values())) != 1
    ]
    for param in unknown:
        conditions = [role for role in graph.architecture.roles if param.name in names_in(role.when or "0")]
        candidates = {ValueType.BOOL: (True, False), ValueType.UINT32: (1, 2)}.get(param.kind, ())
        possible = [
            value
            for value in candidates
            if all(_agrees(graph, role, {**values, param.name: value}) for role in conditions)
        ]
        if conditions and len(possible) == 1:
            values[param.name] = possible[0]


def _agrees(graph: ModelGraph, role: Any, values: Mapping[str, Any]) -> bool:
    """Return whether the tensors of a role are there where its condition says so."""
    for n in range(values["n_layer"]) if role.per_block else (None,):
        decided = verdict(role.when, values if n is None else {**values, "n": n})
        there = role.name.format(n=n) in graph.by_name
        if decided is not None and there != decided and not (decided and role.optional):
            return False
    return True


def _by_default(graph: ModelGraph, dialect: Dialect, values: JSONObject) -> None:
    """Take what the tables take where a configuration says nothing, and the only word that a table knows."""
    for param in graph.architecture.hparams:
        if values.get(param.name) is not None:
            continue
        meanings = list(dict.fromkeys(param.words.values()))
        if len(meanings) == 1 and meanings[0] is not None and param.length in ("", "n_layer"):
            values[param.name] = (meanings[0],) * values["n_layer"] if param.length else meanings[0]
            values["taken"] |= set() if param.length else {param.name}
            continue
        for default in param.defaults:
            of_dialect = default.dialect in ("", dialect.name, dialect.source)
            if of_dialect and not default.named and (not default.when or holds(default.when, values)):
                values[param.name] = default.value
                break


def configuration(
    graph: ModelGraph, dialect: Dialect, known: KnownClass, values: Mapping[str, Any], extent: Extent
) -> tuple[JSONObject, list[str]]:
    """Return config.json, without what belongs to the tokenizer, and the places that mean nothing to the class.

    Args:
        graph: The model.
        dialect: How the checkpoint will name things.
        known: The class.
        values: Every hparam's value (`all_values`).
        extent: What is stated besides what the class has a place for.
    """
    config: JSONObject = {"architectures": [known.name], "model_type": known.model_type}
    unplaced, true_places = [], declared_flags(graph, dialect, values)
    for param in graph.architecture.hparams:
        places = param.fields.get(dialect.source, "")
        value = values.get(param.name)
        if not places or places == "model_type" or (value is None and not _must_be_silent(param, known, places)):
            continue
        if param.nonzero and not value and places in true_places:
            continue  # of some biases that one key says there are (`zero_biases`)
        found = known.places(places)
        declared = param.name in graph.hparams and value != implied(param, values)
        included = extent is Extent.ALL or (declared and extent is Extent.DECLARED)
        if not found and included and value != param.absent and param.name not in dialect.fixed:
            place = next((one for one in places.split("|") if not one.startswith("rope_")), places.split("|")[-1])
            unplaced.append(place)
            found = (place,)
        if (
            found
            and param.name in values["taken"]
            and not isinstance(value, bool)
            and known.keys
            and known.config_section + found[0] not in known.solid
        ):
            continue  # null by default, as good as the only word that the tables know
        for place in found:
            _put(config, known.config_section + place, _as_declared(param, known, place, value), values)
    _state_followers(config, dialect, known, values)
    inner = config if not known.config_section else config[known.config_section[:-1]]
    if inner is not config and _TIE in inner:
        config[_TIE] = inner[_TIE]  # by the whole model's, transformers ties (`PreTrainedModel.tie_weights`)
    _without_idle_scaling(inner)
    _in_both_forms(inner, known, values)
    return config, unplaced


def _in_both_forms(config: JSONObject, known: KnownClass, values: Mapping[str, Any]) -> None:
    """State rotary parameters also as transformers 5 does, all in one object, where each kind of block has the same.

    Older versions read `rope_theta` and `rope_scaling`.
    """
    base = config.get("rope_theta", config.get("rope_scaling", {}).get("rope_theta", values.get("rope_base")))
    if known.config_section + FLAT in known.keys and base is not None:
        scaling = config.get("rope_scaling") or {"rope_type": "default"}
        part = {PARTIAL: config[PARTIAL]} if PARTIAL in config else {}
        declared = config.get("rope_parameters", {})
        whole = {**declared, **scaling, "rope_theta": plain(float(base)), **part}
        if known.config_section + _ORIGINAL in known.solid:
            whole.setdefault(_ORIGINAL.partition(".")[2], values["n_ctx"])  # its class computes with it, scaled or not
        config["rope_parameters"] = whole
        if "rope_scaling" in config:
            config["rope_scaling"] = whole  # it wins, where both are there


def _state_followers(config: JSONObject, dialect: Dialect, known: KnownClass, values: Mapping[str, Any]) -> None:
    """State keys that our tables do not read because they follow from others; the class may read them."""
    for entry in dialect.ignored_keys:
        for key in entry.keys.split() if entry.follows else ():
            place = known.config_section + key
            if (known.takes(key) and known.keys) or (not known.keys and "*" not in key and key not in config):
                try:
                    _put(config, place, derive(entry.follows, values), values)
                except (KeyError, ValueError, TypeError, ZeroDivisionError):
                    continue


def _must_be_silent(param: HParam, known: KnownClass, places: str) -> bool:
    """Return whether a null must be written: the class would take its default for what the model does not have."""
    return param.absent is not None and any(known.config_section + place in known.keys for place in places.split("|"))


def _as_declared(param: HParam, known: KnownClass, place: str, value: Any) -> Any:
    """Return a value as config.json states it: in the source's words, null for what is not there."""
    if value is None or (param.unrepresentable is not None and value == param.unrepresentable):
        return None
    newer = place.replace("rope_scaling.", "rope_parameters.")
    present = {known.config_section + place, known.config_section + newer} & (known.solid | known.whole)
    if value == param.absent and not value and known.keys and not present:
        return None
    if param.null is not None and value == param.null:
        number = known.config_section + place in known.whole and not param.null_default
        return value if not known.keys or number or known.config_section + place in known.solid else None
    if isinstance(value, tuple):
        items = [_word(param, known, place, item) for item in value]
        single = param.allow_scalar and len(set(value)) == 1 and known.config_section + place in known.whole
        return items[0] if single else items
    return _word(param, known, place, value)


def _word(param: HParam, known: KnownClass, place: str, value: Any) -> Any:
    words = [word for word, meaning in param.words.items() if meaning == value and type(meaning) is type(value)]
    if words:
        usual = known.words.get(known.config_section + place, ())
        word = next((word for word in words if word in usual), words[0])
        if isinstance(word, str):
            return word
        return (
            _number(param, known, place, word)
            if isinstance(word, float) or param.kind in _FLOATS or not param.length
            else word
        )
    return _number(param, known, place, value) if isinstance(value, int | float) else value


def _number(param: HParam, known: KnownClass, place: str, value: float) -> Any:
    """Return a number of the kind that the key holds."""
    if isinstance(value, bool) or param.kind is ValueType.BOOL:
        return bool(value)
    if param.kind not in _FLOATS:
        return value
    short = plain(float(value))
    return int(short) if known.config_section + place in known.whole and short.is_integer() else short


def _put(config: JSONObject, place: str, value: Any, values: Mapping[str, Any]) -> None:
    """State a value; '*' stands for every block without a window."""
    if ".*." in place:
        before, _, behind = place.partition(".*.")
        for n, window in enumerate(values.get("swa_layers") or ()):
            if not window:
                _put(config, f"{before}.{n}.{behind}", value, values)
        return
    *parents, name = place.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[name] = value


def _without_idle_scaling(config: JSONObject) -> None:
    """Take out a scaling that scales nothing, and how it would be done for a kind of block that has none."""
    for kind in config.get("rope_parameters", {}).values():
        for name in _IDLE if isinstance(kind, dict) and kind.get("rope_type") == "default" else ():
            kind.pop(name, None)
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.setdefault("rope_type", "default") != "default":
        return
    for name in _IDLE:
        scaling.pop(name, None)
    if set(scaling) == {"rope_type"}:
        del config["rope_scaling"]
