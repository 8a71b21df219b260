"""Gemma 3's tower: SigLIP, whose states are averaged over squares, normalized and projected.

Source: transformers `Gemma3MultiModalProjector`; llama.cpp `conversion/gemma.py`, `tools/mtmd/models/siglip.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import roles

_HEAD = Drop("vision_tower.head.*", "it pools a picture into one vector, which no text model reads")
_DEFAULT = "transformers' default"
HPARAMS = (
    clip.PROJECTOR, *clip.VISION,
    replace(clip.V_EPS, defaults=(Default(1e-6, _DEFAULT, dialect="hf"),)),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam("mm_tokens", None, fields={"hf": "mm_tokens_per_image|preprocessor.image_seq_length"}, required=False,
           defaults=(Default(256, _DEFAULT, dialect="hf"),)),
    HParam("v_merge", "vision.projector.scale_factor", derive=siglip.patches_a_square, absent=4, check="0 < v_merge"),
)

ROLES = roles(
    """
    mm.input_projection.weight plain : v_n_embd v_projection | hf multi_modal_projector.mm_input_projection_weight
    mm.soft_emb_norm.weight f32 : v_n_embd | hf multi_modal_projector.mm_soft_emb_norm.weight @plus_one
    """,
    siglip.TOWER,
    plus_one=ADD_ONE,
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="gemma3",
    display_name="Gemma 3, vision encoder",
    hf_classes=("Gemma3ForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"norm_offset": 1.0, "offset_norms": ("soft_emb_norm",)},
            fixed=clip.vision_fixed("gemma3"),
            drops=(*clip.TEXT, _HEAD),
            renames=siglip.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *clip.IGNORED_KEYS,
                IgnoredKey("vision_config.vision_use_head", "of the part that pools, which is dropped"),
                IgnoredKey("vision_config.num_channels", "red, green and blue", (3,)),
                IgnoredKey("preprocessor.size preprocessor.size.*", "the picture's size, which the tower states, too"),
                IgnoredKey("preprocessor.min_pixels preprocessor.max_pixels", "of processors for pictures of any size"),
                IgnoredKey("preprocessor.pan_and_scan_*", "cuts of a picture beside the whole: llama.cpp makes none"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "gemma3", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
        "transposed": ("input_projection",),
    },
)
