"""Find every hparam's value from overrides, the source's fields, shapes, derivations or defaults, and compare them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from ggferry.converters.model_graph.config_keys import OF_THE_HALF, unread_notes
from ggferry.converters.model_graph.hparam_sources import Statements, parse
from ggferry.converters.model_graph.tensor_roles import Slot
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam
from ggferry.converters.schema.derivations import Derivation, derive, rule_name
from ggferry.converters.schema.expressions import evaluate, holds, names_in, solve, verdict
from ggferry.converters.schema.layouts.base import SAME, Layout, Shape
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.checkpoint_folder.sidecars import PREPROCESSOR
from ggferry.formats.errors import (
    InconsistentError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    UnsupportedError,
    UsageError,
)
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.limits import MAX_LAYERS
from ggferry.support.records import dataclass


class Known(Enum):
    """How the value of an hparam is known."""

    DECLARED = "the source says so, in so many words"
    OVERRIDDEN = "--hparam says so"
    FIXED = "the dialect has no other"
    DERIVED = "it follows from tensors or from other values"
    ASSUMED = "nothing says it, and a default stands"


_DEFAULT = "default: "


@dataclass(frozen=True, slots=True)
class Param:
    """The value of an hparam and where it came from.

    Attributes:
        value: The value.
        reason: A header field, a key, a tensor's shape, '--hparam', what it was derived from, or why the default was
            chosen.
        known: How the value is known.
    """

    value: Any
    reason: str
    known: Known = Known.DERIVED

    @property
    def origin(self) -> str:
        """The reason as receipts word it."""
        return f"{_DEFAULT}{self.reason}" if self.known is Known.ASSUMED else self.reason


def is_assumed(origin: str) -> bool:
    """Return whether an origin, as a receipt words it (`Param.origin`), is that of a value which nothing stated."""
    return origin.startswith(_DEFAULT)


def shape_error(checkpoint: Checkpoint, ref: TensorRef, message: str, expected: object = None) -> ShapeError:
    """Return the error for a tensor whose shape does not fit."""
    return ShapeError(
        f"tensor {ref.name!r}: {message}",
        path=checkpoint.path,
        offset=ref.spans[0].offset if ref.spans else None,
        found=ref.shape,
        expected=expected,
    )


class Solver:
    """Finds the hparams of one checkpoint.

    Attributes:
        values: What has been found so far, by short name.
        sizes: Those of the values that are numbers, or tuples of them.
        notes: What the user should know.
        statements: What the source states.
        facts: What conditions may use besides hparams: the class that the configuration names.
    """

    def __init__(
        self, checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect, overrides: Mapping[str, str]
    ) -> None:
        self.checkpoint = checkpoint
        self.architecture = architecture
        self.dialect = dialect
        self.values: dict[str, Param] = {}
        self.sizes: dict[str, Any] = {}
        self._counts = frozenset({"n_layer", *architecture.blocks.values()})
        self._lists = frozenset(param.name for param in architecture.hparams if param.length in self._counts)
        self.notes: list[str] = []
        self.statements = Statements(checkpoint, dialect, architecture.name, of_text=not architecture.projector)
        self._take_overrides(overrides)
        self._take_fields()
        named = checkpoint.metadata.get("architectures")
        own = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
        if dialect.types:
            from ggferry.converters.model_graph.class_defaults.class_of_type import class_of_text_half  # few need it

            own = class_of_text_half(checkpoint.metadata, dialect) or own
        self.facts = {"hf_class": own} if own else {}

    @property
    def known(self) -> dict[str, Any]:
        """What has been found, by short name."""
        return {**self.facts, **{name: param.value for name, param in self.values.items()}}

    @property
    def complete(self) -> dict[str, Any]:
        """What has been found, and what the absence of the other keys means."""
        return {**absents(self.architecture), **self.known}

    @property
    def denied(self) -> dict[str, str]:
        """The flags that a configuration says are false → where it says so."""
        declared = self.values.items() if self.dialect.source == "hf" else ()
        return {
            name: param.reason for name, param in declared if param.value is False and param.known is Known.DECLARED
        }

    @property
    def unsaid(self) -> dict[str, str]:
        """The flags that a configuration could state, and does not → the name of the key."""
        flags = (p for p in self.architecture.hparams if p.kind is ValueType.BOOL and not p.length and "hf" in p.fields)
        silent = (p for p in flags if p.name not in self.values or self.values[p.name].known is Known.ASSUMED)
        return {p.name: p.fields["hf"].rpartition("|")[2] for p in silent} if self.dialect.source == "hf" else {}

    @property
    def early(self) -> dict[str, Any]:
        """What is known before any tensor is examined.

        Stated values, defaults that need nothing else, and what follows from these of the kinds of blocks, and how many
        there are.
        """
        early = self.complete
        for param in self.architecture.hparams:
            if param.name not in self.values and not (param.derive or param.implied):
                held = (default.value for default in param.defaults if self._holds(default))
                early[param.name] = next(held, early.get(param.name))
        early = {name: value for name, value in early.items() if value is not None}
        for param in self.architecture.hparams:
            counted = param.name in self._lists or param.name == "n_layer"
            if counted and param.derive and param.name not in early:
                with suppress(KeyError, ValueError, OverflowError, ZeroDivisionError):
                    found = derive(param.derive, early)
                    early |= {} if found is None else {param.name: found}
        return early

    def deny(self, flags: Collection[str]) -> None:
        """Record that flags of biases are false, as the biases are zeros and dropped."""
        for name in flags:
            self._learn(name, Param(False, "its biases are zeros"))

    def _learn(self, name: str, param: Param) -> None:
        """Record a value. Sizes are kept apart because shapes ask for them a thousand times in a model.

        Raises OutOfRangeError for more blocks than any model has, since derivations make an item for each.
        """
        if name in self._counts and isinstance(param.value, int) and param.value > MAX_LAYERS:
            raise OutOfRangeError(
                f"{name} ({param.origin})",
                path=self.checkpoint.path,
                found=param.value,
                expected=f"{MAX_LAYERS} or fewer",
            )
        self.values[name] = param
        if is_size(param.value):
            self.sizes[name] = param.value

    def _take_overrides(self, overrides: Mapping[str, str]) -> None:
        by_key = {p.key: p for p in self.architecture.hparams if p.key and not (p.shared and p.length)}
        for key, text in overrides.items():
            param = by_key.get(key.removeprefix(f"{self.architecture.name}."))
            if param is None:
                raise UsageError(f"--hparam {key}: not a key of {self.architecture.name}", expected=", ".join(by_key))
            self._learn(param.name, Param(parse(param, text), "--hparam", Known.OVERRIDDEN))

    def _take_fields(self) -> None:
        for name, value in self.dialect.fixed.items():
            if name not in self.values:
                self._learn(name, Param(value, f"as in every {self.dialect.name} model", Known.FIXED))
        shown = self._shown() if self.checkpoint.metadata else set()
        sized = self._sized()
        for param in self.architecture.hparams:
            if param.name in self.values:
                given = self.values[param.name]
                self.statements.pass_over(param, given.value, given.known is Known.OVERRIDDEN)
                continue
            found = self.statements.of(param, seen=param.key is None and param.name in shown)
            if found is None and not param.derive and param.name not in sized:
                found = self.statements.default_of(param)
            if found is not None:
                known = Known.ASSUMED if self.statements.is_default(param) else Known.DECLARED
                self._learn(param.name, Param(*found, known))

    def _shown(self) -> set[str]:
        """Return the hparams that the presence of tensors shows, for which a GGML-era file's configuration is not used.

        The configuration may contradict the file: its makers wrote an output layer although it was tied.
        """
        return {name for role in self.architecture.roles if role.when for name in names_in(role.when)}

    def _sized(self) -> set[str]:
        """Return the hparams that the shapes of tensors may tell, before what a class takes where nothing is stated."""
        return {name for role in self.architecture.roles for text in role.shape for name in names_in(text)}

    def run(self, slots: Sequence[Slot]) -> dict[str, Param]:
        """Return all hparams in the order of the table, without those whose value is what their absence means.

        Raises MissingError, ShapeError, OutOfRangeError or InconsistentError.
        """
        filled = [slot for slot in slots if slot.refs]
        for series, counter in self.architecture.blocks.items() if self.dialect.required_tensors and filled else ():
            if counter not in self.values:
                numbers = (slot.n for slot in filled if slot.n is not None and slot.role.series == series)
                self._learn(counter, Param(1 + max(numbers, default=-1), "blocks of tensors"))
        open_slots = list(filled)
        self._take_plain_defaults()
        self._settle(open_slots)
        for param in self.architecture.hparams:
            if param.name not in self.values and self._default(param, bool(filled)):
                self._settle(open_slots)
        self._check(filled)
        self._check_values()
        self.notes += self.statements.notes
        known = {**self._header, **self.complete}
        caveats = (*self.architecture.caveats, *self.dialect.caveats)
        self.notes += [caveat.text.format(**known) for caveat in caveats if holds(caveat.when, known)]
        file = "params.json" if self.dialect.source == "meta" else "config.json"
        legacy = self.dialect.source == "ggml"  # its configuration, where there is one, is a checkpoint's
        hf = (each for each in self.architecture.dialects if legacy and each.name == "hf")
        dialect = next(hf, self.dialect)
        half = (*(f"{name}." for name in (*dialect.nested, PREPROCESSOR)), *OF_THE_HALF)
        parts = half if self.architecture.projector else ()
        self.notes += unread_notes(self.statements.config, dialect, known, file, parts)
        found = ((param, self.values.get(param.name)) for param in self.architecture.hparams)
        return {spec.name: param for spec, param in found if param is not None and param.value != spec.absent}

    @property
    def _header(self) -> dict[str, int]:
        return {f"header_{k}": v for k, v in self.checkpoint.header.items() if isinstance(v, int)}

    def _take_plain_defaults(self) -> None:
        """Take the unconditional defaults of hparams that only a configuration states.

        Derivations must not run without these: where a GPT-NeoX does not state which part of a head is rotated, it is a
        quarter.
        """
        for param in self.architecture.hparams:
            plain = param.defaults and not (param.key or param.derive or param.implied)
            if plain and param.name not in self.values and not (param.defaults[0].when or param.defaults[0].named):
                self._take_default(param)

    def _settle(self, open_slots: list[Slot]) -> None:
        """Solve shapes and derivations until neither finds a new value; slots that can give no more are removed."""
        while self._solve_shapes(open_slots) or self._derive():
            pass

    def _solve_shapes(self, open_slots: list[Slot]) -> bool:
        progress = False
        for slot in list(open_slots):
            shape = self._output_shape(slot)
            if shape is None:
                continue
            undecided = False
            pairs = zip(slot.role.shape, shape, strict=True) if len(slot.role.shape) == len(shape) else ()
            for expression, size in pairs:
                answer = self._solve(slot, expression, size)
                undecided |= answer is None
                progress |= bool(answer)
            if not undecided:
                open_slots.remove(slot)
        return progress

    def _solve(self, slot: Slot, expression: str, size: int) -> bool | None:
        """Return whether `expression` = `size` gave a new value; None where it cannot be solved yet."""
        try:
            sizes = self._sizes_of(slot)
            answer = solve(expression, size, sizes)
            if answer is None:
                evaluate(expression, sizes)
                return False
        except KeyError:
            return None
        except ValueError as error:
            raise shape_error(self.checkpoint, slot.refs[0], str(error)) from None
        if answer[0] in self._lists:
            return None  # one block does not determine the others
        self._learn(answer[0], Param(answer[1], f"shape of {slot.refs[0].name}"))
        return True

    def _sizes_of(self, slot: Slot) -> Mapping[str, Any]:
        return {**self.sizes, "n": slot.n} if self._lists and slot.n is not None else self.sizes

    def _output_shape(self, slot: Slot) -> Shape | None:
        try:
            return bound_shape(self.checkpoint, slot, self.sizes)[1]
        except KeyError:
            return None

    def _derive(self) -> bool:
        progress = False
        for param in self.architecture.hparams:
            if param.name in self.values:
                continue
            if param.implied and not param.derive and (taken := self.statements.default_of(param)):
                self._learn(param.name, Param(*taken, Known.ASSUMED))
                progress = True
            for rule in (param.derive, param.implied) if param.name not in self.values else ():
                value = self._derived(param, rule) if rule else None
                if value is not None:
                    self._learn(param.name, Param(value, rule_name(rule)))
                    progress = True
                    break
        return progress

    def _derived(self, param: HParam, rule: str | Derivation) -> Any:
        try:
            return derive(rule, self.known)
        except KeyError:
            return None
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            raise InconsistentError(f"{param.name}: {error}", path=self.checkpoint.path) from None
        except UnsupportedError as error:
            error.path = self.checkpoint.path
            raise

    def _holds(self, default: Default) -> bool:
        return (
            default.dialect in ("", self.dialect.name, self.dialect.source)
            and (not default.when or holds(default.when, self.complete))
            and (not default.named or re.search(default.named, self._names) is not None)
        )

    @property
    def _names(self) -> str:
        """The source's file name and folder."""
        return os.path.join(*os.path.abspath(self.checkpoint.path).split(os.sep)[-2:])

    def _take_default(self, param: HParam) -> bool:
        found = self.statements.default_of(param)
        if found is not None:
            self._learn(param.name, Param(*found, Known.ASSUMED))
            return True
        for default in param.defaults:
            if self._holds(default):
                self._learn(param.name, Param(default.value, default.why, Known.ASSUMED))
                return True
        return False

    def _default(self, param: HParam, has_tensors: bool) -> bool:
        if self._take_default(param):
            return True
        if param.required and param.absent is None and has_tensors:
            raise MissingError(
                f"nothing says what {param.key or param.name} is",
                path=self.checkpoint.path,
                hint=f"--hparam {param.key}=VALUE" if param.key else None,
            )
        return False

    def _check(self, filled: Sequence[Slot]) -> None:
        """Compare every tensor's shape with the declared one: the stated sizes and the tensors must agree.

        A tensor that several roles share has no element that none of them takes.
        """
        parts: dict[str, tuple[TensorRef, list[int]]] = {}
        for slot in filled:
            try:
                shape = bound_shape(self.checkpoint, slot, self.sizes)[1]
                declared = tuple(evaluate(expression, self._sizes_of(slot)) for expression in slot.role.shape)
            except KeyError as error:
                raise MissingError(
                    f"nothing says what {error.args[0]} is, which {slot.name} needs", path=self.checkpoint.path
                ) from None
            except ValueError as error:
                raise InconsistentError(str(error), path=self.checkpoint.path) from None
            if shape != declared:
                pairs = zip(slot.role.shape, declared, strict=True)
                words = " × ".join(text if text.isdecimal() else f"{text}={value}" for text, value in pairs)
                raise shape_error(self.checkpoint, slot.refs[0], f"does not fit its role {slot.role.name}", words)
            if 0 in shape:
                raise self._nothing(slot)
            for ref in slot.refs:
                parts.setdefault(ref.name, (ref, []))[1].append(math.prod(shape if len(slot.refs) == 1 else ref.shape))
        for ref, sizes in parts.values():
            if len(sizes) > 1 and sum(sizes) < math.prod(ref.shape):
                raise shape_error(self.checkpoint, ref, f"has {math.prod(ref.shape) - sum(sizes)} elements in no part")

    def _nothing(self, slot: Slot) -> OutOfRangeError:
        """Return the error for a tensor without elements: the hparams that cause it, and where they are stated."""
        names = {name for text in slot.role.shape for name in names_in(text) if self.sizes.get(name) == 0}
        zeros = ", ".join(f"{name} ({self.values[name].origin})" for name in sorted(names)) or "a size"
        return OutOfRangeError(
            f"{zeros}: {slot.name} would be without elements", path=self.checkpoint.path, found=0, expected="1 or more"
        )

    def _check_values(self) -> None:
        """Check the lengths of lists, and every `HParam.check`. Raises InconsistentError."""
        known, path = self.complete, self.checkpoint.path
        for spec in self.architecture.hparams:
            items = known.get(spec.name) if spec.length else None
            if isinstance(items, tuple) and verdict(f"{len(items)} == {spec.length}", known) is False:
                raise InconsistentError(f"items of {spec.name}", path=path, found=len(items), expected=spec.length)
            if spec.check and verdict(spec.check, known) is False:
                values = {name: known[name] for name in names_in(spec.check) if name in known}
                raise InconsistentError(spec.key or spec.name, path=path, found=values, expected=spec.check)


