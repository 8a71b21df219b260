"""What a source states of its hparams: header fields, GGUF keys or a configuration, each value checked for its type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.model_graph.class_defaults.text_models import ROPE, InForce, class_defaults, in_force
from ggferry.converters.model_graph.config_keys import NOTHING, Recorded, descend
from ggferry.converters.model_graph.tensor_numbers import numbers
from ggferry.converters.schema.architecture import Dialect, HParam
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import PREPROCESSOR
from ggferry.formats.errors import GgferryError, InconsistentError, OutOfRangeError, UnsupportedError, UsageError
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.json_files.kinds import is_number
from ggferry.formats.limits import MAX_LAYERS

FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
FLOAT32_MAX = (2 - 2**-23) * 2.0**127
MAX_ITEMS = MAX_LAYERS * 4
"""Most items of an hparam that is a list: one for each block, or for each rotary frequency."""
_ORIGINS = {"gguf": "key {}", "ggml": "header field {}", "meta": "params.json: {}"}


class Statements:
    """What one source states of its hparams.

    Attributes:
        config: The configuration, which remembers what was asked for; empty for GGUF files.
        notes: In what it contradicts itself.
    """

    def __init__(self, checkpoint: Checkpoint, dialect: Dialect, prefix: str, of_text: bool = True) -> None:
        self._checkpoint, self._dialect, self._prefix = checkpoint, dialect, prefix
        config: Mapping[str, Any] = {} if checkpoint.container == "gguf" else checkpoint.metadata
        found, self._defaults = InForce(config), None
        if of_text and config and dialect.source == "hf" and not dialect.header:
            self._defaults = class_defaults(config, dialect.config_section)
            found = in_force(config, dialect.config_section, self._defaults)
            if found.refused:
                raise InconsistentError(f"config.json: {found.refused}", path=checkpoint.path)
        self._rope_assumed, self.notes = found.assumed, found.notes
        self._from_class: set[str] = set()
        self.config = Recorded(found.config, dialect.config_section)
        nested = (name for name in dialect.nested if of_text and isinstance(self.config.find(name), Mapping))
        self._sections = tuple(f"{name}." for name in nested)

    def of(self, param: HParam, seen: bool = False) -> tuple[Any, str] | None:
        """Return (value, where it is stated) of `param`, or None where the source does not state it.

        `seen` says that the presence of tensors shows the value, so that the configuration given with a GGML-era file
        is not used for it.

        Raises:
            InconsistentError: The value has another type, or header and configuration contradict each other.
            OutOfRangeError: No GGUF key can hold the value.
            UnsupportedError: `param.words` lacks the source's word, or GGUF cannot express the value.
        """
        found = self._in(param, self._dialect.source)
        if param.tensors and self._dialect.source == "hf":
            stored = numbers(self._checkpoint, param.tensors)
            found = stored and (_typed(self._checkpoint, param, *stored), stored[1])
        if self._dialect.source != "ggml" or not self._checkpoint.metadata:
            return found
        beside = self._in(param, "hf")  # --hf-config
        if seen:
            return found
        if found and beside and found[0] != beside[0]:
            raise InconsistentError(
                f"{param.name}: the configuration does not fit the tensors",
                path=self._checkpoint.path,
                found=f"{beside[0]} ({beside[1]})",
                expected=f"{found[0]} ({found[1]})",
            )
        return found or beside

    def default_of(self, param: HParam) -> tuple[Any, str] | None:
        """Return (value, why) of what the class takes for `param` where no place states anything, not even a null.

        Raises what `of` raises.
        """
        places = self._in_sections(param.fields.get("hf", "").split("|"))
        if self._defaults is None or any(self.config.find(place) is not NOTHING for place in places):
            return None
        for place in places:
            found = self._defaults.find(place)
            if found is not NOTHING and not self._in_declared_kind(place):
                self._from_class.add(param.name)
                return self._value(param, "hf", place, found)[0], self._defaults.origin
        return None

    def _in_declared_kind(self, place: str) -> bool:
        """Return whether `place` is in rotary parameters of a kind of blocks that the configuration states.

        A class that is given them takes no others of its own (transformers `LagunaConfig`, `Gemma4TextConfig`).
        """
        kind, _, member = place.rpartition(".")
        return (
            kind.startswith(f"{ROPE}.")
            and member != "rope_theta"
            and isinstance(self.config.find(kind), Mapping | dict)
        )

    def is_default(self, param: HParam) -> bool:
        """Return whether the value that was found of `param` is the class's."""
        return param.name in self._from_class

    def pass_over(self, param: HParam, value: Any, overridden: bool) -> None:
        """Record that the value of `param` comes from elsewhere.

        A value from the user (`overridden`) counts as read whatever the configuration states; a value of the dialect
        only if the configuration agrees with it.
        """
        column = "hf" if self._dialect.source == "ggml" else self._dialect.source
        for place in filter(None, param.fields.get(column, "").split("|")):
            found = self.config.find(place)
            if overridden or found is None or self._agrees(param, column, place, found, (value, "")):
                self.config.ask(place)

    def _in(self, param: HParam, column: str) -> tuple[Any, str] | None:
        """Return the value of the first place in `column` that states one, and where it is stated.

        The other places count as read, too, if they agree.
        """
        every = param.fields.get(column, (param.key or "") if column == "gguf" else "").split("|")
        places = self._in_sections(every)
        declared: tuple[Any, str] | None = None
        for place in filter(None, self._own(param, places)):
            found = self._find(param, place, column)
            silent = found is NOTHING or (found is None and param.null is None)
            if not silent and declared is None:
                declared = self._value(param, column, place, found)
            elif not silent and not self._agrees(param, column, place, found, declared):
                continue
            if column not in ("gguf", "ggml"):
                self.config.ask(place)
        for place in set(every).difference(places) if declared is not None else ():
            if self._agrees(param, column, place, self.config.find(place), declared):
                self.config.ask(place)
        return declared

    def _in_sections(self, places: list[str]) -> list[str]:
        """Return the places that are read: none at the root of what a section has that the configuration states.

        A class that is given MPT's `attn_config` reads what it has there alone, MosaicML's and transformers'.
        """
        inside = any(place.startswith(self._sections) for place in places)
        return [place for place in places if "." in place] if inside else places

    def _own(self, param: HParam, places: list[str]) -> list[str]:
        """Return the places of `param` that are read, and in which order, where transformers has the class.

        Of two keys that contradict each other a class reads its own, and the other is one of another family.
        """
        known = self._defaults
        if known is None or not (param.own_first or param.own_only):
            return places
        read = filter(known.reads, places) if param.own_only else places
        return sorted(read, key=lambda place: known.find(place) is NOTHING)

    def _value(self, param: HParam, column: str, place: str, found: Any) -> tuple[Any, str]:
        if place.startswith(PREPROCESSOR):
            origin = f"{PREPROCESSOR}_config.json: {place.removeprefix(PREPROCESSOR + '.')}"
        elif self._rope_assumed and self._defaults is not None and place.startswith(f"{ROPE}."):
            origin = self._defaults.origin
            self._from_class.add(param.name)
        else:
            origin = _ORIGINS.get(column, f"{self._dialect.header or 'config.json'}: {{}}").format(place)
        if found is None:
            return param.null, f"{origin} is null"
        if param.null is not None and param.length and isinstance(found, list):
            found = [param.null if item is None else item for item in found]
        if param.repeated:
            found = _repeated(found)
        if param.words and column != "gguf":
            found = _translated(self._checkpoint, param, place, found)
        if column == "gguf" and param.kind is ValueType.BOOL and param.length and isinstance(found, Sequence):
            # llama.cpp's converter writes MiMo-V2's windows as numbers, and its loader takes either (`get_arr`)
            found = [bool(item) if type(item) is int and item in (0, 1) else item for item in found]
        value = _typed(self._checkpoint, param, found, origin)
        if column != "gguf" and param.unrepresentable is not None and value == param.unrepresentable:
            raise UnsupportedError(
                f"{param.name} ({origin}): GGUF readers take this value as absent",
                path=self._checkpoint.path,
                found=value,
            )
        return value, origin

    def _agrees(self, param: HParam, column: str, place: str, found: Any, declared: Any) -> bool:
        try:
            return bool(self._value(param, column, place, found)[0] == declared[0])
        except GgferryError:
            return False

    def _find(self, param: HParam, place: str, column: str) -> Any:
        if column == "gguf":
            value = self._checkpoint.metadata.get(place if param.global_key else f"{self._prefix}.{place}")
            other = param.shared and isinstance(value, Value) and (value.type is ValueType.ARRAY) != bool(param.length)
            return value.data if isinstance(value, Value) and not other else NOTHING
        if column == "ggml":
            return self._checkpoint.header.get(place, NOTHING)
        if self._dialect.header:
            return descend(self._checkpoint.header.get(self._dialect.header), place)
        return self.config.find(place)


