"""Checkpoint + Architecture → ModelGraph: every tensor gets its role, every hparam its value and its origin.

Accounting runs both ways: a role without a tensor is an error, a tensor without a role is an error; what is dropped
is named with its reason.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ggferry.converters.expression import evaluate, holds, solve
from ggferry.converters.layout import SAME, Layout, Shape
from ggferry.converters.spec import Architecture, Default, Dialect, HParam, Role
from ggferry.formats.checkpoint import Checkpoint, Dropped, TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    UnexpectedTensorError,
    UsageError,
)
from ggferry.formats.gguf_values import Value, ValueType
from ggferry.formats.limits import MAX_LAYERS


@dataclass(frozen=True, slots=True)
class Param:
    """The value of an hparam and where it came from: 'header', 'tensor shapes', '--hparam', 'derived', 'default: …'."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Node:
    """One tensor of the GGUF model: its name, role, shape, the source tensors and the layout that leads from them."""

    name: str
    role: Role
    shape: Shape
    inputs: tuple[TensorRef, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """A checkpoint understood: what `plan`, `forward` and the receipt work from. No tensor data has been read."""

    architecture: Architecture
    dialect: Dialect
    checkpoint: Checkpoint
    hparams: Mapping[str, Param]
    nodes: tuple[Node, ...]
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[str, ...] = ()
    by_name: Mapping[str, Node] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, Any]:
        """Plain values of all hparams by short name."""
        return {name: param.value for name, param in self.hparams.items()}

    @property
    def parameters(self) -> int:
        """Number of weights in all output tensors."""
        return sum(ref.elements for node in self.nodes for ref in node.inputs)


def bind(
    checkpoint: Checkpoint,
    architecture: Architecture,
    dialect: str,
    overrides: Mapping[str, str] | None = None,
    *,
    tensors: bool = True,
) -> ModelGraph:
    """Give every tensor of `checkpoint` its role in `architecture`.

    `overrides`: `--hparam` values, GGUF key without the architecture → text. `tensors`: False for a vocabulary alone.
    Raises MissingError, UnexpectedTensorError, DuplicateError, ShapeError or InconsistentError when the two do not
    fit.
    """
    speech = architecture.dialects[dialect]
    assigned, dropped = _assign(checkpoint, architecture, speech)
    raw = _order(checkpoint, architecture, speech, assigned) if tensors else []
    solver = _Solver(checkpoint, architecture, speech, overrides or {})
    hparams = solver.run([(role, inputs, layout) for _, role, inputs, layout in raw])
    sizes = {name: param.value for name, param in hparams.items() if isinstance(param.value, int)}
    nodes = []
    for name, role, inputs, layout in raw:
        bound = layout.bind(sizes)
        try:
            shape = bound.shape(*(ref.shape for ref in inputs))
        except ValueError as error:
            raise _shape_error(checkpoint, inputs[0], str(error)) from None
        nodes.append(Node(name, role, shape, inputs, bound))
    if tensors:
        _check_blocks(checkpoint, hparams, nodes)
    return ModelGraph(
        architecture, speech, checkpoint, hparams, tuple(nodes), (*checkpoint.dropped, *dropped), tuple(solver.notes),
        {node.name: node for node in nodes},
    )  # fmt: skip


def _assign(
    checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect
) -> tuple[dict[tuple[str, int | None], list[TensorRef]], list[Dropped]]:
    """Which tensors fill which (role, block), in the order the layout wants them."""
    matchers = [
        (re.compile(_regex(pattern)), role, number)
        for role in architecture.roles
        if dialect.column in role.sources or dialect.name == "gguf"
        for number, pattern in enumerate(_patterns(role, dialect))
    ]
    found: dict[tuple[str, int | None], dict[tuple[int, int], TensorRef]] = {}
    dropped = []
    for ref in checkpoint.tensors.values():
        for regex, role, number in matchers:
            match = regex.fullmatch(ref.name)
            if match:
                groups = match.groupdict()
                key = role.name, int(groups["n"]) if "n" in groups else None
                place = int(groups.get("e") or 0), number
                if place in found.setdefault(key, {}):
                    raise DuplicateError(
                        "two tensors for one role", path=checkpoint.path, found=ref.name, expected=role.name
                    )
                found[key][place] = ref
                break
        else:
            reason = next((d.reason for d in dialect.drops if fnmatch.fnmatchcase(ref.name, d.pattern)), None)
            if reason is None:
                raise UnexpectedTensorError(
                    f"a tensor that has no role in a {architecture.name} model",
                    path=checkpoint.path, offset=ref.spans[0].offset, found=ref.name,
                )  # fmt: skip
            dropped.append(Dropped(ref, reason))
    return {key: [places[place] for place in sorted(places)] for key, places in found.items()}, dropped


