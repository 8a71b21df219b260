"""Janus-Pro's tower: SigLIP, every patch of which goes through a network of two matrices.

Source: transformers `JanusVisionModel`, `JanusVisionAlignerMLP`; llama.cpp `conversion/januspro.py`,
`tools/mtmd/models/siglip.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION, clip.V_IMAGE_SIZE, clip.V_PATCH_SIZE, clip.V_N_EMBD,
    replace(clip.V_N_FF, fields={}), clip.V_N_LAYER, clip.V_N_HEAD, *clip.COLORS,
    replace(clip.V_EPS, defaults=(Default(1e-6, "transformers' default", dialect="hf"),)),
    *vit.activation(),
    HParam("v_own_activation", None, clip.BOOL, defaults=(Default(True, "as in every Janus"),)),
    HParam("depth", None, fields={"hf": "vision_config.depth"}, words={2: 2}, required=False),
)

ROLES = roles(
    vit.patches("vision_tower.embeddings.patch_embedding"),
    vit.table("vision_tower.embeddings.position_embedding"),
    vit.blocks(
        "vision_tower.encoder.layers.{n}.",
        vit.norm("ln1", "layer_norm1"), vit.attention(out="projection_layer", bias="optional"),
        vit.norm("ln2", "layer_norm2"), vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    siglip.LAST_NORM,
    vit.linear("mm.0", "aligner.fc1", "v_projection", vit.WIDTH),
    vit.linear("mm.1", "aligner.hidden_layers.0", "v_projection", "v_projection"),
)

_DECODER = "of the part that draws pictures, which this file does not hold"
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="janus_pro",
    display_name="Janus-Pro, vision encoder",
    hf_classes=("JanusForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("janus_pro"),
            drops=(
                *clip.TEXT,
                *(Drop(f"*{name}.*", _DECODER) for name in (
                    "vqmodel", "generation_embeddings", "generation_aligner", "generation_head",
                )),
            ),
            renames=(("model.aligner.", "aligner."), *siglip.NAMES),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.intermediate_size vision_config.mlp_ratio vision_config.attention_bias "
                         "vision_config.projection_dim vision_config.num_image_tokens", "the tensors say it"),
                IgnoredKey("vision_config.hidden_dropout_rate", "used in training only"),
                IgnoredKey("vision_config.use_qk_norm", "queries and keys have no norms", (False,)),
                IgnoredKey("preprocessor.background_color preprocessor.min_size", "how pictures are padded"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "siglip_mlp", "norm": "layer", "ffn": "plain", "activation": "gelu",
    },
)
