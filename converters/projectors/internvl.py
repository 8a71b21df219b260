"""InternVL's tower (InternViT): a class token, learned positions, scaled branches, squares of patches merged.

Source: OpenGVLab's `modeling_intern_vit.py`, transformers `InternVLVisionModel`; llama.cpp `conversion/internvl.py`,
`tools/mtmd/models/internvl.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _internvl as internvl
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, IgnoredKey

_IGNORED_KEYS = (
    *vit.IGNORED_KEYS,
    IgnoredKey(
        "vision_config.layer_scale_init_value vision_config.shared_expert_intermediate_size", "used in training only"
    ),
    IgnoredKey(
        "vision_config.qkv_bias vision_config.attention_bias",
        "the tensors say it",
    ),
    IgnoredKey("vision_config.use_absolute_position_embeddings", "there is a table of positions", (True,)),
    IgnoredKey(
        "vision_config.use_mask_token vision_config.use_flash_attn "
        "vision_config.num_query_*",
        "which nothing reads",
    ),
    IgnoredKey("preprocessor.crop_to_patches preprocessor.min_patches preprocessor.max_patches",
        "how pictures are cut"),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="internvl",
    display_name="InternVL, vision encoder",
    hf_classes=("InternVLChatModel", "InternVisionModel"),
    hparams=internvl.HPARAMS,
    roles=internvl.ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "fused"},
            fixed={**clip.vision_fixed("internvl"), "mean_pooled": True},  # its last states are not normed
            drops=(*clip.TEXT, llava.appended("vision_model.encoder.layers.{n}.")),
            nested=("vision_config",),
            ignored_keys=_IGNORED_KEYS,
        ),
        Dialect(
            "tf",
            fields="hf",
            classes=("InternVLForConditionalGeneration", "QianfanOCRForConditionalGeneration"),
            fixed=clip.vision_fixed("internvl"),
            drops=(
                *clip.TEXT,
                llava.appended("vision_tower.encoder.layer.{n}."),
                Drop("vision_tower.layernorm.*", "norms states that are not read",
                     when="mean_pooled == 1 or feature_layers + 1 != 0"),
                Drop("vision_tower.embeddings.mask_token", "stands for patches that are hidden in training"),
            ),
            renames=(
                ("model.vision_tower.", "vision_tower."),
                ("model.multi_modal_projector.", "multi_modal_projector."),
            ),
            nested=("vision_config",),
            ignored_keys=_IGNORED_KEYS,
        ),
    ),
    caveats=(vit.SHIFTED, internvl.QK_NORMED),
    recipe={
        "computation": "projector",
        "vision": "internvl",
        "norm": "layer",
        "qk_norm": "full",
        "ffn": "plain",
        "activation": "gelu",
    },
)
