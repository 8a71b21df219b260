"""MiniCPM3's three scales, which llama.cpp has as constants.

Sources: llama.cpp `src/models/minicpm3.cpp`; transformers `modeling_minicpm3.py`. The keys are those of Granite and
MiniCPM, whose graphs read them.
"""

from ggferry.converters.schema.architecture import Caveat, Default, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

F32 = ValueType.FLOAT32


def residual_scale(values: Values) -> float:
    """residual_scale: over the root of the number of blocks."""
    return float(values["depth_scale"] / values["n_layer"] ** 0.5)


def logit_scale(values: Values) -> float:
    """logit_scale, which divides: how much wider the model is than the one its scales were found for."""
    return float(values["n_embd"] / (values["base_width"] or values["n_embd"]))


def fixed_embedding(values: Values) -> float:
    """What readers multiply embeddings by."""
    return 12.0


def fixed_residual(values: Values) -> float:
    """What readers multiply residuals by."""
    return float(1.4 / values["n_layer"] ** 0.5)


def fixed_logits(values: Values) -> float:
    """What readers divide the last states by."""
    return float(values["n_embd"] / 256)


def _default(value: float) -> tuple[Default, ...]:
    return (Default(value, "transformers' default", dialect="hf"),)


SCALES = (
    HParam("depth_scale", None, F32, {"hf": "scale_depth"}, required=False, unrepresentable=0, defaults=_default(1.4)),
    # Null is the model's own width (`MiniCPM3Config.__post_init__`): nothing is divided.
    HParam("base_width", None, fields={"hf": "dim_model_base"}, required=False, null=0, unrepresentable=0,
           defaults=_default(256)),
    HParam("embedding_scale", "embedding_scale", F32, {"hf": "scale_emb"}, implied=fixed_embedding,
           unrepresentable=0),
    HParam("residual_scale", "residual_scale", F32, derive=residual_scale, implied=fixed_residual),
    HParam("logit_scale", "logit_scale", F32, derive=logit_scale, implied=fixed_logits),
)
FIXED = Caveat(
    "embedding_scale != 12 or depth_scale < 1.3999 or depth_scale > 1.4001 or base_width != 256",
    "scale_emb={embedding_scale}, scale_depth={depth_scale}, dim_model_base={base_width}: written, but llama.cpp "
    "computes with 12, 1.4 and 256",
    unsupported_by="llama.cpp",
)
