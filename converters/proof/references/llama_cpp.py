"""Ask llama.cpp about the output: compare what PyPI's xllamacpp computes from the file with our pass over it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ggferry.converters.forward.evaluate import embedding, result_of
from ggferry.converters.forward.model import LAST_STATES, Choices, Places
from ggferry.converters.forward.pooling import SHARED, shares
from ggferry.converters.forward.weights import Weights
from ggferry.converters.metadata.file_names import shard_label
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.logits import growth
from ggferry.converters.proof.passes import Passes, run_prompts
from ggferry.converters.proof.prompts import PROMPT_LENGTH, Prompt, original_context, spread
from ggferry.converters.proof.references.case import (
    GIB,
    Case,
    Difference,
    ReferenceImplementation,
    Refusal,
    decided,
    difference,
    not_enough_memory,
)
from ggferry.converters.proof.references.child_process import ask, available_memory, prompts_of
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.proof.runtime_notes import computed_differently, loads
from ggferry.converters.schema.recipe import recipe_of
from ggferry.formats.gguf.values import Value
from ggferry.support.heavy import np

NAME = "llama.cpp"
SIDE = "output"
LIMITS = {"F32": 1.5e-5, "F16": 4e-3, "BF16": 3e-2}
"""Relative RMS of log-probabilities in a model of three blocks, by the type of the matrices: activations are rounded to
that type. It grows with the number of blocks, as that of our own passes does (docs/decisions/witnesses.md).
"""
QUANTIZED = 0.1
"""The same for quantized matrices: activations are rounded to 8 bits."""
GELU = 3e-3
"""The least limit where llama.cpp computes GELU, which it looks up in a table of float16."""
MOST = 0.3
"""The highest limit: beyond it, a mistake can no longer be distinguished from rounding."""
_DECODERS = ("decoder", "mamba", "rwkv")
_POOLED = {1: "MEAN", 2: "CLS", 3: "LAST", 4: "RANK"}
_ROWS = (5, 10, 15)
CONTEXT = 256
"""Tokens; llama.cpp rounds any context up to a multiple of so many."""
_LONGEST = 1 << 14
"""The longest original context for which a cache is made so that the factors of long texts are used."""
_MOST_WORK = 4e11
"""Multiplications that a text longer than the window may cost: seconds."""


def unsupported(case: Case) -> Refusal | None:
    """Return why it cannot be compared; None when it can."""
    graph = case.output
    if find_spec("xllamacpp") is None:
        return Refusal("it is not installed (pip install 'ggferry[witness]')", quiet=True)
    if not _embeds(graph) and _computation(graph) not in _DECODERS:
        return Refusal("its server continues texts, which this model does not", quiet=True)
    if NAME not in case.source.runtimes or NAME not in graph.runtimes or not loads(*_file(graph)):
        return Refusal("it does not run such a model", quiet=True)
    if "tokenizer.ggml.tokens" not in graph.checkpoint.metadata:
        return Refusal("the output has no vocabulary, without which it does not load a file")
    return not_enough_memory(GIB + 8 * CONTEXT * graph.sizes["n_vocab"], available_memory())


def run(case: Case) -> tuple[CrossCheck, Difference | None]:
    """Return its comparison of the output's log-probabilities, and how far they are from ours.

    Of a model of embeddings, or a classifier, it is heard on what it makes of a text.
    """
    if _embeds(case.output):
        return _run_embedding(case)
    graph, texts = case.output, _prompts(case)
    job = {
        "model": link_model(graph, case.folder),
        "n_vocab": graph.sizes["n_vocab"],
        "letter": _letter(graph),
        "threads": case.threads,
        "prompts": prompts_of(texts),
    }
    answer = ask("llama_cpp_logits", job, case.folder, graph.checkpoint.nbytes)
    missed = _missed(graph, texts)
    check = CrossCheck(NAME, answer.version, "logits", SIDE, why=answer.why, missed=missed, refused=answer.refused)
    if answer.why is not None:
        return check, None
    choices = [Choices() for _ in texts]
    rows = run_prompts([Passes(Weights(graph, case.threads), choices=choices)], texts)[0]
    kept, ours, theirs, close = decided(texts, rows, answer.rows, choices)
    check = replace(check, missed=(*missed, *close))
    if not kept:
        return replace(check, why=close[0]), None
    ours, theirs = [_centered(_probable(logits)) for logits in ours], [*map(_centered, theirs)]
    found = difference(kept, ours, theirs, [limit_of(graph)] * len(kept))
    return replace(check, count=found.count), found


def _run_embedding(case: Case) -> tuple[CrossCheck, Difference | None]:
    graph = case.output
    text = Prompt("start", spread(graph.sizes["n_vocab"]), Places())
    states = run_prompts([Passes(Weights(graph, case.threads))], [text])[0][0]
    vector = embedding(graph, states)
    kind = _POOLED.get(graph.sizes.get("pooling") or 0, "MEAN")
    ours = states.mean(0) if vector is None else vector
    ours = shares(ours) if kind == "RANK" and graph.architecture.name in SHARED else ours
    job = {
        "model": link_model(graph, case.folder),
        "threads": case.threads,
        "prompts": prompts_of([text]),
        "pooling": kind,
        "count": len(ours),
    }
    answer = ask("llama_cpp_embeddings", job, case.folder, graph.checkpoint.nbytes)
    what = "scores" if kind == "RANK" else "embeddings"
    check = CrossCheck(NAME, answer.version, what, SIDE, why=answer.why)
    if answer.why is not None:
        return check, None
    theirs = np.asarray(answer.rows[0], np.float64)
    if vector is not None and kind != "RANK":
        theirs = theirs / (np.linalg.norm(theirs) or 1.0)
    found = difference([replace(text, places=Places(rows=(0,)))], [ours[None]], [theirs], [limit_of(graph)])
    return replace(check, count=found.count), found


def _embeds(graph: ModelGraph) -> bool:
    """Return whether texts become vectors or scores in the model, by a computation that llama.cpp's server has."""
    return result_of(graph) is LAST_STATES or graph.architecture.name == "t5encoder"


