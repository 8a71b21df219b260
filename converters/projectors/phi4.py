"""Phi-4-reasoning-vision's tower: SigLIP 2 up to its last block but one, every patch of which goes through a network.

Source: vLLM (vllm-project/vllm, `vllm/model_executor/models/phi4siglip.py`), whose tower is transformers'
`Siglip2VisionModel`; llama.cpp `conversion/phi.py`, `tools/mtmd/models/siglip.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _llava as llava
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.towers import pixels_to_planes
from ggferry.converters.schema.roles import roles

_PATCHES = "of SigLIP 2's processor, as vLLM takes it"

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION,
    HParam("n_positions", None, fields={"hf": "vision_config.num_patches"}, required=False,
           defaults=(Default(256, "transformers' default", dialect="hf"),)),
    replace(clip.V_IMAGE_SIZE, fields={}, derive=siglip.image_size),
    replace(clip.V_PATCH_SIZE, fields={"hf": "vision_config.patch_size|preprocessor.patch_size"},
            defaults=(Default(16, "transformers' default", dialect="hf"),)),
    vit.usual(clip.V_N_EMBD, 768), vit.usual(clip.V_N_FF, 3072),
    *(
        replace(param, defaults=(Default(12, "transformers' default", dialect="hf"),)) if param.name == "n_blocks"
        else param
        for param in llava.feature_layer("mm_vision_select_layer", usual=(
            Default(-2.0, "the last block's but one, as vLLM and llama.cpp read it", dialect="hf"),
        ))
    ),
    vit.usual(clip.V_N_HEAD, 12), *clip.COLORS, vit.usual(clip.V_EPS, 1e-6),
    *vit.activation(usual="gelu_tanh", **vit.TANH),
    *(
        HParam(f"{which}_patches", None, fields={"hf": f"preprocessor.{which}_num_patches|{which}_num_patches"},
               required=False, defaults=(Default(count, _PATCHES, dialect="hf"),), check=f"0 < {which}_patches")
        for which, count in (("min", 256), ("max", 3600))
    ),
    HParam("v_min_pixels", "vision.image_min_pixels", derive="min_patches*v_patch_size*v_patch_size"),
    HParam("v_max_pixels", "vision.image_max_pixels", derive="max_patches*v_patch_size*v_patch_size"),
    HParam("mm_type", None, clip.STRING, {"hf": "mm_projector_type"}, words={"mlp2x_gelu": "mlp2x_gelu"},
           required=False),
)

ROLES = roles(
    roles(
        "v.patch_embd.weight plain : v_n_embd 3 v_patch_size v_patch_size | hf patch_embedding.weight @planes",
        "v.patch_embd.bias : v_n_embd | hf patch_embedding.bias",
        "v.position_embd.weight f32 : n_positions v_n_embd | hf position_embedding.weight",
        under={"hf": "vision_tower.embeddings."},
        planes=pixels_to_planes("v_n_embd", "v_patch_size"),
    ),
    siglip.BLOCKS,
    vit.linear("mm.0", "mm_projector.0", "v_projection", vit.WIDTH),
    vit.linear("mm.2", "mm_projector.2", "v_projection", "v_projection"),
)

_UNREAD = "behind the block whose states are read"
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="phi4",
    display_name="Phi-4-reasoning-vision, vision encoder",
    hf_classes=("Phi4ForCausalLMV",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            conventions={"patches": "pixels"},
            fixed=clip.vision_fixed("phi4"),
            drops=(
                *clip.TEXT, llava.appended("vision_tower.encoder.layers.{n}."),
                Drop("vision_tower.post_layernorm.*", f"a norm {_UNREAD}"),
                Drop("vision_tower.head.*", f"what pools a picture into one vector, {_UNREAD}"),
            ),
            renames=(
                ("model.vision_tower.vision_tower.vision_model.", "vision_tower."),
                ("model.vision_tower.vision_tower.", "vision_tower."), ("model.mm_projector.", "mm_projector."),
                *siglip.NAMES,
            ),
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.vision_use_head", "of the part that pools, which is dropped"),
                IgnoredKey("mm_hidden_size", "the width of the tower", follows="v_n_embd"),
                IgnoredKey("mm_vision_tower mm_projector_lr mm_use_im_start_end mm_use_im_patch_token "
                         "mm_patch_merge_type mm_vision_select_feature", "of LLaVA's training program"),
                IgnoredKey("preprocessor.max_num_patches preprocessor.min_num_patches", "limits of a picture"),
            ),
        ),
    ),
    recipe={
        "computation": "projector", "vision": "siglip_mlp", "norm": "layer", "ffn": "plain", "activation": "gelu_tanh",
    },
)
