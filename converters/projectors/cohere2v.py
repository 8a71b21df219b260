"""Cohere 2 Vision's tower: SigLIP, squares of whose patches go through a network gated by half of its first matrix.

Source: transformers `Cohere2VisionMultiModalProjector`; llama.cpp `conversion/command_r.py`,
`tools/mtmd/models/siglip.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, *clip.VISION, vit.usual(clip.V_EPS, 1e-6),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam("v_merge", "vision.projector.scale_factor", fields={"hf": "downsample_factor"}, check="0 < v_merge"),
    HParam("v_max_tiles", "vision.preproc_max_tiles", fields={"hf": "preprocessor.max_patches"}),
    HParam("n_inner", None, fields={"hf": "alignment_intermediate_size"}, required=False),
    HParam("v_gated_by_half", None, clip.BOOL, defaults=(Default(True, "as in every Cohere 2 Vision"),)),
)

ROLES = roles(
    siglip.TOWER,
    vit.linear("mm.1", "multi_modal_projector.linear_1", "n_inner", "v_n_embd*v_merge*v_merge"),
    vit.linear("mm.2", "multi_modal_projector.linear_2", "v_projection", "n_inner/2"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="cohere2v",
    display_name="Cohere 2 Vision, vision encoder",
    hf_classes=("Cohere2VisionForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("cohere2v"),
            drops=(*clip.TEXT, Drop("vision_tower.head.*", "it pools a picture into one vector, which nothing reads")),
            renames=siglip.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.vision_use_head", "of the part that pools, which is dropped"),
                IgnoredKey("preprocessor.min_patches preprocessor.crop_to_patches", "how pictures are cut into tiles"),
            ),
        ),
    ),
    caveats=(vit.NONE_MERGED,),
    recipe={
        "computation": "projector", "vision": "siglip_mlp", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
    },
)
