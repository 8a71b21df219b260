"""CogVLM's tower (EVA-02 CLIP): blocks that norm what attention and network return, learned positions with a class
token, a gated network, and a row of its own before and behind a picture's.

Source: the publisher's `visual.py`, as LMDeploy has it (InternLM/lmdeploy at 31fc433a,
`lmdeploy/pytorch/models/cogvlm.py`, `EVA2CLIPModel`); llama.cpp `conversion/cogvlm.py`, `tools/mtmd/models/cogvlm.cpp`.
CogVLM 2 makes one patch of four by a convolution before the network, for which llama.cpp has no place.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR, clip.HAS_VISION, clip.V_PROJECTION, clip.V_IMAGE_SIZE, clip.V_PATCH_SIZE, clip.V_N_EMBD,
    clip.V_N_FF, clip.V_N_LAYER,
    replace(clip.V_N_HEAD, fields={"hf": "vision_config.num_heads"}),
    *clip.COLORS, clip.V_EPS, *vit.activation(gelu="gelu"),
    HParam("n_inner", None, fields={"hf": "intermediate_size"}, required=False),
)

_EMBEDDINGS = "model.vision.patch_embedding."
_NETWORK = "model.vision.linear_proj."
ROLES = roles(
    vit.patches(f"{_EMBEDDINGS}proj"),
    f"v.class_embd f32 : v_n_embd | hf {_EMBEDDINGS}cls_embedding @row",
    vit.table(f"{_EMBEDDINGS}position_embedding", more="+1"),
    vit.blocks(
        "model.vision.transformer.layers.{n}.",
        vit.fused("attention.query_key_value", "attention.dense"), vit.norm("ln1", "input_layernorm"),
        vit.plain("mlp.fc1", "mlp.fc2"), vit.norm("ln2", "post_attention_layernorm"),
    ),
    vit.linear("mm.model.fc", f"{_NETWORK}linear_proj", "v_projection", vit.WIDTH, bias=False),
    vit.norm("mm.post_fc_norm", f"{_NETWORK}norm1", width="v_projection"),
    vit.linear("mm.up", f"{_NETWORK}dense_h_to_4h", "n_inner", "v_projection", bias=False),
    vit.linear("mm.gate", f"{_NETWORK}gate_proj", "n_inner", "v_projection", bias=False),
    vit.linear("mm.down", f"{_NETWORK}dense_4h_to_h", "v_projection", "n_inner", bias=False),
    """
    v.boi f32 : v_projection | hf model.vision.boi @end
    v.eoi f32 : v_projection | hf model.vision.eoi @end
    """,
    row=Reshape(("v_n_embd",)),
    end=Reshape(("v_projection",)),
)

SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="cogvlm",
    display_name="CogVLM, vision encoder",
    hf_classes=("CogVLMForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    blocks=clip.VISION_BLOCKS,
    dialects=(
        Dialect(
            "hf",
            fixed=clip.vision_fixed("cogvlm"),
            drops=clip.TEXT,
            nested=("vision_config",),
            ignored_keys=(
                *vit.IGNORED_KEYS,
                IgnoredKey("vision_config.num_positions", "the rows of the table of positions"),
                IgnoredKey("vision_config.dropout_prob", "used in training only"),
            ),
        ),
    ),
    caveats=(vit.SHIFTED,),
    recipe={"computation": "projector", "vision": "cogvlm", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
