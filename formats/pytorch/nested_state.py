"""Tell the model from the rest of a training checkpoint: optimizers, schedulers, random states, counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ggferry.formats.errors import DuplicateError, InconsistentError, UnsupportedError
from ggferry.formats.pytorch.pickle_names import Storage, View
from ggferry.formats.pytorch.state_dict import WRAPPERS, State, find_state, tensors_under
from ggferry.quant.types import BlockType

_OPTIMIZER = frozenset({"state", "param_groups"})  # torch.optim.Optimizer.state_dict()
_ADDED = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_forward_module.")
"""Modules that torch.compile, FSDP, activation checkpointing and Lightning's Fabric put around others."""
_AROUND = ("module.", "base_model.model.")
"""What DistributedDataParallel and PEFT put around a whole model."""
_MEMBER, _WHOLE = "model.", ("model.model.", "model.lm_head.")
"""The name a LightningModule usually gives its model, and names of whole models within it."""
TRAINING = "state of the training, not of the model"


def leaf(name: str, type: BlockType | None, shape: tuple[int, ...]) -> View | None:
    """Return an entry for `find_model`: a tensor of this name, type and shape; None (no tensor) without a type."""
    return None if type is None else View(Storage(name, type, 0), type, 0, shape, (0,) * len(shape), 0)


def find_model(entries: Iterable[tuple[tuple[Any, ...], View | None]], path: str) -> State:
    """Return the model among entries that stand under keys of nested dictionaries (`leaf`).

    An optimizer's state is recognized by its keys, whatever it is called. Raises UnsupportedError where there is no
    model, InconsistentError where a key leads to an entry and to others, and as `find_state`.
    """
    root: dict[Any, Any] = {}
    for keys, entry in entries:
        inner: Any = root
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InconsistentError("one name for a tensor and for a dictionary", path=path, found=str(keys))
        if keys[-1] in inner:
            raise DuplicateError("duplicate entry name", path=path, found=str(keys))
        inner[keys[-1]] = entry
    aside = {key: value for key, value in root.items() if _is_optimizer(value)}
    if any(isinstance(root.get(key), dict) for key in WRAPPERS):
        aside |= {key: value for key, value in root.items() if isinstance(value, View)}
    model = {key: value for key, value in root.items() if key not in aside}
    if _is_optimizer(root) or (aside and not model):
        hint = "name the folder of the model's own weights"
        raise UnsupportedError("an optimizer's state, not a model", path=path, hint=hint)
    found = find_state(model, path)
    if aside:
        found.others |= tensors_under(aside, path)
    return found


def _is_optimizer(value: Any) -> bool:
    """Return whether all keys of a dictionary are of an optimizer's state, flattened (`state.NAME.exp_avg`) or not."""
    if not isinstance(value, dict) or not value:
        return False
    first = {key.partition(".")[0] if isinstance(key, str) else key for key in value}
    return "state" in first and first <= _OPTIMIZER


def plain_names(names: Iterable[str], path: str) -> dict[str, str]:
    """Return name → name without the modules that training puts around others.

    Raises DuplicateError where two become one.
    """
    plain = {name: name for name in names}
    for added in _ADDED:
        plain = {name: short.replace(added, "") for name, short in plain.items()}
    while around := _around(plain.values()):
        plain = {name: short.removeprefix(around) for name, short in plain.items()}
    if len(set(plain.values())) < len(plain):
        raise DuplicateError("duplicate tensor name once wrapping modules are left out", path=path)
    return plain


def _around(names: Collection[str]) -> str:
    """Return what stands before the names of all tensors, where it is that of a module around the model."""
    found = next((each for each in _AROUND if names and all(name.startswith(each) for name in names)), "")
    member = all(name.startswith(_MEMBER) for name in names) and any(name.startswith(_WHOLE) for name in names)
    return found or (_MEMBER if member else "")
