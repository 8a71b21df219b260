"""LFM2-VL's tower: SigLIP 2, whose positions are stretched over the picture; squares of patches, normed or not, go
through a network of two matrices.

Source: transformers `Siglip2VisionModel`, `Lfm2VlMultiModalProjector`; llama.cpp `conversion/lfm2.py`,
`tools/mtmd/models/siglip.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.towers import pixels_to_planes
from ggferry.converters.schema.roles import roles

_BIASED, _UNBIASED = vit.unbiased("projector_bias")
HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    replace(clip.V_IMAGE_SIZE, fields={}, defaults=(
        Default(256, "pictures are of any size; llama.cpp's own converter writes this", dialect="hf"),
    )),
    clip.V_PATCH_SIZE, clip.V_N_EMBD, clip.V_N_FF, clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    vit.usual(clip.V_EPS, 1e-6), *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam("v_merge", "vision.projector.scale_factor", fields={"hf": "downsample_factor"}, defaults=(vit.UNMERGED,),
           check="0 < v_merge"),
    HParam("v_resize", "vision.image_resize_algo", clip.STRING, {"hf": "preprocessor.resample"}, required=False,
           words={1: "lanczos", 2: "bilinear", 3: "bicubic"}),
    HParam("feature_layer", None, clip.F32, {"hf": "vision_feature_layer"}, words={-1: -1.0}, required=False),
    clip.projector_act("gelu"),
    HParam("n_positions", None, required=False),
    HParam("n_inner", None, required=False), _BIASED,
)

_SQUARE = "v_n_embd*v_merge*v_merge"
ROLES = roles(
    roles(
        "v.patch_embd.weight plain : v_n_embd 3 v_patch_size v_patch_size | hf patch_embedding.weight @planes",
        "v.patch_embd.bias : v_n_embd | hf patch_embedding.bias",
        "v.position_embd.weight f32 : n_positions v_n_embd | hf position_embedding.weight",
        under={"hf": "vision_tower.embeddings."},
        planes=pixels_to_planes("v_n_embd", "v_patch_size"),
    ),
    siglip.BLOCKS,
    siglip.LAST_NORM,
    f"mm.input_norm.weight f32 optional : {_SQUARE} | hf multi_modal_projector.layer_norm.weight",
    f"mm.input_norm.bias optional : {_SQUARE} | hf multi_modal_projector.layer_norm.bias",
    vit.linear("mm.1", "multi_modal_projector.linear_1", "n_inner", _SQUARE, bias="optional"),
    vit.linear("mm.2", "multi_modal_projector.linear_2", "v_projection", "n_inner", bias="optional"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="lfm2",
    display_name="LFM2-VL, vision encoder",
    hf_classes=("Lfm2VlForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"patches": "pixels"},
            fixed=clip.vision_fixed("lfm2"),
            drops=(*clip.TEXT, Drop("vision_tower.head.*", "it pools a picture into one vector, which nothing reads")),
            renames=siglip.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.vision_use_head", "of the part that pools, which is dropped"),
                IgnoredKey("vision_config.num_patches", "the rows of the table of positions", follows="n_positions"),
                IgnoredKey("preprocessor.max_image_tokens preprocessor.min_image_tokens preprocessor.max_num_patches "
                         "preprocessor.tile_size preprocessor.max_tiles preprocessor.min_tiles "
                         "preprocessor.use_thumbnail "
                         "preprocessor.encoder_patch_size preprocessor.downsample_factor "
                         "preprocessor.max_pixels_tolerance preprocessor.use_image_special_tokens",
                         "how pictures are cut into tiles: the runtime does it"),
            ),
        ),
    ),
    caveats=(vit.NONE_MERGED, _UNBIASED),
    recipe={
        "computation": "projector", "vision": "siglip_mlp", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
    },
)
