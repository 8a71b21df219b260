"""What a folder in Hugging Face's form will hold: its class, its configuration, its tensors.

A class is chosen by trial: the configuration and the names made for it are bound again by the tables, as those of any
checkpoint, and must lead to the keys and tensors of the model. No tensor data is read but that of small factor tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.architectures._embeddings import RERANKERS
from ggferry.converters.hf_export.config import Extent, all_values, configuration
from ggferry.converters.hf_export.known_classes import KnownClass, known_class
from ggferry.converters.hf_export.rows_back import Number
from ggferry.converters.hf_export.source_tensors import SourceTensor, source_tensors, zero_biases
from ggferry.converters.model_graph.computed_tensors import Computed
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import same
from ggferry.converters.schema.architecture import Dialect
from ggferry.converters.schema.fused_attention import is_joined
from ggferry.converters.trainer_names.mlx_lm.roles import as_published
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.errors import GgferryError, UnsupportedError
from ggferry.quant.codec import block_type
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

_OTHER_HALF = ".n_deepstack_layers"
"""What a text model's file says of the vision encoder, which it does not hold."""
NOWHERE = 1 << 62
"""Where the bytes of tensors lie that only stand for those of a folder: their values are not read."""


@dataclass(frozen=True, slots=True)
class BackPlan:
    """What will be written.

    Attributes:
        graph: The source.
        dialect: Whose names the tensors get.
        known: The class.
        config: config.json, without what belongs to the tokenizer.
        tensors: The tensors, in the order of the file.
        notes: What the user should know.
    """

    graph: ModelGraph
    dialect: Dialect
    known: KnownClass
    config: Mapping[str, Any]
    tensors: tuple[SourceTensor, ...]
    notes: tuple[str, ...] = ()


def plan_back(graph: ModelGraph) -> BackPlan:
    """Return the plan of the first class whose configuration says all that the model is.

    A class that has a place for every value wins over one that has not. Raises UnsupportedError where no class of the
    architecture can say it, with the reason of the first.
    """
    if not any(each.name == "hf" for each in graph.architecture.dialects):
        raise UnsupportedError(
            "no checkpoint in Hugging Face's form is known of this architecture",
            path=graph.checkpoint.path,
            found=graph.architecture.name,
        )
    made = [role.name for role in graph.architecture.roles for one in role.sources.values() if one.layout.formula]
    if made:
        raise UnsupportedError(
            f"{made[0]} is what a network made of the published weights, which nothing gives back",
            path=graph.checkpoint.path,
            found=graph.architecture.name,
        )
    graph = replace(graph, architecture=as_published(graph.architecture))
    best: tuple[tuple[int, bool, int], BackPlan] | None = None
    first: GgferryError | None = None
    for known, dialect in _candidates(graph):
        try:
            plan, lacks = _tried(graph, known, dialect)
        except GgferryError as error:
            first = first or error
            continue
        if best is None or lacks < best[0]:
            best = lacks, plan
        if not any(lacks):
            break
    if best is None:
        why = first or "no folder of its classes was held against transformers yet, so none is written"
        raise UnsupportedError(
            f"a configuration of {graph.architecture.display_name} cannot say what this model is: {why}",
            path=graph.checkpoint.path,
        )
    return best[1]


def _candidates(graph: ModelGraph) -> Iterator[tuple[KnownClass, Dialect]]:
    """Yield the classes of the architecture with the dialects that their checkpoints may speak.

    Classes of a text model alone come first, and last those without what makes words of the last states, which have
    names of their own.
    """
    dialects = [each for each in graph.architecture.dialects if each.source == "hf" and not each.types]
    named = (name for dialect in dialects for name in dialect.classes)
    found = []
    for name in dict.fromkeys((*graph.architecture.hf_classes, *named)):
        known = known_class(name)
        if known is None or not _fits(graph, known):
            continue
        bare = [each for each in dialects if not (each.classes or each.header or each.name in RERANKERS.values())]
        own = [each for each in dialects if name in each.classes or each in bare]
        own.sort(key=lambda each: each.name != "headless")
        found += [(known, each) for each in own]
    headless = {name for each in dialects if each.name == "headless" for name in each.classes}
    yield from sorted(
        found, key=lambda pair: (pair[0].name in headless, bool(pair[0].config_section), not pair[0].keys)
    )


def _fits(graph: ModelGraph, known: KnownClass) -> bool:
    """Return whether the class has a place for the model's width: a model of several parts has it elsewhere."""
    places = next((param.fields.get("hf", "") for param in graph.architecture.hparams if param.name == "n_embd"), "")
    return not places or bool(known.places(places))


