"""Idefics 3's tower, and SmolVLM's: SigLIP, squares of whose patches one matrix projects.

Source: transformers `Idefics3Connector`; llama.cpp `conversion/smolvlm.py`, `tools/mtmd/models/siglip.cpp`.
"""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect, Harmless, HParam
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
    clip.V_MEAN,
    clip.V_STD,
    vit.usual(clip.V_EPS, 1e-6),
    *vit.activation(usual="gelu_tanh", gelu_pytorch_tanh="gelu_tanh"),
    HParam("v_merge", "vision.projector.scale_factor", fields={"hf": "scale_factor"}, absent=1, check="0 < v_merge"),
    HParam(
        "v_longest", "vision.preproc_image_size", fields={"hf": "preprocessor.size.longest_edge"}, derive="v_image_size"
    ),
)
SPEC = Architecture(
    name="clip",
    projector="idefics3",
    display_name="Idefics 3 and SmolVLM, the half that sees",
    hf_classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    hparams=HPARAMS,
    roles=roles(
        "mm.model.fc.weight : v_projection v_n_embd*v_merge*v_merge | hf connector.modality_projection.proj.weight",
        siglip.TOWER,
    ),
    blocks=clip.SEEN,
    dialects={
        "hf": Dialect(
            "hf",
            given=clip.sees("idefics3"),
            drops=clip.TEXT,
            renames=siglip.NAMES,
            nested=("vision_config",),
            harmless=(
                *vit.HARMLESS,
                Harmless(
                    "vision_config.max_image_size vision_config.max_image_size.* vision_config.size "
                    "vision_config.size.* vision_config.use_base_siglip vision_config.tie_word_embeddings",
                    "which nothing reads",
                ),
                Harmless(
                    "preprocessor.max_image_size preprocessor.max_image_size.* preprocessor.video_sampling "
                    "preprocessor.video_sampling.*",
                    "how pictures are cut into tiles: the runtime does it",
                ),
            ),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={
        "computation": "projector",
        "vision": "idefics3",
        "norm": "layer",
        "ffn": "plain",
        "activation": "gelu_tanh",
    },
)
