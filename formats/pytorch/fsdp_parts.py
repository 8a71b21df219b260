"""Put tensors together of the parts that processes of FSDP saved: `DTensor`s along one axis, or the same in all.

Source: PyTorch 2.13 `torch/distributed/tensor/_api.py` and `placement_types.py`; verl b178a3cd
`model_merger/fsdp_model_merger.py`, which joins the parts of the processes in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ggferry.formats.checkpoint import Dropped, TensorRef
from ggferry.formats.errors import CorruptError, GgferryError, InconsistentError, MissingError, UnsupportedError
from ggferry.formats.pytorch.pickle_names import WRAPPER, Record, View
from ggferry.formats.pytorch.torch_file import Opened
from ggferry.formats.pytorch.trainer_fields import TrainerClasses
from ggferry.support.records import dataclass

CLASSES = TrainerClasses("torch.distributed.", WRAPPER)
COPY = "the same in every process that has it"
_HINT = "verl's `python -m verl.model_merger merge --backend fsdp` makes one model of it"


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor as one process has it.

    Attributes:
        ref: Its own elements.
        shape: The shape of the whole tensor.
        axis: The axis along which processes have different parts; None where each has all of it.
    """

    ref: TensorRef
    shape: tuple[int, ...]
    axis: int | None


def parts_of(opened: Opened, file: int) -> dict[str, Part]:
    """Return the tensors of a process by name. Raises UnsupportedError for other layouts, CorruptError."""
    path, value = opened.archive.source.path, opened.value
    if not isinstance(value, dict):
        raise CorruptError("not a dictionary", path=path, found=type(value).__name__)
    made = {}
    for name, held in value.items():
        if not isinstance(name, str) or not isinstance(held, (View, Record)):
            raise CorruptError("not a tensor", path=path, found=str(name)[:64])
        made[name] = _Reading(path, name).part(opened, held, file)
    return made


class _Reading:
    """The records of one tensor, taken apart with errors that name it."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name

    def fail(self, kind: type[GgferryError], message: str, **details: Any) -> NoReturn:
        raise kind(f"{message} of {self.name}", path=self.path, **details)

    def part(self, opened: Opened, held: View | Record, file: int) -> Part:
        if isinstance(held, View):
            ref = opened.ref(self.name, held, file)
            return Part(ref, ref.shape, None)
        fields = held.state[1] if isinstance(held.state, tuple) and len(held.state) == 2 else held.state
        if not held.name.endswith(".DTensor") or not isinstance(fields, dict):
            self.fail(UnsupportedError, "class", found=held.name, expected="DTensor", hint=_HINT)
        own, spec = fields.get("_local_tensor"), fields.get("_spec")
        if not isinstance(own, View) or not isinstance(spec, Record) or not isinstance(spec.state, dict):
            self.fail(CorruptError, "parts or layout")
        meta = spec.state.get("tensor_meta")
        shape = meta.args[0] if isinstance(meta, Record) and meta.args else None
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            self.fail(CorruptError, "shape")
        return Part(opened.ref(self.name, own, file), shape, self.axis(spec.state.get("placements"), len(shape)))

    def axis(self, placements: Any, rank: int) -> int | None:
        """Return the axis that the last dimension of the mesh cuts; those before it must repeat."""
        if not isinstance(placements, tuple) or not 1 <= len(placements) <= 2:
            self.fail(UnsupportedError, "placements", expected="one, or two of which the first repeats", hint=_HINT)
        kinds = [one.name.rpartition(".")[2] if isinstance(one, Record) else "" for one in placements]
        if kinds[-1] not in ("Shard", "Replicate") or kinds[:-1] not in ([], ["Replicate"]):
            self.fail(UnsupportedError, "placements", found=kinds, expected="Shard or Replicate", hint=_HINT)
        state = placements[-1].state
        axis = state.get("dim") if kinds[-1] == "Shard" and isinstance(state, Mapping) else None
        if kinds[-1] == "Shard" and (type(axis) is not int or not 0 <= axis < rank):
            self.fail(CorruptError, "axis", found=str(axis)[:32])
        return axis


def join(processes: Sequence[Mapping[str, Part]], path: str) -> tuple[dict[str, TensorRef], list[Dropped]]:
    """Return the whole tensors by name, and what processes have that others have too.

    Raises MissingError, InconsistentError where the parts do not make the tensor.
    """
    tensors: dict[str, TensorRef] = {}
    copies: list[Dropped] = []
    for name, first in processes[0].items():
        parts = [process.get(name) for process in processes]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            raise MissingError(f"parts of {name}", path=path, found=len(known), expected=len(parts))
        odd = next((part for part in known if _kind(part) != _kind(first)), None)
        if odd is not None:
            raise InconsistentError(f"parts of {name}", path=path, found=list(odd.shape), expected=list(first.shape))
        count = 1 if first.axis is None else _enough(known, first.axis)
        if count is None:
            held = [list(part.ref.shape) for part in known][:8]
            raise InconsistentError(f"parts of {name}", path=path, found=held, expected=list(first.shape))
        tensors[name] = _whole(name, known[:count], first)
        for number, part in enumerate(known[count:], count):
            again = replace(part.ref, name=f"process {number}: {name}")
            copies.append(Dropped(again, COPY, same_as=known[number % count].ref))
    extra = next((name for process in processes for name in process if name not in tensors), None)
    if extra is not None:
        raise MissingError(f"parts of {extra}", path=path, expected="one of each process")
    return tensors, copies


def _kind(part: Part) -> tuple[Any, ...]:
    axis, own = part.axis, part.ref.shape
    others = own if axis is None else (*own[:axis], *own[axis + 1 :])
    return part.shape, axis, others, part.ref.type.name, part.ref.big_endian


def _enough(parts: Sequence[Part], axis: int) -> int | None:
    """Return how many processes have the whole tensor together, of which there are equal groups; None for none."""
    first, total = parts[0], 0
    whole = first.shape[axis] if len(first.ref.shape) == len(first.shape) else -1
    found = 0
    for number, part in enumerate(parts, 1):
        total += part.ref.shape[axis] if len(part.ref.shape) > axis else 0
        if total == whole and len(parts) % number == 0:
            found = number
    others = [size for other, size in enumerate(first.shape) if other != axis]
    own = [size for other, size in enumerate(first.ref.shape) if other != axis]
    return found if found and others == own else None


def _whole(name: str, parts: Sequence[Part], first: Part) -> TensorRef:
    if len(parts) == 1:
        return replace(first.ref, name=name)
    assert first.axis is not None
    return replace(first.ref, name=name, shape=first.shape, spans=tuple(_spans(parts, first.axis)), axis=0)


def _spans(parts: Sequence[Part], axis: int) -> Iterator[Any]:
    before = 0
    for part in parts:
        if part.ref.elements:
            at = [0] * len(part.shape)
            at[axis] = before
            yield replace(part.ref.spans[0], at=tuple(at))
        before += part.ref.shape[axis]
