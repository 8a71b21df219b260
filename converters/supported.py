"""What ggferry reads and writes: families, block types, recipes, and how much of another program's list that covers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ggferry.converters.model_graph.open_checkpoint import architectures, projectors
from ggferry.converters.projectors._unread import UNREAD
from ggferry.converters.schema.architecture import Architecture
from ggferry.converters.unsupported_classes import REASONS
from ggferry.formats.errors import InconsistentError
from ggferry.quant.codec import LLAMA_CPP, codecs
from ggferry.quant.recipes.choose import ModelFacts, TensorInfo, choose, recipe
from ggferry.quant.recipes.mixtures import recipe_ids
from ggferry.support.records import dataclass

MAX_NAMES = 100_000
"""Class names of a list; today's converter knows 269."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models. `classes`: of transformers, as config.json names them; `legacy`: it has GGML-era files;
    `runtimes`: programs that run its GGUF files (a model may have a property that stops them: its receipt says)."""

    name: str
    display_name: str
    classes: tuple[str, ...]
    legacy: bool
    runtimes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KindOfBlock:
    """A block type. `ggml_id`: its number in GGUF, None for those of the GGML era alone; `encodes`: it can be asked
    for by name, `decodes` go without saying; `becomes`: the type of today with the same values."""

    name: str
    bits_per_weight: float
    elements: int
    bytes: int
    ggml_id: int | None
    encodes: bool
    needs_imatrix: bool
    becomes: str | None
    runtimes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutType:
    """A value of --outtype. `main`: the type of most weights; `bits_per_weight`: of a whole Llama-3.1-8B, None where
    nothing is quantized or narrowed; `needs_imatrix`: it makes types that need an importance matrix."""

    name: str
    main: str | None
    bits_per_weight: float | None
    needs_imatrix: bool
    runtimes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which classes of a list are read. `unlisted`: classes that are read and that the list has not; `reasons`: why
    some of the missing ones are not read."""

    listed: tuple[str, ...]
    read: tuple[str, ...]
    missing: tuple[str, ...]
    unlisted: tuple[str, ...]
    reasons: Mapping[str, str]


def _classes(spec: Architecture) -> tuple[str, ...]:
    """The classes it may read: its own, and those it shares with another by what their weights hold."""
    shared = [name for dialect in spec.dialects for name in dialect.classes]
    return tuple(dict.fromkeys([*spec.hf_classes, *shared]))


def families() -> list[Family]:
    """Return every family, by name."""
    return [
        Family(spec.name, spec.display_name or spec.name, _classes(spec), bool(spec.headers), spec.runtimes)
        for _, spec in sorted(architectures().items())
    ]


def block_types() -> list[KindOfBlock]:
    """Return every block type: those of GGUF by their numbers, then those of the eras before it, by name."""
    found = []
    for codec in codecs().values():
        kind = codec.type
        found.append(
            KindOfBlock(
                kind.name,
                8 * kind.block_bytes / kind.elements,
                kind.elements,
                kind.block_bytes,
                kind.ggml_id,
                codec.encode is not None,
                codec.needs_imatrix,
                None if codec.repack is None else codec.repack.target,
                () if kind.ggml_id is None else (codec.runtime,),
            )
        )
    return sorted(found, key=lambda each: (each.ggml_id is None, each.ggml_id or 0, each.name))


def out_types() -> list[OutType]:
    """Return every value of --outtype, in llama-quantize's order."""
    found = [OutType("keep", None, None, False, (LLAMA_CPP,))]
    for name in recipe_ids():
        family = recipe(name)
        choices = choose(family, _LLAMA_8B, _FACTS, imatrix=True)
        kinds = codecs()
        bits = sum(8 * kinds[choices[t.name].type].type.nbytes(t.shape) for t in _LLAMA_8B)
        needs = any(choice.needs_imatrix for choice in choices.values())
        found.append(
            OutType(name.lower(), family.default, bits / sum(t.elements for t in _LLAMA_8B), needs, (LLAMA_CPP,))
        )
    return found


def coverage(listed: Iterable[str], mmproj: bool = False) -> Coverage:
    """Return which of the class names are read; with `mmproj`, of whose models the encoder is.

    A name that comes twice counts once.
    """
    names = tuple(dict.fromkeys(listed))
    tables = projectors() if mmproj else architectures()
    known = {name for spec in tables.values() for name in _classes(spec)}
    reasons = UNREAD if mmproj else REASONS
    return Coverage(
        names,
        tuple(name for name in names if name in known),
        tuple(name for name in names if name not in known),
        tuple(sorted(known - set(names))),
        {name: why for name, why in reasons.items() if name in set(names) - known},
    )


def lists_mmproj_classes(value: Any) -> bool:
    """Return whether a JSON document lists classes of whose models the mmproj file is meant."""
    return isinstance(value, Mapping) and value.get("second_files") is True


def class_names(value: Any, path: str) -> list[str]:
    """Return the class names of a JSON document: a list of names, an object whose keys they are, or an object with
    such a one under "classes". Raises InconsistentError."""
    if isinstance(value, Mapping):
        value = value.get("classes", value)
    names = list(value) if isinstance(value, (list, Mapping)) else []
    if not names or len(names) > MAX_NAMES or not all(isinstance(name, str) for name in names):
        raise InconsistentError("no list of class names", path=path, expected="names, or an object with 'classes'")
    return names


def _llama(layers: int, width: int, kv: int, ffn: int, vocabulary: int) -> tuple[TensorInfo, ...]:
    """The tensors of a LLaMA of these sizes, in F16."""
    block = {
        "attn_q": (width, width),
        "attn_k": (kv, width),
        "attn_v": (kv, width),
        "attn_output": (width, width),
        "ffn_gate": (ffn, width),
        "ffn_up": (ffn, width),
        "ffn_down": (width, ffn),
    }
    norms = [
        TensorInfo(f"blk.{n}.{name}.weight", (width,), "F32", True)
        for n in range(layers)
        for name in ("attn_norm", "ffn_norm")
    ]
    weights = [
        TensorInfo(f"blk.{n}.{name}.weight", shape, "F16") for n in range(layers) for name, shape in block.items()
    ]
    ends = [TensorInfo(f"{name}.weight", (vocabulary, width), "F16") for name in ("token_embd", "output")]
    return (*ends, TensorInfo("output_norm.weight", (width,), "F32", True), *norms, *weights)


_LLAMA_8B = _llama(32, 4096, 1024, 14336, 128256)
"""meta-llama/Llama-3.1-8B, config.json."""
_FACTS = ModelFacts("llama", 32, 32, 8)
