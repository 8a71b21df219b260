"""Ask ctransformers about a source of 2023: what the programs of the time compute from the file itself."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

from ggferry.converters.forward.weights import Weights
from ggferry.converters.proof.logits import growth
from ggferry.converters.proof.passes import Passes, run_prompts
from ggferry.converters.proof.prompts import Prompt, original_context, spread
from ggferry.converters.proof.references.case import (
    GIB,
    Case,
    Difference,
    ReferenceImplementation,
    Refusal,
    difference,
    not_enough_memory,
)
from ggferry.converters.proof.references.child_process import ask, available_memory, prompts_of
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.files.sources import Window

NAME = "ctransformers"
SIDE = "source"
FLOATS, QUANTIZED, MOST = 5e-3, 0.1, 0.3
"""Relative RMS allowed in a model of three blocks, by whether matrices are floats or blocks, and the most in any.
Caches are float16, and what blocks are multiplied by is rounded to 8 bits."""
KINDS = {
    "llama": "llama",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "mpt": "mpt",
    "replit": "replit",
    "starcoder": "gpt_bigcode",
    "falcon": "falcon",
}
"""Header layouts and architectures, by the names that ctransformers gives them."""
_TYPES = {"F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}
"""Blocks of quantization version 2. ctransformers takes older ones for these and computes nonsense, or crashes."""
_CONTAINERS = {"llama": ("ggjt", "ggmf"), "falcon": ("ggcc",)}
"""By kind; the others are of ggml's examples."""


def unsupported(case: Case) -> Refusal | None:
    """Return why it cannot be compared; None when it can."""
    checkpoint, kind = case.source.checkpoint, _kind(case.source.checkpoint, case.source.architecture.name)
    if kind is None or checkpoint.container not in _CONTAINERS.get(kind, ("ggml",)):
        return Refusal("it does not read such a file", quiet=True)
    if len(checkpoint.files) > 1 or isinstance(checkpoint.files[0], Window) or not os.path.isfile(checkpoint.path):
        return Refusal("it reads local models of one file", quiet=True)
    if find_spec("ctransformers") is None:
        return Refusal("it is not installed (pip install 'ggferry[witness]')", quiet=True)
    odd = sorted({ref.type.name for ref in checkpoint.tensors.values()} - _TYPES)
    if odd:
        return Refusal(f"it takes blocks of {odd[0]} for others, or does not know them")
    if case.has_overrides:
        return Refusal("--hparam sets what it takes from the file, or assumes")
    return not_enough_memory(GIB // 2 + 2 * checkpoint.nbytes, available_memory())


def run(case: Case) -> tuple[CrossCheck, Difference | None]:
    """Return its comparison of the source's logits, and how far they are from ours."""
    graph, checkpoint = case.source, case.source.checkpoint
    count = min(16, original_context(graph.sizes) or 16)
    texts = [Prompt("start", spread(graph.sizes["n_vocab"], count))]
    job = {
        "model": os.path.abspath(checkpoint.path),
        "kind": _kind(checkpoint, graph.architecture.name),
        "threads": case.threads,
        "prompts": prompts_of(texts),
    }
    answer = ask("ctransformers_logits", job, case.folder, checkpoint.nbytes)
    check = CrossCheck(NAME, answer.version, "logits", SIDE, why=answer.why)
    if answer.why is not None:
        return check, None
    ours = run_prompts([Passes(Weights(graph, case.threads))], texts)[0]
    blocks = any(ref.type.quantized for ref in checkpoint.tensors.values())
    found = difference(texts, ours, answer.rows, [min(MOST, (QUANTIZED if blocks else FLOATS) * growth(graph))])
    return replace(check, count=found.count), found


def _kind(checkpoint: Checkpoint, architecture: str) -> str | None:
    """Return what ctransformers calls such a file; None for none of its nine families.

    Headers of GPT-NeoX that do not say whether branches are parallel are refused: ctransformers reads them as if they
    did, and asks for all the memory there is.
    """
    if architecture == "gptneox" and "par_res" not in checkpoint.header:
        return None
    return KINDS.get(checkpoint.layout or "", KINDS.get(architecture))


WITNESS = ReferenceImplementation(NAME, SIDE, unsupported, run)
