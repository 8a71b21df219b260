"""Idefics 3's tower, and SmolVLM's: SigLIP, squares of whose patches one matrix projects.

Source: transformers `Idefics3Connector`; llama.cpp `conversion/smolvlm.py`, `tools/mtmd/models/siglip.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    clip.V_PROJECTION,
    vit.usual(clip.V_IMAGE_SIZE, 224),
    vit.usual(clip.V_PATCH_SIZE, 32),
    vit.usual(clip.V_N_EMBD, 1152),
    vit.usual(clip.V_N_FF, 3072),
    vit.usual(clip.V_N_LAYER, 12),
    vit.usual(clip.V_N_HEAD, 16),
    *clip.COLORS,
    vit.usual(clip.V_EPS, 1e-6),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    HParam(
        "v_merge",
        "vision.projector.scale_factor",
        fields={"hf": "scale_factor"},
        defaults=(vit.UNMERGED,),
        check="0 < v_merge",
    ),
    HParam(
        "v_longest", "vision.preproc_image_size", fields={"hf": "preprocessor.size.longest_edge"}, derive="v_image_size"
    ),
)
_NO_TOKEN = (Default(-1.0, "the tokenizer has no such token", dialect="hf"),)
_TOKENS = tuple(
    HParam(name, None, clip.F32, {"hf": f"added_tokens.{text}"}, required=False, defaults=_NO_TOKEN)
    for name, text in (("around_image", "<fake_token_around_image>"), ("global_image", "<global-img>"))
)
_UNMARKED = Caveat(
    "around_image < 0 or global_image < 0",
    "llama.cpp puts the tokens <fake_token_around_image> and <global-img> around a picture, and the tokenizer lacks "
    'one of them: its server answers "Invalid token"',
    unsupported_by="llama.cpp",
)
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="idefics3",
    display_name="Idefics 3 and SmolVLM, vision encoder",
    hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    hparams=(*HPARAMS, *_TOKENS),
    roles=roles(
        "mm.model.fc.weight : v_projection v_n_embd*v_merge*v_merge | hf connector.modality_projection.proj.weight",
        siglip.TOWER,
    ),
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("idefics3"),
            drops=clip.TEXT,
            caveats=(_UNMARKED,),
            renames=siglip.NAMES,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey(
                    "vision_config.max_image_size vision_config.max_image_size.* vision_config.size "
                    "vision_config.size.* vision_config.use_base_siglip vision_config.tie_word_embeddings",
                    "which nothing reads",
                ),
                IgnoredKey(
                    "preprocessor.max_image_size preprocessor.max_image_size.* preprocessor.video_sampling "
                    "preprocessor.video_sampling.*",
                    "how pictures are cut into tiles: the runtime does it",
                ),
            ),
        ),
    ),
    caveats=(vit.NONE_MERGED,),
    recipe={
        "computation": "projector",
        "vision": "idefics3",
        "norm": "layer",
        "ffn": "plain",
        "activation": "gelu_tanh",
    },
)
