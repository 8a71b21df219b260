"""LLaVA 1.5's and 1.6's tower: CLIP's blocks up to the one before the last, without the class token, and a network.

Source: transformers `CLIPVisionModel`, `LlavaMultiModalProjector`; llama.cpp `tools/mtmd/models/llava.cpp` and
`legacy-models/convert_image_encoder_to_gguf.py`, whose files have these names.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

_TYPES = ("clip_vision_model",)
_BIASED, _UNBIASED = vit.unbiased("multimodal_projector_bias")


HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    clip.V_IMAGE_SIZE,
    clip.V_PATCH_SIZE,
    clip.V_N_EMBD,
    clip.V_N_FF,
    *llava.feature_layer("vision_feature_layer|mm_vision_select_layer", llava.deepest),
    llava.SELECTED,
    clip.V_N_HEAD,
    *clip.COLORS,
    clip.V_EPS,
    *vit.activation(),
    HParam("v_feature_layer", "vision.feature_layer", ValueType.INT32, derive=llava.numbered, length="n_read"),
    HParam("n_read", None, derive=llava.read),
    clip.projector_act("gelu"),
    _BIASED,
    *llava.TILES,
)

ROLES = roles(
    vit.patches("vision_tower.embeddings.patch_embedding", bias=False),
    """
    v.class_embd f32             : v_n_embd     | hf vision_tower.embeddings.class_embedding
    v.image_newline f32 optional : v_projection | hf image_newline
    """,
    vit.table("vision_tower.embeddings.position_embedding", more="+1"),
    vit.norm("v.pre_ln", "vision_tower.pre_layrnorm"),
    vit.blocks(
        "vision_tower.encoder.layers.{n}.",
        vit.norm("ln1", "layer_norm1"),
        vit.attention(),
        vit.norm("ln2", "layer_norm2"),
        vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.linear("mm.0", "multi_modal_projector.linear_1", "v_projection", "n_read*v_n_embd", bias="optional"),
    vit.linear("mm.2", "multi_modal_projector.linear_2", "v_projection", "v_projection", bias="optional"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="mlp",
    display_name="LLaVA 1.5 and 1.6, vision encoder",
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            classes=("LlavaForConditionalGeneration", llava.NEXT),
            config_section="vision_config",
            types=_TYPES,
            fixed=clip.vision_fixed("mlp"),
            drops=(
                *clip.TEXT,
                llava.appended("vision_tower.encoder.layers.{n}."),
                Drop("vision_tower.post_layernorm.*", "a norm behind the last block, whose states are not read"),
                Drop("vision_tower.embeddings.position_ids", "the numbers of positions, in order", follows=True),
            ),
            renames=(*siglip.NAMES, ("model.image_newline", "image_newline")),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("preprocessor.image_grid_pinpoints", "repeats config.json"),
                IgnoredKey("use_image_newline_parameter", "the tensors say it"),
                IgnoredKey(
                    "vision_config.projection_dim vision_config.vocab_size", "of the whole of CLIP, which also reads"
                ),
            ),
        ),
    ),
    caveats=(
        vit.SHIFTED,
        llava.LATE,
        _UNBIASED,
        llava.UNENDED,
    ),
    recipe={"computation": "projector", "vision": "clip_mlp", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
