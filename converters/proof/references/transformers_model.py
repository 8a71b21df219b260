"""Ask transformers about the source: compare its own class, in float32, with our pass over the source's weights.

Attention is eager where that is right (`_attention`). The program sees a folder of links to what our reader read, and
nothing else: no code of the model, no adapter, no other weights.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ggferry.converters.forward.computations.whisper import FRAMES, STRIDE
from ggferry.converters.forward.evaluate import can_place, embedding, result_of
from ggferry.converters.forward.inputs import fixed
from ggferry.converters.forward.model import LAST_STATES, Choices, Places
from ggferry.converters.forward.pooling import ANSWERS, RANK
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.proof.logits import growth
from ggferry.converters.proof.passes import Passes, run_prompts
from ggferry.converters.proof.prompts import Prompt, learned_positions, original_context, prompts, spread
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
from ggferry.converters.proof.references.child_process import Answer, ask, available_memory, prompts_of
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.schema.recipe import recipe_of
from ggferry.formats.checkpoint_folder.modules import DENSE
from ggferry.formats.errors import VerificationError
from ggferry.formats.files.sources import Window
from ggferry.support.heavy import np

NAME = "transformers"
SIDE = "source"
EXACT = 1e-5
"""Relative RMS within which transformers agrees with us in a model of three blocks. It grows as that of our own passes
does (docs/decisions/witnesses.md).
"""
TURN = 2.0**-24
"""Further relative RMS for each position: transformers' angles are float32, ours float64."""
NARROW = 5
"""A window that a short prompt exceeds: both sides compute with it, and the model's own are compared as numbers."""
_FAR = 8
"""Tokens of the far prompt."""
_ANGLES_LISTED = ("gptj",)
"""Whose classes in transformers look angles up in a table, which ends with the context."""
_KINDS = {"t5": "seq2seq", "whisper": "speech", "t5encoder": "states"}
_WEIGHTS = {"safetensors": "model.safetensors", "pytorch": "pytorch_model.bin"}
_STORED = {"BF16": "bfloat16", "F16": "float16"}
_CONTEXTS = ("model_max_length", "max_sequence_length")
"""Keys under which configurations state the context a model was trained on, besides those that transformers reads."""
_BLOCK = re.compile(r"^.*?\.\d+(?=\.)")


def unsupported(case: Case) -> Refusal | None:
    """Return why it cannot be compared; None when it can."""
    checkpoint = case.source.checkpoint
    files = [file for file in checkpoint.files if os.path.isfile(file.path)]
    if checkpoint.container not in _WEIGHTS or "config" not in checkpoint.sidecars or not files:
        return Refusal("the source is no local Hugging Face checkpoint", quiet=True)
    if "names" in checkpoint.header:
        return Refusal(f"the source's tensors have the names of {checkpoint.header['names']}")
    if any(isinstance(file, Window) for file in checkpoint.files):
        return Refusal("the source is inside an archive, where it does not read")
    if find_spec("transformers") is None:
        return Refusal("it is not installed (pip install 'ggferry[witness]')", quiet=True)
    if any(ref.derived is not None and ref.derived.merged for ref in checkpoint.tensors.values()):
        return Refusal("adapters are merged into the source's weights, which are in no file so")
    if "quantization_config" in checkpoint.metadata or any(isinstance(file, Dequantized) for file in checkpoint.files):
        return Refusal("the source's weights are quantized by a scheme that needs programs of its own")
    if case.has_overrides:
        return Refusal("--hparam sets what it reads from config.json")
    return not_enough_memory(memory(case.source)[0], available_memory())


def run(case: Case) -> tuple[CrossCheck, Difference | None]:
    """Return its comparison of the source's logits or states, and how far they are from ours.

    Raises VerificationError where it reads another window or another length of the context.
    """
    graph, texts = case.source, _prompts(case.source)
    window = _window(graph)
    answer = _ask(case, texts, NARROW if window or _may_have_window(graph) else 0)
    check = CrossCheck(NAME, answer.version, _what(graph), SIDE, why=answer.why)
    if answer.why is not None:
        return check, None
    _check_context(graph, answer)
    if window and answer.facts.get("window") is not None:
        graph = _narrowed(graph, window, answer)
    answered = [number for number, rows in enumerate(answer.rows) if len(rows)]
    compared = [texts[number] for number in answered]
    missed = tuple(f"prompt {text.name!r}: its class takes no positions" for text in texts if text not in compared)
    choices = [Choices() for _ in compared]
    weights = Weights(graph, case.threads)
    rows = run_prompts([Passes(weights, choices=choices)], compared)[0]
    reference_rows = [*answer.rows]
    if _kind(graph) in ("scores", "answers"):
        reference_rows = [_answers(graph, each) for each in answer.rows]
        rows = [embedding(graph, states, weights)[None] for states in rows]
        compared = [replace(text, places=Places(rows=(0,))) for text in compared]
    rows, reached = _unmasked(rows, [reference_rows[number] for number in answered])
    kept, ours, theirs, close = decided(compared, rows, reached, choices)
    check = replace(check, missed=(*missed, *close))
    if not kept:
        return replace(check, why=close[0]), None
    found = difference(kept, ours, theirs, [limit_of(graph, text) for text in kept])
    return replace(check, count=found.count), found


