"""Read an adapter as the changes that merging it makes: products, whole tensors, biases, magnitudes of DoRA.

Names are those of the base's tensors as the adapter's program spells them. PEFT's and MLX's adapters are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.adapters.merge_vocabulary import token_indices
from ggferry.converters.adapters.source import FLOATS, Scaling, configuration, low_of, refuse_kinds
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.checkpoint import AdapterFile, Checkpoint, TensorRef
from ggferry.formats.errors import (
    AmbiguousError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    UnsupportedError,
    UnsupportedTypeError,
    UsageError,
)
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.named_texts import path_and_number
from ggferry.formats.reader import Kind, kind_of
from ggferry.support.records import dataclass

MLX, PEFT = "adapters.safetensors", ("adapter_model.safetensors", "adapter_model.bin")
CARRIED = ("use_dora", "lora_bias", "modules_to_save", "bias", "target_parameters", "trainable_token_indices")
"""Settings of PEFT that only merging gets right."""
TOP = "base_model.model."
_NAMES = (
    ("low", re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")),
    ("bias", re.compile(r"(?P<module>.+)\.lora_B(?:\.(?P<adapter>[^.]+))?\.bias")),
    ("embedding", re.compile(r"(?P<module>.+)\.lora_embedding_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?")),
    ("tokens", re.compile(r"(?P<module>.+?)(?:\.token_adapter)?\.trainable_tokens_delta(?:\.(?P<adapter>[^.]+))?")),
    ("magnitude", re.compile(r"(?P<module>.+)\.lora_magnitude_vector(?:\.(?P<adapter>[^.]+))??(?:\.weight)?")),
)
_WRAPPED = ".lora_magnitude_vector.weight"
_MLX_NAME = re.compile(r"(?P<module>.+)\.(?P<side>lora_a|lora_b|m)")
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embed_in")


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter does to one tensor of the base.

    Attributes:
        a: A; for a whole tensor or a bias, that tensor.
        b: B, whose rows are the base's rows where `reversed` is False; None for a whole tensor or a bias.
        scale: What the product, or the bias, is multiplied by.
        reversed: Whether the two matrices stand as `(columns, r)` and `(r, rows)` (MLX).
        embedding: Whether A's last axis is the vocabulary, so that the product is transposed.
        magnitude: DoRA's magnitudes.
        beneath: The tensor that takes the base's place before the product is added (PEFT saves embeddings so).
        added: Whether a vector is added instead of replacing the tensor.
        tokens: Whose rows A has, which take the place of theirs; none where it is no such tensor.
    """

    a: TensorRef
    b: TensorRef | None = None
    scale: float = 1.0
    reversed: bool = False
    embedding: bool = False
    magnitude: TensorRef | None = None
    beneath: TensorRef | None = None
    added: bool = False
    tokens: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Return whether the tensor replaces the base's."""
        return self.b is None and not self.added and not self.tokens


@dataclass(frozen=True, slots=True)
class ExpertPair:
    """One pair for the stacked matrices of all experts of a block (PEFT's `target_parameters`).

    Attributes:
        module: The module that has them.
        parameters: Names of its parameters, of which the pair changes one.
        a: A of all experts.
        b: B of all experts.
        rank: The rank of one expert.
        strength: What a product is multiplied by.
    """

    module: str
    parameters: tuple[str, ...]
    a: TensorRef
    b: TensorRef
    rank: int
    strength: float


@dataclass(frozen=True, slots=True)
class Parts:
    """An adapter that is to be merged.

    Attributes:
        checkpoint: The adapter.
        title: Its name and scale, for receipts and notes.
        changes: What it does, by the names of the base's tensors.
        conv1d: Whether PEFT says that modules store their weights transposed (fan_in_fan_out).
        tied: Whether the embedding and the output stay one matrix though the adapter changes one of them.
        experts: Pairs for stacked matrices of experts.
        unused: Tensors that PEFT wrote beside those that it loads.
    """

    checkpoint: Checkpoint
    title: str
    changes: Mapping[str, Change]
    conv1d: bool = False
    tied: bool = False
    experts: tuple[ExpertPair, ...] = ()
    unused: tuple[str, ...] = ()


def path_and_scale(text: str) -> tuple[str, float]:
    """Return what PATH[:SCALE] means."""
    return path_and_number(text)


def receipt_form(text: str) -> str:
    """Return PATH[:SCALE] as receipts state it: the last name only."""
    path, scale = path_and_scale(text)
    return f"{os.path.basename(os.path.normpath(path))}:{scale:g}"


def open_adapter(text: str, *, named: bool = True) -> AdapterFile:
    """Open the adapter that PATH[:SCALE] names. Raises UsageError for a scale of 0, and as `open_checkpoint`.

    `named`: whether the user named it, and it may be a link; False for a path that was found. A file in a folder
    that is named may not lead out of it.
    """
    path, scale = path_and_scale(text)
    if scale == 0 or abs(scale) > 1e6:
        raise UsageError("--lora: scale", found=scale, expected="a number that is not zero, at most 1e6")
    inside = (os.path.join(path, name) for name in (*PEFT, MLX))
    found = next((name for name in inside if os.path.isfile(name)), path)
    return AdapterFile(open_checkpoint(Named(found) if named and found == path else found), scale)


