"""PaddleOCR-VL's tower: SigLIP rotated along two axes, its positions stretched over the picture; a norm, squares of
patches and a network behind it.

Source: transformers `PaddleOCRVisionModel`, `PaddleOCRProjector`; llama.cpp `conversion/ernie.py`,
`tools/mtmd/models/paddleocr.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _qwen_vl as qwen
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={}, derive=vit.side_of_most_pixels),
    clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF, clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, fields={"hf": "vision_config.layer_norm_eps"}),
    vit.ROPE, qwen.MERGE, *vit.activation(gelu_pytorch_tanh="gelu_tanh"), *vit.pixels(),
    HParam("n_positions", None, required=False),
)

ROLES = roles(
    vit.patches("visual.vision_model.embeddings.patch_embedding"),
    "v.position_embd.weight f32 : n_positions v_n_embd | hf visual.vision_model.embeddings.position_embedding.weight",
    vit.blocks(
        "visual.vision_model.encoder.layers.{n}.",
        vit.norm("ln1", "layer_norm1"), vit.attention(), vit.norm("ln2", "layer_norm2"),
        vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.norm("v.post_ln", "visual.vision_model.post_layernorm"),
    vit.norm("mm.input_norm", "mlp_AR.pre_norm"),
    vit.linear("mm.1", "mlp_AR.linear_1", "4*v_n_embd", "4*v_n_embd"),
    vit.linear("mm.2", "mlp_AR.linear_2", "v_projection", "4*v_n_embd"),
)

_SMOOTHED = Caveat(
    "",
    "of a picture with fewer patches in a row or a column than the table of positions has (384 pixels in published "
    "models), llama.cpp (b11549) smooths the table while it shrinks it, which the model does not: its rows are some "
    "per cent off",
    differs_in="llama.cpp",
)
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="paddleocr",
    display_name="PaddleOCR-VL, vision encoder",
    hf_classes=("PaddleOCRVLForConditionalGeneration", "PaddleOCRVisionModel"),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("paddleocr"),
            drops=(
                *clip.TEXT,
                Drop("visual.vision_model.head.*", "it pools a picture into one vector, which nothing here reads"),
                Drop("visual.vision_model.embeddings.packing_position_embedding.*", "which nothing here reads"),
            ),
            renames=(
                ("model.visual.vision_model.", "visual.vision_model."), ("model.visual.", "visual."),
                ("model.projector.", "mlp_AR."),
            ),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS, vit.AXIAL,
                IgnoredKey("vision_config.image_size", "of the table of positions, whose rows say it"),
                IgnoredKey("vision_config.tokens_per_second vision_config.temporal_patch_size", "of films"),
            ),
        ),
    ),
    caveats=(_SMOOTHED,),
    recipe={
        "computation": "projector", "vision": "paddleocr", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
        "rope": "halves",
    },
)
