"""Jais' scales: of embeddings and logits in the publisher's model, of the two matrices in GGUF's.

Sources: llama.cpp `conversion/jais.py`, `src/models/jais.cpp`, which divides scores by the width of a head whatever the
configuration says; the publisher's `modeling_jais.py`.
"""

from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.values import Scaled

F32, BOOL = gpt.F32, gpt.BOOL


def logit_scale(values: Values) -> float:
    """What logits are multiplied by: one number, or the product of two."""
    if "width_scale" in values:
        return float(values["width_scale"])
    return float(values["output_alpha"] * values["output_width_scale"])


def score_scale(values: Values) -> float:
    """What scores are multiplied by: 1 / (width of a head), or 1 / its root."""
    return float(values["head_dim"] ** (-1.0 if values["by_width"] else -0.5))


def by_width(values: Values) -> float:
    """What readers multiply scores by."""
    return float(1 / values["head_dim"])


def _declared(name: str, place: str) -> HParam:
    return HParam(name, None, F32, {"hf": place}, required=False)


SCALES = (
    _declared("embedding_scale", "mup_embeddings_scale|embeddings_scale"),
    _declared("output_alpha", "mup_output_alpha"),
    _declared("output_width_scale", "mup_width_scale"), _declared("width_scale", "width_scale"),
    HParam("logit_scale", None, F32, derive=logit_scale, required=False),
    HParam("by_width", None, BOOL, {"hf": "mup_scale_qk_dot_by_d|scale_qk_dot_by_d"}, required=False,
           defaults=(Default(False, "the publisher's default", dialect="hf"),)),
    HParam("attn_scale", "attention.scale", F32, derive=score_scale, implied=by_width),
)
EMBEDDING, HEAD = Scaled((("embedding_scale",),)), Scaled((("logit_scale",),))