def _tried(graph: ModelGraph, known: KnownClass, dialect: Dialect) -> tuple[BackPlan, tuple[int, bool, int]]:
    """Return the plan for one class, and what the class lacks: the less, the better.

    That is how many keys nothing else says, whether only its author knows its keys, and how many keys the model states
    that it has not. Raises GgferryError.
    """
    values = all_values(graph, dialect, known.name)
    inner = bool(known.config_section)
    tensors = (
        *source_tensors(graph, dialect, values, inner=inner),
        *zero_biases(graph, dialect, values, inner=inner),
        *_numbers(graph, values),
    )
    config, missed, unplaced = _config(graph, dialect, known, values, tensors)
    notes = [f"config.json states {name}, which is no key of transformers' {known.name}" for name in missed]
    if known.config_section:
        notes.append(f"{known.name} also has a vision or audio encoder: this folder holds the text model alone")
    return BackPlan(graph, dialect, known, config, tensors, tuple(notes)), (len(missed), not known.keys, unplaced)


def _config(
    graph: ModelGraph, dialect: Dialect, known: KnownClass, values: Mapping[str, Any], tensors: tuple[SourceTensor, ...]
) -> tuple[Mapping[str, Any], list[str], int]:
    """Return the configuration, the keys that say what nothing else does but are none of the class, and the number of
    all keys in it that are none.

    What the class has no key for is stated all the same, where the model states it: some are read by name alone. Raises
    GgferryError where no configuration leads back to the model.
    """
    fullest, missed, count = dict[str, Any](), list[str](), 0
    failed: GgferryError | None = None
    for extent in Extent:
        config, unplaced = configuration(graph, dialect, known, values, extent)
        try:
            check_alike(graph, understand(_imagined(config, tensors), fuse_qkv=is_joined(graph.architecture)))
        except GgferryError as error:
            failed = failed or error
            continue
        missed = missed if fullest else unplaced
        fullest, count = config, len(unplaced)
        if extent is Extent.DECLARED:
            break
    if not fullest:
        raise failed or UnsupportedError("no configuration of a transformers class describes this model")
    return fullest, missed, count


def _numbers(graph: ModelGraph, values: Mapping[str, Any]) -> Iterator[SourceTensor]:
    """Yield the tensors of one number, of a block or of all, that hold an hparam."""
    for param in graph.architecture.hparams:
        listed = values.get(param.name) if param.tensors and "*" not in param.tensors else None
        alone = () if listed is None else (listed,)
        for n, value in enumerate(listed if isinstance(listed, tuple) else alone):
            shape = () if param.scalar else (1,)
            yield SourceTensor(param.tensors.format(n=n), shape, Number(value), block_type("F32"), (), ("key",), True)


def _imagined(config: Mapping[str, Any], tensors: tuple[SourceTensor, ...]) -> Checkpoint:
    """Return the checkpoint that would be read: names and shapes, and the numbers that tensors hold."""
    source, found = Computed(), dict[str, TensorRef]()
    for tensor in tensors:
        if tensor.nodes:
            found[tensor.name] = TensorRef(tensor.name, tensor.type, tensor.shape, (Span(0, NOWHERE, tensor.shape),))
        else:
            shape = tensor.shape or (1,)
            read = tensor.rows.read(np.arange(shape[0], dtype=np.int64))
            found[tensor.name] = source.add(tensor.name, read[:, 0].tolist(), shape, 0)
    return Checkpoint("safetensors", None, (source,), found, metadata=config)


def check_alike(graph: ModelGraph, again: ModelGraph) -> None:
    """Check that what was bound again is the same model. Raises UnsupportedError naming the first difference."""
    if graph.architecture.name != again.architecture.name:
        raise UnsupportedError("it would be another architecture", found=again.architecture.name)
    ours, theirs = ({key: value for key, value, _ in each.written()} for each in (graph, again))
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if key.endswith(_OTHER_HALF):
            continue
        if a is not None and (b is None or not _same(a.data, b.data)) and not _implied(again, key, a.data):
            raise UnsupportedError(f"config.json would give another {key}", found=b and b.data, expected=a.data)
        if a is None and b is not None and not _implied(graph, key, b.data):
            raise UnsupportedError(f"the class would assume {key}, which the model does not have", found=b.data)
    odd = sorted(set(graph.by_name) ^ set(again.by_name))
    if odd:
        raise UnsupportedError("the class has other tensors than the model", found=odd[0])
    for node in again.nodes:
        if math.prod(node.shape) != math.prod(graph.by_name[node.name].shape):
            raise UnsupportedError(f"shape of {node.name}", found=node.shape, expected=graph.by_name[node.name].shape)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) != isinstance(b, tuple):
        one, many = (b, a) if isinstance(a, tuple) else (a, b)
        return all(same(one, item) for item in many)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return same(a, b)


def _implied(again: ModelGraph, key: str, value: Any) -> bool:
    """Return whether the model says the same without the key."""
    spec = next(each for each in again.architecture.hparams if each.key_of(again.architecture.name) == key)
    found = again.sizes.get(spec.name)
    return found is not None and _same(found, value)