def _computation(graph: ModelGraph) -> str:
    return recipe_of(graph.architecture.recipe, graph.dialect.conventions).computation


def limit_of(graph: ModelGraph) -> float:
    """Return the relative RMS allowed for this file.

    Rounding may route tokens to other experts, so a model with experts is held to the limit of quantized matrices.
    """
    limit = max(LIMITS.get(node.inputs[0].type.name, QUANTIZED) for node in graph.nodes if len(node.shape) > 1)
    if limit > LIMITS["F32"] and graph.sizes.get("n_expert"):
        limit = QUANTIZED
    t5s = graph.architecture.name == "t5encoder" and "enc.blk.0.ffn_gate.weight" in graph.by_name
    if t5s or "gelu" in f"{graph.sizes.get('activation')} {graph.architecture.recipe}":
        limit = max(limit, GELU)
    return min(MOST, limit * growth(graph))


def _prompts(case: Case) -> list[Prompt]:
    """Return the prompts that llama.cpp is asked.

    These are the first tokens; the same in a context long enough for the factors of long texts; and a text longer than
    the window, where that is cheap and llama.cpp has windows in this architecture.
    """
    graph, sizes, n_vocab = case.output, case.output.sizes, case.output.sizes["n_vocab"]
    text = spread(n_vocab)
    found = [Prompt("start", text, Places(context=CONTEXT, rows=_ROWS))]
    original = original_context(sizes)
    if "rope_factors_long.weight" in graph.by_name and CONTEXT <= original <= _LONGEST:
        found.append(Prompt("long", text, Places(context=CONTEXT * (original // CONTEXT + 1), rows=_ROWS)))
    count = _beyond_window(graph)
    if count > PROMPT_LENGTH and not case.source.known_differences(NAME, count):
        context = CONTEXT * (count // CONTEXT + 1)
        found.append(Prompt("window", spread(n_vocab, count), Places(context=context, rows=(count - 2, count - 1))))
    return found


def _beyond_window(graph: ModelGraph) -> int:
    """Return the length of a text that exceeds the window; 0 where it costs too much or exceeds the context."""
    window = graph.sizes.get("n_swa") or 0
    count = window + 4 if isinstance(window, int) and window else 0
    within = count <= (graph.sizes.get("n_ctx") or count)
    return count if within and 2 * graph.parameters * count <= _MOST_WORK else 0


def _missed(graph: ModelGraph, texts: Sequence[Prompt]) -> tuple[str, ...]:
    window, names = graph.sizes.get("n_swa") or 0, [text.name for text in texts]
    missed = [f"the window of {window}"] if window and "window" not in names and len(texts[0].tokens) <= window else []
    if "rope_factors_long.weight" in graph.by_name and "long" not in names:
        missed.append("one of the two regimes of rotary embeddings")
    return tuple(missed)


def link_model(graph: ModelGraph, folder: str) -> str:
    """Link the output, with its shards, under a name that llama.cpp knows; return that name."""
    files, count = graph.checkpoint.files, len(graph.checkpoint.files)
    names = ["model.gguf"] if count == 1 else [f"model-{shard_label(n, count)}.gguf" for n in range(1, count + 1)]
    for name, file in zip(names, files, strict=True):
        os.symlink(os.path.abspath(file.path), os.path.join(folder, name))
    return names[0]


def _letter(graph: ModelGraph) -> int:
    """Return a token whose text is an ASCII word, and so whole characters."""
    tokens = graph.checkpoint.metadata["tokenizer.ggml.tokens"].data
    kinds = graph.checkpoint.metadata.get("tokenizer.ggml.token_type")
    normal = [1] * len(tokens) if kinds is None else kinds.data
    words = (text.lstrip("▁Ġ") for text in tokens)
    plain = (number for number, word in enumerate(words) if normal[number] == 1 and word.isascii() and word.isalnum())
    return next(plain, 0)


def _probable(logits: Any) -> Any:
    """Return the log-probabilities of logits `(rows, n_vocab)`."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _centered(rows: Any) -> Any:
    return np.asarray(rows, np.float64) - np.mean(rows, -1, keepdims=True, dtype=np.float64)


def _otherwise(case: Case) -> tuple[str, ...]:
    return computed_differently(*_file(case.output))


def _file(graph: ModelGraph) -> tuple[str, Mapping[str, Value], Iterable[str]]:
    return graph.architecture.name, graph.checkpoint.metadata, graph.checkpoint.tensors


WITNESS = ReferenceImplementation(NAME, SIDE, unsupported, run, _otherwise)