def _answers(graph: ModelGraph, rows: Any) -> Any:
    """Return a classifier's scores as they are; of a causal model that reranks, the logits of its two answers."""
    answers = [graph.sizes[name] for name in ANSWERS if name in graph.sizes]
    return np.asarray(rows)[-1:, answers] if answers and len(rows) else rows


def _unmasked(ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return both without the tokens that a class never says, whose logits are the least float32 (Chameleon)."""
    least = np.finfo(np.float32).min
    reachable = [~(np.asarray(rows) == least).all(0) for rows in theirs]
    if all(each.all() for each in reachable):
        return ours, theirs
    sides = [[np.asarray(rows)[:, each] for rows, each in zip(side, reachable, strict=True)] for side in (ours, theirs)]
    return sides[0], sides[1]


def _check_context(graph: ModelGraph, answer: Answer) -> None:
    """Compare the length of the context, which no prompt shows, with what transformers reads.

    Raises VerificationError.
    """
    context, theirs = graph.sizes.get("n_ctx") or 0, answer.facts.get("context")
    elsewhere = any(name in graph.checkpoint.metadata for name in _CONTEXTS)
    if context and theirs and theirs != context and _kind(graph) == "logits" and not elsewhere:
        raise _other("length of the context", graph, context, theirs, answer)


def _other(what: str, graph: ModelGraph, found: int, expected: int, answer: Answer) -> VerificationError:
    return VerificationError(
        f"{NAME} {answer.version} reads another {what}", path=graph.checkpoint.path, found=found, expected=expected
    )


def limit_of(graph: ModelGraph, text: Prompt) -> float:
    """Return the relative RMS allowed for the prompt."""
    furthest = (text.places.positions or (0,))[-1]
    return EXACT * growth(graph) + TURN * furthest


def _what(graph: ModelGraph) -> str:
    kind = _kind(graph)
    return {"states": "states", "scores": "scores", "answers": "scores"}.get(kind, "logits")


def _kind(graph: ModelGraph) -> str:
    if result_of(graph) is LAST_STATES:
        ranks = graph.sizes.get("pooling") == RANK
        return ("answers" if ANSWERS[0] in graph.sizes else "scores") if ranks else "states"
    return _KINDS.get(recipe_of(graph.architecture.recipe, graph.dialect.conventions).computation, "logits")


def _prompts(graph: ModelGraph) -> list[Prompt]:
    """Return the prompts that transformers is asked.

    These are the first prompt; consecutive tokens beyond the original context, or at the end of a table of positions;
    and the experts' prompt.
    """
    texts = [_unpadded(graph, text) for text in prompts(graph) if text.places.positions is None]
    sizes, original = graph.sizes, original_context(graph.sizes)
    learned, listed = learned_positions(graph), graph.architecture.name in _ANGLES_LISTED
    # LLaMA 4's queries grow with the number of tokens so far, which gaps between positions do not change
    counted = recipe_of(graph.architecture.recipe, graph.dialect.conventions).temperature == "unrotated"
    counted = counted or "reach" in sizes  # and MiniMax M3 cuts blocks of tokens by their number,
    counted = counted or "ratio" in sizes  # as DeepSeek V4 does what it compresses
    rotated = (learned or sizes.get("n_rot")) and not sizes.get("max_alibi") and not counted
    if _kind(graph) == "logits" and can_place(graph) and rotated and original >= 2 * _FAR:
        first = original - (_FAR if learned or listed else 2)
        at = tuple(range(first, first + _FAR))
        texts.insert(1, Prompt("far", spread(sizes["n_vocab"], _FAR, 16), Places(at)))
    return texts


def _unpadded(graph: ModelGraph, text: Prompt) -> Prompt:
    """Return the prompt without the padding token, where that one has no position of its own (RoBERTa)."""
    padding = graph.sizes.get("padding") if graph.sizes.get("after_padding") else None
    return replace(text, tokens=tuple(token + (token == padding) for token in text.tokens))


# --- the window of attention ---------------------------------------------------------------------------------


def _window(graph: ModelGraph) -> int:
    """Return the window of a decoder, 0 for none."""
    window = graph.sizes.get("n_swa") or 0
    decoder = _kind(graph) == "logits" and "n_swa" in graph.hparams
    return window if decoder and isinstance(window, int) else 0


def _may_have_window(graph: ModelGraph) -> bool:
    """Return whether config.json states a window that we do not use: transformers must then show that it uses none."""
    config, context = graph.checkpoint.metadata, graph.sizes.get("n_ctx") or 0
    nested = config.get(graph.dialect.config_section or "")
    declared = (nested if isinstance(nested, dict) else config).get("sliding_window")
    return isinstance(declared, int) and 0 < declared < context and _kind(graph) == "logits"


def _narrowed(graph: ModelGraph, window: int, answer: Answer) -> ModelGraph:
    """Return the source with a window of `NARROW` tokens in place of its own.

    Its own window must be the one that transformers reads, as far as the context goes. Raises VerificationError.
    """
    context = graph.sizes.get("n_ctx") or window
    theirs = answer.facts["window"] or context
    if min(theirs, context) != min(window, context):
        raise _other("window of attention", graph, window, theirs, answer)
    if not answer.facts["window"]:
        return graph
    return replace(graph, hparams={**graph.hparams, "n_swa": replace(graph.hparams["n_swa"], value=NARROW)})


# --- its process ---------------------------------------------------------------------------------------------


def _ask(case: Case, texts: list[Prompt], window: int) -> Answer:
    graph = case.source
    _link(graph, os.path.join(case.folder, "model"))
    if _kind(graph) == "speech":
        channels, frames = graph.sizes["n_mels"], min(FRAMES, STRIDE * graph.sizes["n_ctx_enc"])
        np.save(os.path.join(case.folder, "mel.npy"), fixed(channels, frames).numpy())
    job = {
        "kind": _kind(graph),
        "dtype": memory(graph)[1],
        "threads": case.threads,
        "window": window,
        "attention": _attention(graph),
        "prompts": prompts_of(texts),
    }
    return ask("transformers_logits", job, case.folder, graph.checkpoint.nbytes)


def _attention(graph: ModelGraph) -> str:
    """Return the kind of attention: eager, which for Falcon would add ALiBi twice.

    transformers 5.23 adds it to the scores, and again with the mask that holds it already.
    """
    return "sdpa" if graph.architecture.name == "falcon" and graph.sizes.get("max_alibi") else "eager"


def _link(graph: ModelGraph, folder: str) -> None:
    """Make a folder in which transformers finds config.json and the weights that our reader read."""
    checkpoint, standard = graph.checkpoint, _WEIGHTS[graph.checkpoint.container]
    os.mkdir(folder)
    os.symlink(os.path.abspath(checkpoint.sidecars["config"]), os.path.join(folder, "config.json"))
    own = {ref.spans[0].file for ref in _refs(graph) if ref.spans}
    files = [number for number, file in enumerate(checkpoint.files) if number in own and os.path.isfile(file.path)]
    stem, kind = standard.rsplit(".", 1)
    names = {number: f"{stem}-{place:05}-of-{len(files):05}.{kind}" for place, number in enumerate(files, 1)}
    names = names if files[1:] else {files[0]: standard}
    for number, name in names.items():
        os.symlink(os.path.abspath(checkpoint.files[number].path), os.path.join(folder, name))
    if files[1:]:
        where = {ref.name: names[ref.spans[0].file] for ref in _refs(graph) if ref.spans[0].file in names}
        with open(os.path.join(folder, f"{standard}.index.json"), "w", encoding="utf-8") as file:
            json.dump({"metadata": {}, "weight_map": where}, file)


def _refs(graph: ModelGraph) -> list[Any]:
    """Return every tensor of the checkpoint, including those that we drop, but none of sentence-transformers' own."""
    found = (*graph.checkpoint.tensors.values(), *(drop.ref for drop in graph.dropped))
    return [ref for ref in found if not ref.name.startswith(f"{DENSE}.")]


def memory(graph: ModelGraph) -> tuple[int, str]:
    """Return the bytes that transformers needs, and the type in which it is to hold the weights.

    That is float32 where it fits; else the stored type, mapped or copied, with one block at a time as float32.
    """
    refs = list(graph.checkpoint.tensors.values())
    whole = GIB + 4 * sum(ref.elements for ref in refs)
    types = {ref.type.name for ref in refs}
    stored = _STORED.get(next(iter(types))) if len(types) == 1 else None
    if stored is None or whole <= available_memory():
        return whole, "float32"
    blocks: Counter[str] = Counter()
    for ref in refs:
        found = _BLOCK.match(ref.name)
        blocks[found[0] if found else ""] += 4 * ref.elements
    outside = blocks.pop("", 0)
    copied = graph.checkpoint.container != "safetensors" or graph.sizes.get("n_expert")
    held = graph.checkpoint.nbytes if copied else 0
    return GIB + outside + held + 2 * max(blocks.values(), default=0), stored


WITNESS = ReferenceImplementation(NAME, SIDE, unsupported, run)