def read_parts(file: AdapterFile) -> Parts:
    """Read what an adapter changes. Raises UnsupportedError for what cannot be merged, and for damaged files."""
    checkpoint = file.checkpoint
    if kind_of(checkpoint.container) is not Kind.TRAINING:
        raise UnsupportedError(
            "--lora takes adapters of PEFT and MLX", path=checkpoint.path, found=checkpoint.container
        )
    config = configuration(checkpoint)
    if "peft_type" in config or "fine_tune_type" not in config:
        parts = _peft(file, config)
    else:
        parts = _mlx(file, config)
    of_modules = (ref for each in parts.changes.values() for ref in (each.a, each.b, each.magnitude, each.beneath))
    for ref in (*of_modules, *(ref for pair in parts.experts for ref in (pair.a, pair.b))):
        if ref is not None and ref.type.name not in FLOATS:
            raise UnsupportedTypeError(
                f"type of {ref.name!r}", path=checkpoint.path, found=ref.type.name, expected=", ".join(FLOATS)
            )
    return parts


def _title(file: AdapterFile) -> str:
    path = file.checkpoint.path
    folder, name = os.path.split(path)
    own = os.path.basename(folder) if name in (*PEFT, MLX) and folder else name
    return own if file.scale == 1 else f"{own} × {file.scale:g}"


def _peft(file: AdapterFile, config: Mapping[str, Any]) -> Parts:
    checkpoint = file.checkpoint
    refuse_kinds(checkpoint, config, CARRIED)
    experts = tuple(_expert_pairs(file, config))
    of_experts = {ref.name for pair in experts for ref in (pair.a, pair.b)}
    own = {name: ref for name, ref in checkpoint.tensors.items() if name not in of_experts}
    pairs, found, unused = _sorted(replace(checkpoint, tensors=own))
    scaling, changes = Scaling(checkpoint, config), dict[str, Change]()
    for module, sides in pairs.items():
        if sides.keys() == {"tokens"}:
            rows = sides["tokens"]
            _refuse_scale(file, rows)
            changes[f"{module}.weight"] = Change(rows, tokens=token_indices(checkpoint, config, module, rows.shape[0]))
            continue
        if missing := {"A", "B"} - sides.keys():
            raise MissingError(f"lora_{min(missing)} of {module!r} missing", path=checkpoint.path)
        if "tokens" in sides:
            raise AmbiguousError("LoRA and single rows of one tensor", path=checkpoint.path, found=sides["tokens"].name)
        a, b = sides["A"], sides["B"]
        scale, alpha, why = scaling(module, b)
        low_of(checkpoint, module, a, b, scale, alpha, why)
        embedding = "lora_embedding_" in a.name
        changes[f"{module}.weight"] = Change(
            a, b, scale * file.scale, embedding=embedding, magnitude=sides.get("magnitude")
        )
        if "bias" in sides:
            changes[f"{module}.bias"] = Change(sides["bias"], scale=scale * file.scale, added=True)
    for name, ref in found.items():
        if name in changes and not changes[name].whole and ".base_layer." in ref.name:
            changes[name] = replace(changes[name], beneath=ref)
            continue
        if name in changes:
            raise AmbiguousError("tensor is changed and replaced", path=checkpoint.path, found=ref.name)
        _refuse_scale(file, ref)
        changes[name] = Change(ref)
    if not changes and not experts:
        raise MissingError("adapter has no tensor", path=checkpoint.path)
    conv1d = config.get("fan_in_fan_out", False)
    tied = config.get("ensure_weight_tying") is True
    return Parts(checkpoint, _title(file), changes, conv1d is True, tied, experts, unused)


def _refuse_scale(file: AdapterFile, ref: TensorRef) -> None:
    if file.scale != 1:
        raise UnsupportedError(
            f"scale {file.scale:g} of an adapter that replaces whole tensors or rows",
            path=file.checkpoint.path,
            found=ref.name,
        )


