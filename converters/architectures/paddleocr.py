"""PaddleOCR-VL, the text half: ERNIE 4.5 turned in halves, with positions along three axes, which for text are one.

Sources: llama.cpp `src/models/paddleocr.cpp`, `conversion/ernie.py`; transformers `modeling_paddleocr_vl.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _ernie as ernie
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

_VISION_ENCODERS = Default((16, 24, 24), "transformers' default", dialect="hf")
HPARAMS = (
    *common.SIZES, common.RMS_EPS, rope.BASE, rope.N_ROT, rope.AXES_KIND, *rope.SCALING,
    replace(rope.SECTIONS_DECLARED, defaults=(_VISION_ENCODERS,)), rope.SECTIONS, common.ALWAYS_TIED, ernie.BIASED,
    common.SILU,
)

SPEC = Architecture(
    name="paddleocr", runtimes=("llama.cpp",),
    display_name="PaddleOCR-VL",
    hf_classes=("PaddleOCRVLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=roles(tensors.embedding(), block(ernie.attention(), ernie.gated())),
    dialects=(
        Dialect(
            "hf",
            drops=(*common.DROPS, *half.drop_vision("visual.*", "model.visual.*", "mlp_AR.*", "model.projector.*")),
            caveats=(*rope.CAVEATS, ernie.unloadable("paddleocr")),
            config_section=half.WITHIN,
            renames=half.RENAMES,
            ignored_keys=(
                *ernie.IGNORED_KEYS,
                half.VISION_KEYS,
                IgnoredKey("rope_is_neox_style", "always", (True,)),
                IgnoredKey("use_3d_rope", "for text all axes are one"),
                IgnoredKey("tie_word_embeddings", "what the whole model says wins", (False, True)),
            ),
        ),
    ),
    recipe={"rope": "halves"},
)
