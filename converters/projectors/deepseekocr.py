"""DeepSeek-OCR's tower, and Unlimited-OCR's: what Segment Anything's encoder makes of a picture goes through CLIP's,
and one matrix projects both side by side; every row of patches ends with a row of its own, the picture with another.

Source: transformers `UnlimitedOcrVisionModel`; llama.cpp `conversion/deepseek.py` (`DeepseekOCRVisionModel`),
`tools/mtmd/models/deepseekocr.cpp`.
"""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _sam as sam
from ggferry.converters.projectors import _vit as vit
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import roles

HPARAMS = (
    clip.PROJECTOR,
    clip.HAS_VISION,
    replace(clip.V_PROJECTION, fields={"hf": f"{clip.V_PROJECTION.fields['hf']}|language_config.hidden_size"}),
    sam.at(clip.V_IMAGE_SIZE, "image_size", "image_size"),
    sam.at(clip.V_PATCH_SIZE, "patch_size", "patch_size"),
    sam.at(clip.V_N_EMBD, "hidden_size", "width"),
    sam.at(clip.V_N_FF, "intermediate_size"),
    sam.at(clip.V_N_LAYER, "num_hidden_layers", "layers"),
    sam.at(clip.V_N_HEAD, "num_attention_heads", "heads"),
    *clip.COLORS,
    replace(
        sam.at(clip.V_EPS, "layer_norm_eps"),
        defaults=(Default(1e-5, "the publisher's code, and all that llama.cpp computes", dialect="hf"),),
    ),
    HParam(
        "encoder_act", None, clip.STRING, {"hf": f"{sam.ENCODER}.hidden_act"}, words={"quick_gelu": "quick_gelu"},
        required=False,
    ),
    HParam("v_min_tiles", "vision.preproc_min_tiles", fields={"hf": "preprocessor.min_patches"}, derive="2"),
    HParam("v_max_tiles", "vision.preproc_max_tiles", fields={"hf": "preprocessor.max_patches"}, derive="most_tiles"),
    HParam("most_tiles", None, required=False),
    *sam.HPARAMS,
)

_AT = "model.vision_model."
ROLES = roles(
    sam.ROLES,
    f"v.class_embd f32           : v_n_embd                  | hf {_AT}embeddings.class_embedding",
    f"v.position_embd.weight f32 : {vit.PATCHES}+1 v_n_embd  | hf {_AT}embeddings.position_embedding.weight",
    vit.norm("v.pre_ln", f"{_AT}pre_layrnorm"),
    vit.blocks(
        f"{_AT}transformer.layers.{{n}}.",
        vit.norm("ln1", "layer_norm1"), vit.fused("self_attn.qkv_proj", "self_attn.out_proj"),
        vit.norm("ln2", "layer_norm2"), vit.plain("mlp.fc1", "mlp.fc2"),
    ),
    vit.linear("mm.model.fc", "model.projector.layers", "v_projection", "2*v_n_embd"),
    roles(
        """
        v.image_newline f32  : v_projection   | hf model.image_newline
        v.view_seperator f32 : 1 v_projection | hf model.view_seperator @row
        """,
        row=Reshape(("1", "v_projection")),
    ),
)
_STRETCHED = Caveat(
    "",
    "of tiles, which are smaller than the picture that both tables of positions are of, llama.cpp (b11549) stretches "
    "the tables without smoothing, the second one row off; of the whole picture it computes what the model does",
    differs_in="llama.cpp",
)
_HF = Dialect(
    "hf",
    fixed={**clip.vision_fixed("deepseekocr"), "most_tiles": 32},
    drops=(
        *clip.TEXT,
        Drop(f"{_AT}embeddings.patch_embedding.*", "not used: Segment Anything's encoder takes its place"),
        Drop(f"{_AT}embeddings.position_ids", "numbers from zero on"),
    ),
    nested=sam.NESTED,
    caveats=(_STRETCHED,),
    ignored_keys=sam.IGNORED_KEYS,
)
SPEC = Architecture(
    name="clip", runtimes=("llama.cpp",),
    projector="deepseekocr",
    display_name="DeepSeek-OCR, vision encoder",
    hf_classes=("DeepseekOCRForCausalLM", "UnlimitedOCRForCausalLM", "UnlimitedOcrForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    blocks={**clip.VISION_BLOCKS, **sam.BLOCKS},
    dialects=(
        _HF,
        replace(
            _HF, name="deepseek", names="hf", fields="hf", classes=("DeepseekOCRForCausalLM",),
            fixed={**_HF.fixed, "most_tiles": 9},
        ),
    ),
    recipe={"computation": "projector", "vision": "deepseekocr", "norm": "layer", "ffn": "plain", "activation": "gelu"},
)
