"""What is kept of one model of an archive for the next of the same content: its graph, its vocabulary, its plans.

An archive holds many models that differ in their weights alone: the same tensors, configuration and tokenizer. They are
bound to their architecture once, and their vocabulary is compared once (docs/decisions/kept-while-planning.md).
Elsewhere nothing is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterator
from copy import deepcopy
from dataclasses import field, replace

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.output_metadata import Described
from ggferry.converters.conversion_plan.steps import Plan
from ggferry.converters.metadata.receipt_fields import TokenizerRecord
from ggferry.converters.model_graph.computed_tensors import Computed
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.reranking.recognize import is_called_like_one
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.files.sources import Window
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.support.content_cache import Recent, keeps
from ggferry.support.records import dataclass

TENSOR_BYTES, TOKEN_BYTES = 4 << 10, 200
"""Memory of a tensor's records in a graph, its steps and its key, and of a token, roughly and rather too much."""
MOST_TENSORS = 1 << 13  # of a model that is kept: of half a million, the key alone would take as long as a tiny model
MOST_COMPARED = 4  # outputs of one source differ in their vocabulary by the options alone
_KNOWN: Recent[Understood] = Recent(96 << 20)


@dataclass(frozen=True, slots=True)
class Planned:
    """An output that was planned.

    Attributes:
        plan: Its plan.
        notes: Those of its notes that are not about the name that its path gives it.
        described: What its keys say of the model whatever it is called.
    """

    plan: Plan
    notes: tuple[str, ...]
    described: Described


@dataclass(frozen=True, slots=True)
class Compared:
    """A vocabulary that was compared with its source's.

    Attributes:
        read: The vocabulary, as an output holds it.
        settings: How it was compared.
        found: What was found.
    """

    read: Tokenizer | None
    settings: Hashable
    found: TokenizerRecord


@dataclass(frozen=True, slots=True)
class Understood:
    """What is known of a source before types are chosen: the same for every output that is made of it.

    Attributes:
        graph: The model.
        tokenizer: Its vocabulary, if any.
        imatrix: The importance matrix, if any, under the names of the graph.
        plans: By what was asked (`request_key`), the last plan of a model of the same content.
        compared: Comparisons of this vocabulary with that of an output.
    """

    graph: ModelGraph
    tokenizer: Tokenizer | None
    imatrix: Imatrix | None
    plans: dict[Hashable, Planned] = field(default_factory=dict)
    compared: list[Compared] = field(default_factory=list)


def content_of(checkpoint: Checkpoint, request: Request) -> Hashable | None:
    """Return all that decides how a model is understood, but for its path; None where nothing is kept.

    Nothing is kept of what other files decide than those beside the weights, nor of a GGUF file, whose keys are its
    own as a rule, nor of a folder whose name says what the model is for, nor of very many tensors.
    """
    given = (
        request.imatrix,
        request.calibration,
        request.target,
        request.override_keys,
        request.prune,
        request.prune_experts,
        request.vocab.source,
    )
    if not keeps() or any(given) or checkpoint.dropped or checkpoint.adapters or is_called_like_one(checkpoint.path):
        return None
    if len(checkpoint.tensors) > MOST_TENSORS or any(isinstance(file, Window) for file in checkpoint.files):
        return None
    try:
        config = json.dumps(checkpoint.metadata)
    except TypeError:  # values of GGUF
        return None
    beside = dict(checkpoint.sidecars) | ({"--tokenizer-model": request.vocab.model} if request.vocab.model else {})
    tensors = (
        (ref.name, ref.type.name, ref.shape, ref.spans, ref.axis, ref.big_endian, ref.derived)
        for ref in checkpoint.tensors.values()
    )
    vocab = replace(request.vocab, model=None)
    return (
        (
            repr(request.hparams),
            request.options.vocab_only,
            request.mtp,
            request.mtp_only,
            request.fuse_qkv,
            request.rerank,
            repr(vocab),
        ),
        (checkpoint.container, checkpoint.version, checkpoint.layout, checkpoint.era, checkpoint.architecture),
        (checkpoint.big_endian, checkpoint.alignment, checkpoint.notes, repr(checkpoint.header), config),
        checkpoint.vocab,
        tuple((role, os.path.basename(path), _digest(path)) for role, path in beside.items()),
        tuple(tensors),
    )


def _digest(path: str) -> bytes:
    from blake3 import blake3

    return bytes(blake3(read_bytes(path)).digest())


def of(content: Hashable, checkpoint: Checkpoint) -> Understood | None:
    """Return what is kept of a model of this content, as what is known of `checkpoint`."""
    known = _KNOWN.get(content)
    if known is None:
        return None
    bound = known.graph.checkpoint
    files = (*checkpoint.files, *bound.files[len(checkpoint.files) :])
    bound = replace(bound, files=files, sidecars=checkpoint.sidecars, checksums=checkpoint.checksums)
    return replace(known, graph=replace(known.graph, checkpoint=bound))


def keep(content: Hashable, known: Understood, checkpoint: Checkpoint) -> None:
    """Keep what is known of `checkpoint`, unless something in it reads the files of this very model, or names them."""
    files = known.graph.checkpoint.files
    ours, more = files[: len(checkpoint.files)], files[len(checkpoint.files) :]
    if ours != checkpoint.files or not all(isinstance(each, Computed) for each in more):
        return
    if any(os.path.dirname(checkpoint.path) in text for text in _texts(known)):
        return
    tokens = len(known.tokenizer.tokens) if known.tokenizer is not None else 0
    nbytes = TENSOR_BYTES * (1 + max(len(known.graph.nodes), len(checkpoint.tensors))) + TOKEN_BYTES * tokens
    _KNOWN.put(content, known, nbytes)


def _texts(known: Understood) -> Iterator[str]:
    """Yield what is said of a model in words."""
    graph, tokenizer = known.graph, known.tokenizer
    yield from graph.notes
    yield from (param.origin for param in graph.hparams.values())
    yield from (drop.reason for drop in graph.dropped)
    if tokenizer is not None:
        yield from tokenizer.notes
        yield from (str(origin) for origin in tokenizer.origins.values())


def compared(
    known: Understood | None, read: Tokenizer | None, request: Request, compare: Callable[[], TokenizerRecord]
) -> TokenizerRecord:
    """Return what `compare` finds of the vocabulary that an output holds.

    It is what was found of an equal one, made of a source of the same content and compared in the same way.
    """
    if known is None or not keeps():
        return compare()
    settings = repr(replace(request.vocab, model=None)), request.level, request.text
    for each in known.compared:
        if each.settings == settings and each.read == read:
            return deepcopy(each.found)
    found = compare()
    if len(known.compared) < MOST_COMPARED:
        known.compared.append(Compared(read, settings, deepcopy(found)))
    return found


def request_key(request: Request) -> Hashable:
    """Return what of a request decides the plan of an output."""
    return repr(request.options), request.model_name, repr(request.metadata)