def _repeated(found: Any) -> Any:
    """Return the items of pairs [items, times] one behind another; `found` where it has other parts or too many."""
    pairs = [part for part in found if _is_pair(part)] if isinstance(found, list) else []
    if not pairs or len(pairs) < len(found) or sum(len(items) * max(times, 0) for items, times in pairs) > MAX_ITEMS:
        return found
    return [item for items, times in pairs for item in items * times]


def _is_pair(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2 and isinstance(part[0], list) and type(part[1]) is int


def _translated(checkpoint: Checkpoint, param: HParam, place: str, found: Any) -> Any:
    if isinstance(found, list):
        return [_word(checkpoint, param, place, item) for item in found[:MAX_ITEMS]]
    return _word(checkpoint, param, place, found)


def _word(checkpoint: Checkpoint, param: HParam, place: str, found: Any) -> Any:
    if isinstance(found, dict) and list(found) == ["__float__"]:  # transformers 5's infinities
        found = {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(found["__float__"]))
    if not isinstance(found, str | int | float) or found not in param.words:
        raise UnsupportedError(
            f"config: {place}", path=checkpoint.path, found=found, expected=", ".join(map(repr, param.words))
        )
    return param.words[found]


def _typed(checkpoint: Checkpoint, param: HParam, found: Any, origin: str) -> Any:
    if not param.length or (param.allow_scalar and not isinstance(found, list | tuple)):
        return _item(checkpoint, param, found, origin)
    if isinstance(found, dict) and all(found.get(str(number)) is not None for number in range(len(found))):
        found = [found[str(number)] for number in range(len(found))]  # transformers' id2label
    if param.flat and isinstance(found, list) and all(isinstance(part, list) for part in found):
        found = [item for part in found for item in part]
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > MAX_ITEMS:
        raise InconsistentError(
            f"{param.name} ({origin})", path=checkpoint.path, found=found, expected=f"a list of at most {MAX_ITEMS}"
        )
    return tuple(_item(checkpoint, param, param.null if item is None else item, origin) for item in found)


def _item(checkpoint: Checkpoint, param: HParam, found: Any, origin: str) -> Any:
    def wrong(expected: str) -> InconsistentError:
        return InconsistentError(f"{param.name} ({origin})", path=checkpoint.path, found=found, expected=expected)

    if param.text and isinstance(found, str) and found:
        return found
    if param.kind == ValueType.STRING:
        if not isinstance(found, str):
            raise wrong("text")
        return found
    if param.kind == ValueType.BOOL:
        if not isinstance(found, bool):
            raise wrong("true or false")
        return found
    if not is_number(found):
        raise wrong("a number")
    if param.kind in FLOATS:
        if abs(found) > FLOAT32_MAX:
            raise OutOfRangeError(f"{param.name} ({origin})", path=checkpoint.path, found=found, expected="a float32")
        return found
    if found != int(found):
        raise wrong("a whole number")
    limit, power = (2**63, "2⁶³") if param.kind == ValueType.UINT64 else (2**32, "2³²")
    if not param.least <= found < limit:
        expected = f"{param.least} to {power} - 1"
        raise OutOfRangeError(f"{param.name} ({origin})", path=checkpoint.path, found=found, expected=expected)
    return int(found)


def parse(param: HParam, text: str) -> Any:
    """Return the text of `--hparam` as a value of the hparam's type. Raises UsageError."""
    if param.length and not param.allow_scalar:
        raise UsageError(f"--hparam {param.key}: a list cannot be given", found=text)
    try:
        if param.kind == ValueType.BOOL:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if param.kind == ValueType.STRING:
            return text
        value = float(text) if param.kind in FLOATS else int(text)
    except (ValueError, KeyError):
        raise UsageError(f"--hparam {param.key}: not a {param.kind.name.lower()}", found=text) from None
    if not 0 < value < 2**32:
        raise UsageError(f"--hparam {param.key}: out of range", found=text)
    return value
