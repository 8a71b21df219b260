"""Headers of clip.cpp's files before GGUF, and the blocks that both of CLIP's encoders have."""

from ggferry.converters.schema.architecture import Caveat, Default
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import Roles, roles
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

_SIZES = """
    n_vocab       i32  1..MAX_GGML_VOCAB
    t_positions   i32  1..MAX_WIDTH
    t_width       i32  1..MAX_WIDTH
    t_inner       i32  1..MAX_WIDTH
    t_projection  i32  1..MAX_WIDTH
    t_heads       i32  1..MAX_HEADS
    t_layers      i32  1..MAX_LAYERS
    v_image       i32  1..MAX_WIDTH
    v_patch       i32  1..MAX_WIDTH
    v_width       i32  1..MAX_WIDTH
    v_inner       i32  1..MAX_WIDTH
    v_projection  i32  1..MAX_WIDTH
    v_heads       i32  1..MAX_HEADS
    v_layers      i32  1..MAX_LAYERS
"""


def _header(name: str, gelu: str) -> HeaderLayout:
    return HeaderLayout(
        name=name,
        containers=(("ggml", None),),
        header=Struct(
            "clip.cpp header",
            f"""
            {_SIZES}
            {gelu}
            ftype  i32  0..3  F32, F16, Q4_0, Q4_1; the tensors' own types decide
            """,
        ),
        names=("visual_projection.weight",),
        vocab=VocabLayout("again", scored=False, texts="clip"),
        quantization=2,
        axes=4,
    )


HEADERS = (_header("clip.cpp", "gelu  i32  0..1  GELU in place of quick GELU"), _header("clip.cpp-2023-06-19", ""))
GELU = {"gelu": True, "quick_gelu": False, 1: True, 0: False}
"""The activations of configurations, and of clip.cpp's header."""


def as_pictures(values: Values) -> bool:
    """Return the activation of the encoder of texts, where only that of pictures is stated."""
    return bool(values["use_gelu"])


_WHY = "OpenAI's for every CLIP, which clip.cpp takes before GGUF; the file does not state it"
MEAN = (Default((0.48145466, 0.4578275, 0.40821073), _WHY),)
STD = (Default((0.26862954, 0.26130258, 0.27577711), _WHY),)
LOG_100 = 4.605170249938965
"""In float32: of the factor at which CLIP's training clips the logits, that of OpenAI's models."""
WITHOUT_SCALE = (
    Caveat(
        f"logit_scale == {LOG_100}",
        "files of clip.cpp hold no logit_scale: a folder gets the logarithm of 100, as OpenAI's models have it; "
        "embeddings do not depend on it",
    ),
)
ONLY_CLIP_CPP = (
    "clip.cpp reads a GGUF file of CLIP's two encoders, with its patches in F16 (--outtype f16), and no other program "
    "does; --to safetensors writes a folder of transformers' CLIPModel"
)


def layer(width: str, inner: str) -> Roles:
    """Return the tensors of a block, in the names of either encoder's."""
    return roles(f"""
        attn_q.weight   : {width} {width} | hf self_attn.q_proj.weight
        attn_q.bias     : {width}         | hf self_attn.q_proj.bias
        attn_k.weight   : {width} {width} | hf self_attn.k_proj.weight
        attn_k.bias     : {width}         | hf self_attn.k_proj.bias
        attn_v.weight   : {width} {width} | hf self_attn.v_proj.weight
        attn_v.bias     : {width}         | hf self_attn.v_proj.bias
        attn_out.weight : {width} {width} | hf self_attn.out_proj.weight
        attn_out.bias   : {width}         | hf self_attn.out_proj.bias
        ln1.weight f32  : {width}         | hf layer_norm1.weight
        ln1.bias        : {width}         | hf layer_norm1.bias
        ffn_down.weight : {inner} {width} | hf mlp.fc1.weight
        ffn_down.bias   : {inner}         | hf mlp.fc1.bias
        ffn_up.weight   : {width} {inner} | hf mlp.fc2.weight
        ffn_up.bias     : {width}         | hf mlp.fc2.bias
        ln2.weight f32  : {width}         | hf layer_norm2.weight
        ln2.bias        : {width}         | hf layer_norm2.bias
        """)