def _patterns(role: Role, dialect: Dialect) -> tuple[str, ...]:
    return (role.name,) if dialect.name == "gguf" else role.sources[dialect.column].patterns


def _regex(pattern: str) -> str:
    # No leading zeros and no more digits than any model has blocks: 'layers.007.' is another name, not block 7.
    return re.escape(pattern).replace(r"\{n\}", r"(?P<n>0|[1-9]\d{0,4})").replace(r"\{e\}", r"(?P<e>0|[1-9]\d{0,4})")


def _order(
    checkpoint: Checkpoint,
    architecture: Architecture,
    dialect: Dialect,
    assigned: Mapping[tuple[str, int | None], list[TensorRef]],
) -> list[tuple[str, Role, tuple[TensorRef, ...], Layout]]:
    """The nodes in the order they are written: model-wide roles, then block by block."""
    blocks = 1 + max((n for _, n in assigned if n is not None), default=-1)
    if blocks > MAX_LAYERS:
        raise OutOfRangeError("block number", path=checkpoint.path, found=blocks - 1, expected=f"below {MAX_LAYERS}")
    wide = [(role, None) for role in architecture.roles if not role.per_block]
    deep = [(role, n) for n in range(blocks) for role in architecture.roles if role.per_block]
    nodes, missing = [], []
    for role, n in (*wide, *deep):
        if dialect.name != "gguf" and dialect.column not in role.sources:
            continue
        refs = assigned.get((role.name, n), [])
        if not refs:
            if not role.optional:
                missing.append(_patterns(role, dialect)[0].format(n=n, e=0))
            continue
        layout = SAME if dialect.name == "gguf" else role.sources[dialect.column].layout
        nodes.append((role.name.format(n=n), role, tuple(refs), layout))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MissingError(f"tensor {missing[0]!r}{more} missing", path=checkpoint.path)
    return nodes


def _check_blocks(checkpoint: Checkpoint, hparams: Mapping[str, Param], nodes: Iterable[Node]) -> None:
    if "n_layer" not in hparams:
        return
    found = 1 + max((int(m[1]) for node in nodes if (m := re.match(r"blk\.(\d+)\.", node.name))), default=-1)
    stated = hparams["n_layer"].value
    if found != stated:
        raise MissingError(
            "blocks of tensors", path=checkpoint.path, found=found, expected=f"{stated} ({hparams['n_layer'].origin})"
        )


def _shape_error(checkpoint: Checkpoint, ref: TensorRef, message: str, expected: object = None) -> ShapeError:
    return ShapeError(
        f"tensor {ref.name!r}: {message}", path=checkpoint.path, offset=ref.spans[0].offset if ref.spans else None,
        found=ref.shape, expected=expected,
    )  # fmt: skip