def is_size(value: Any) -> bool:
    """Return whether shapes and layouts may use the value: a number, or a tuple with one number for each block."""
    numbers = value if isinstance(value, tuple) else (value,)
    return all(isinstance(item, int | float) for item in numbers)


def absents(architecture: Architecture) -> dict[str, Any]:
    """Return what the absence of each key means, by the hparam's short name."""
    return {param.name: param.absent for param in architecture.hparams if param.absent is not None}


def implied(param: HParam, values: Mapping[str, Any]) -> Any:
    """Return what a reader of GGUF assumes for `param` where its key is absent; None where it cannot know."""
    if not param.implied:
        return param.absent
    try:
        return derive(param.implied, values)
    except (KeyError, ValueError, OverflowError, ZeroDivisionError):
        return None


def bound_shape(checkpoint: Checkpoint, slot: Slot, sizes: Mapping[str, Any]) -> tuple[Layout, Shape]:
    """Return the slot's layout with its sizes, and the shape it gives.

    Raises KeyError for an unknown size, and ShapeError.
    """
    try:
        layout = slot.origin.layout
        if layout is not SAME:
            layout = layout.bind(sizes if slot.n is None else {**sizes, "n": slot.n})
        return layout, layout.shape(*(ref.shape for ref in slot.refs))
    except ValueError as error:
        raise shape_error(checkpoint, slot.refs[0], str(error)) from None