def _expert_pairs(file: AdapterFile, config: Mapping[str, Any]) -> Iterator[ExpertPair]:
    """Yield the pairs of `target_parameters`, which PEFT nests where a module has several: `experts.base_layer.lora_A`.

    A parameter called `weight` is that of a Linear, and its pair an ordinary one.
    """
    checkpoint, declared = file.checkpoint, config.get("target_parameters") or ()
    if not isinstance(declared, list | tuple) or not all(isinstance(each, str) for each in declared):
        raise InconsistentError("target_parameters", path=checkpoint.path, found=declared, expected="a list of names")
    named = [(owner, name) for owner, _, name in (each.rpartition(".") for each in declared) if name != "weight"]
    for key in ("rank_pattern", "alpha_pattern") if named else ():
        if config.get(key):
            raise UnsupportedError(f"{key} beside target_parameters", path=checkpoint.path, found=config[key])
    halves: dict[str, dict[str, TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        match = _NAMES[0][1].fullmatch(name.removeprefix(TOP))
        if match is not None and _names_of(_bare(match["module"]), named):
            halves.setdefault(match["module"], {})[match["side"]] = ref
    scaling = Scaling(checkpoint, config)
    for module, sides in halves.items():
        if missing := {"A", "B"} - sides.keys():
            raise MissingError(f"lora_{min(missing)} of {module!r} missing", path=checkpoint.path)
        a, b, own = sides["A"], sides["B"], _bare(module)
        if len(a.shape) != 2 or len(b.shape) != 2 or 0 in (*a.shape, *b.shape):
            raise ShapeError(f"{a.name!r} is not a matrix", path=checkpoint.path, found=a.shape)
        rank, strength = scaling.declared(module)
        yield ExpertPair(own, _names_of(own, named), a, b, rank, strength * file.scale)


def _bare(module: str) -> str:
    """Return a module's name without those of the wrappers around it."""
    return re.sub(r"(\.base_layer)+$", "", module)


def _names_of(module: str, named: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the parameters of a module that are named by the ends of their places."""
    return tuple(name for owner, name in named if f".{module}".endswith(f".{owner}"))


Sorted = tuple[dict[str, dict[str, TensorRef]], dict[str, TensorRef], tuple[str, ...]]


def _sorted(checkpoint: Checkpoint) -> Sorted:
    """Return the parts of every changed module, the tensors that replace the base's, and those that PEFT never loads.

    With an embedding that was resized, PEFT (0.21) writes what its wrappers hold, too: what `modules_to_save` replaced,
    and the trained tensor under a second name, and so DoRA's magnitudes.
    """
    pairs: dict[str, dict[str, TensorRef]] = {}
    whole: dict[str, TensorRef] = {}
    wrapped: dict[str, TensorRef] = {}
    unused: list[str] = []
    names: set[str] = set()
    for name, ref in checkpoint.tensors.items():
        short = name.removeprefix(TOP)
        if ".original_module." in short or (
            name.endswith(_WRAPPED) and name.removesuffix(".weight") in checkpoint.tensors
        ):
            unused.append(name)
            continue
        for kind, pattern in _NAMES:
            match = pattern.fullmatch(short)
            if match is not None:
                groups = match.groupdict()
                names.add(groups.get("adapter") or "")
                side = groups.get("side") or kind
                sides = pairs.setdefault(match["module"].removesuffix(".base_layer"), {})
                if side in sides:
                    raise AmbiguousError("several adapters in one file", path=checkpoint.path, found=name)
                sides[side] = ref
                break
        else:
            if ".lora_" in short:
                raise UnsupportedError("a kind of LoRA ggferry does not know", path=checkpoint.path, found=name)
            plain = re.sub(r"(\.token_adapter)?\.base_layer\.", ".", short)
            outer = re.sub(r"\.modules_to_save(\.[^.]+)?\.(?=[^.]+$)", ".", plain)
            if outer in (whole if outer == plain else wrapped):
                raise AmbiguousError("several adapters in one file", path=checkpoint.path, found=name)
            (whole if outer == plain else wrapped)[outer] = ref
    if len(names - {""}) > 1:
        raise AmbiguousError("several adapters in one file", path=checkpoint.path, found=", ".join(sorted(names)))
    unused += [ref.name for name, ref in wrapped.items() if name in whole]
    return pairs, {**wrapped, **whole}, tuple(unused)


def _mlx(file: AdapterFile, config: Mapping[str, Any]) -> Parts:
    checkpoint, declared = file.checkpoint, config.get("lora_parameters")
    kind = config.get("fine_tune_type")
    if kind not in ("lora", "dora"):
        raise UnsupportedError("fine_tune_type", path=checkpoint.path, found=kind, expected="lora, dora")
    scale = declared.get("scale") if isinstance(declared, dict) else None
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) < 1e30:
        raise InconsistentError("lora_parameters.scale", path=checkpoint.path, found=scale, expected="a number")
    pairs: dict[str, dict[str, TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        match = _MLX_NAME.fullmatch(name)
        if match is None:
            raise UnsupportedError("tensor is no part of an MLX LoRA", path=checkpoint.path, found=name)
        pairs.setdefault(match["module"], {})[match["side"]] = ref
    changes = {}
    for module, sides in pairs.items():
        if missing := {"lora_a", "lora_b"} - sides.keys():
            raise MissingError(f"{min(missing)} of {module!r} missing", path=checkpoint.path)
        a, b = sides["lora_a"], sides["lora_b"]
        embedding = module.rpartition(".")[2] in _EMBEDDINGS
        low_of(checkpoint, module, b, a, float(scale), float(scale), "lora_parameters")
        if (declared or {}).get("rank", a.shape[-1]) != a.shape[-1]:
            raise OutOfRangeError(
                f"rank of {module!r}", path=checkpoint.path, found=a.shape[-1], expected=(declared or {}).get("rank")
            )
        changes[f"{module}.weight"] = Change(
            a, b, float(scale) * file.scale, reversed=True, embedding=embedding, magnitude=sides.get("m")
        )
    if not changes:
        raise MissingError("adapter has no tensor", path=checkpoint.path)
    return Parts(checkpoint, _title(file), changes)