class _Solver:
    """Finds every hparam's value: overrides, the source's fields, the shapes, derivations, defaults; and compares."""

    def __init__(
        self, checkpoint: Checkpoint, architecture: Architecture, dialect: Dialect, overrides: Mapping[str, str]
    ) -> None:
        self.checkpoint = checkpoint
        self.architecture = architecture
        self.dialect = dialect
        self.values: dict[str, Param] = {}
        self.notes: list[str] = []
        self._take_overrides(overrides)
        self._take_fields()

    def _take_overrides(self, overrides: Mapping[str, str]) -> None:
        by_key = {p.key: p for p in self.architecture.hparams if p.key}
        for key, text in overrides.items():
            param = by_key.get(key.removeprefix(f"{self.architecture.name}."))
            if param is None:
                raise UsageError(f"--hparam {key}: not a key of {self.architecture.name}", expected=", ".join(by_key))
            self.values[param.name] = Param(_parse(param, text), "--hparam")

    def _take_fields(self) -> None:
        for param in self.architecture.hparams:
            where = param.fields.get(self.dialect.name)
            if where is None or param.name in self.values:
                continue
            value = self._field(where)
            if value is not None:
                origin = {"gguf": f"key {where}"}.get(self.dialect.name, f"header field {where}")
                self.values[param.name] = Param(value, origin)

    def _field(self, where: str) -> Any:
        found = self.checkpoint.metadata.get(where) if self.dialect.name == "gguf" else self.checkpoint.header.get(where)
        return found.data if isinstance(found, Value) else found

    def run(self, raw: list[tuple[Role, tuple[TensorRef, ...], Layout]]) -> dict[str, Param]:
        while self._solve_shapes(raw) or self._derive():
            pass
        for param in self.architecture.hparams:
            if param.name not in self.values:
                self._default(param, bool(raw))
        while self._solve_shapes(raw) or self._derive():
            pass
        self._check(raw)
        self._remark()
        order = [param.name for param in self.architecture.hparams]
        return {name: self.values[name] for name in order if name in self.values}

    @property
    def sizes(self) -> dict[str, int]:
        return {name: param.value for name, param in self.values.items() if isinstance(param.value, int)}

    def _solve_shapes(self, raw: list[tuple[Role, tuple[TensorRef, ...], Layout]]) -> bool:
        progress = False
        for role, inputs, layout in raw:
            shape = self._output_shape(inputs, layout)
            if shape is None or len(shape) != len(role.shape):
                continue
            for expression, size in zip(role.shape, shape, strict=True):
                try:
                    answer = solve(expression, size, self.sizes)
                except ValueError as error:
                    raise _shape_error(self.checkpoint, inputs[0], str(error)) from None
                if answer:
                    self.values[answer[0]] = Param(answer[1], f"shape of {inputs[0].name}")
                    progress = True
        return progress

    def _output_shape(self, inputs: tuple[TensorRef, ...], layout: Layout) -> Shape | None:
        try:
            return layout.bind(self.sizes).shape(*(ref.shape for ref in inputs))
        except KeyError:
            return None
        except ValueError as error:
            raise _shape_error(self.checkpoint, inputs[0], str(error)) from None

    def _derive(self) -> bool:
        progress = False
        for param in self.architecture.hparams:
            if param.derive and param.name not in self.values:
                try:
                    value = evaluate(param.derive, self.sizes)
                except KeyError:
                    continue
                except ValueError as error:
                    raise InconsistentError(f"{param.name}: {error}", path=self.checkpoint.path) from None
                self.values[param.name] = Param(value, f"{param.derive}")
                progress = True
        return progress

    def _default(self, param: HParam, has_tensors: bool) -> None:
        names = os.path.join(*os.path.abspath(self.checkpoint.path).split(os.sep)[-2:])
        for default in param.defaults:
            if holds(default.when, self.sizes) and (not default.named or re.search(default.named, names)):
                self.values[param.name] = Param(default.value, f"default: {default.why}")
                return
        if param.required and has_tensors:
            raise MissingError(
                f"nothing says what {param.key or param.name} is", path=self.checkpoint.path,
                hint=f"--hparam {param.key}=VALUE" if param.key else None,
            )  # fmt: skip

    def _remark(self) -> None:
        header = {f"header_{k}": v for k, v in self.checkpoint.header.items() if isinstance(v, int)}
        known = {**header, **self.sizes}
        self.notes += [r.text.format(**known) for r in self.dialect.remarks if holds(r.when, known)]

    def _check(self, raw: list[tuple[Role, tuple[TensorRef, ...], Layout]]) -> None:
        """Every found shape against the declared one: the header and the tensors must tell the same story."""
        for role, inputs, layout in raw:
            shape = self._output_shape(inputs, layout)
            try:
                declared = tuple(evaluate(expression, self.sizes) for expression in role.shape)
            except ValueError as error:
                raise InconsistentError(str(error), path=self.checkpoint.path) from None
            if shape != declared:
                said = " × ".join(f"{text}={value}" for text, value in zip(role.shape, declared, strict=True))
                raise _shape_error(self.checkpoint, inputs[0], f"does not fit its role {role.name}", said)


def _parse(param: HParam, text: str) -> Any:
    """The text of `--hparam` as the hparam's type. Raises UsageError."""
    try:
        if param.kind == ValueType.BOOL:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if param.kind == ValueType.STRING:
            return text
        value = float(text) if param.kind in (ValueType.FLOAT32, ValueType.FLOAT64) else int(text)
    except (ValueError, KeyError):
        raise UsageError(f"--hparam {param.key}: not a {param.kind.name.lower()}", found=text) from None
    if not 0 < value < 2**32:
        raise UsageError(f"--hparam {param.key}: out of range", found=text)
    return value
