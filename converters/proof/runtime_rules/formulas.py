"""Where llama.cpp's graph computes something else from a file's values than the model does."""

from __future__ import annotations

import math

from ggferry.converters.proof.runtime_rules.assertions import CACHES_READ, SHARED_CACHES, own_caches
from ggferry.converters.proof.runtime_rules.rule import File, Rule

SAME = 1e-5
"""Relative difference of two factors below which they are the same, but for float32."""
MULTIPLIER = "rope.scaling.yarn_log_multiplier"
READ_SCALED, READ_PLAIN = ("deepseek2", "deepseek32", "mistral4"), ("mistral3",)
"""Architectures that read yarn's multiplier; the first ones divide it by 0.1."""
SCALED_SCORES = (*READ_SCALED, "glm-dsa")
"""Architectures whose scores of attention have a factor of their own, made of yarn's."""


def _other_caches(file: File) -> str:
    """It takes over from the last block but one where there is a window, whichever of that kind was the last."""
    own, windows = own_caches(file)
    for block in range(max(own, 2), len(windows)):
        source = own - (2 if windows[block] else 1)
        last = max((n for n in range(own) if windows[n] == windows[block]), default=source)
        if windows[source] == windows[block] and source != last:
            return f"block {block} takes over keys and values of block {source}, in the model of block {last}"
    return ""


def _stretched(file: File) -> str:
    """yarn's factors of rotated columns and of scores, or that of scores alone, which linear scaling has there too."""
    kind, factor = (
        file.text("rope.scaling.type"),
        file.number("rope.scaling.factor") or file.number("rope.scale_linear"),
    )
    factor = 1.0 if kind == "none" or factor <= 0 else factor
    declared, multiplier = file.number("rope.scaling.attn_factor", 1.0), file.number(MULTIPLIER)
    ours = _model_factors(file.architecture, kind, factor, declared, multiplier)
    theirs = _graph_factors(file.architecture, kind, factor, declared, multiplier)
    wrong = [
        f"{what} by {_short(b)} instead of {_short(a)}"
        for what, a, b in zip(("rotated columns", "scores"), ours, theirs, strict=True)
        if abs(b - a) > SAME * abs(a)
    ]
    how = f"{kind or 'linear'} scaling of positions by {_short(factor)}"
    return f"with {how} it multiplies {' and '.join(wrong)}" if wrong else ""


def _model_factors(
    architecture: str, kind: str, factor: float, declared: float, multiplier: float
) -> tuple[float, float]:
    """Return the factors of rotated columns, in queries and keys each, and of scores, that the file's keys mean."""
    implied = _mscale(factor, 1.0) if kind == "yarn" and not multiplier else 1.0
    scored = multiplier and architecture in SCALED_SCORES
    return declared * implied, _mscale(factor, 10 * multiplier) ** 2 if scored else 1.0


def _graph_factors(
    architecture: str, kind: str, factor: float, declared: float, multiplier: float
) -> tuple[float, float]:
    """Return the same as llama.cpp computes them: llama-context.cpp, `ggml_rope_ext`, the graphs of `SCALED_SCORES`."""
    read = 10 * multiplier if architecture in READ_SCALED else multiplier if architecture in READ_PLAIN else 0.0
    log = math.log(factor)
    whole = declared
    if kind == "yarn":
        own = read if architecture == "deepseek2" else 1.0
        whole = declared * (_mscale(factor, own) / _mscale(factor, read) if read else _mscale(factor, 1.0))
    if architecture not in SCALED_SCORES:
        return whole, 1.0
    again = whole if kind == "yarn" else whole * (1 + 0.1 * log)  # it cancels what only yarn has divided by
    return whole, (again * (1 + 0.1 * read * log)) ** 2


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _short(number: float) -> str:
    return f"{number:.4g}"


RULES = (
    Rule("otherwise", SHARED_CACHES, _other_caches, CACHES_READ),
    Rule(
        "otherwise",
        " ".join(SCALED_SCORES + READ_PLAIN),
        _stretched,
        (
            "llama-context.cpp llama_context::llama_context",
            "models/deepseek2.cpp llama_model_deepseek2::load_arch_hparams",
            "models/deepseek2.cpp llama_model_deepseek2::graph::graph",
            "models/deepseek32.cpp llama_model_deepseek32::load_arch_hparams",
            "models/deepseek32.cpp llama_model_deepseek32::graph::graph",
            "models/glm-dsa.cpp llama_model_glm_dsa::load_arch_hparams",
            "models/glm-dsa.cpp llama_model_glm_dsa::graph::graph",
            "models/mistral3.cpp llama_model_mistral3::load_arch_hparams",
        ),
    ),
)
