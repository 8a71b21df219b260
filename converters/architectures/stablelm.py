"""StableLM 2 and 3B: LLaMA with layer norms and a partly turned head; the 12B norms queries and keys with weights of
each head's own and lets both branches read the same norm.

Source: llama.cpp `src/models/stablelm.cpp`, `conversion/stablelm.py`, transformers `modeling_stablelm.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Stack
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL
_HF = "transformers' default"

HPARAMS = (
    *common.SIZES, common.LAYER_EPS,
    rope.BASE,
    replace(rope.FRACTION, defaults=(Default(0.25, _HF, dialect="hf"),)),
    rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("parallel_residual", "use_parallel_residual", BOOL, {"hf": "use_parallel_residual"},
           defaults=(Default(False, _HF),)),
    HParam("qkv_bias", None, BOOL, {"hf": "use_qkv_bias"}, required=False,
           defaults=(Default(False, _HF, dialect="hf"),)),
    HParam("qk_norms", None, BOOL, {"hf": "qk_layernorm"}, required=False,
           defaults=(Default(False, _HF, dialect="hf"),)),
    common.TIED, common.SILU,
)

_SEQUENTIAL = "parallel_residual == 0"
ROLES = roles(
    tensors.embedding(),
    "output_norm.bias : n_embd | hf model.norm.bias",
    block(
        f"""
        attn_norm.bias                     : n_embd | hf input_layernorm.bias
        ffn_norm.bias when={_SEQUENTIAL} : n_embd | hf post_attention_layernorm.bias
        """,
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias="qkv_bias == 1"),
        tensors.qk_norm(
            names=("q_layernorm.norms.{e}", "k_layernorm.norms.{e}"), shapes=tensors.EACH_HEAD, layout=Stack(),
            when="qk_norms == 1",
        ),
        tensors.norm("ffn_norm", "post_attention_layernorm", when=_SEQUENTIAL),
        tensors.gated(),
    ),
)

HF = Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, common.OWN_OUTPUT))

SPEC = Architecture(
    name="stablelm", runtimes=("llama.cpp",),
    display_name="StableLM",
    hf_classes=("StableLmForCausalLM", "StableLMEpochForCausalLM", "LlavaStableLMEpochForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name="seeing", names="hf", fields="hf", classes=("LlavaStableLMEpochForCausalLM",),
            drops=(*common.DROPS, *half.drop_vision("*vision_tower.*", "*mm_projector.*")),
            ignored_keys=(IgnoredKey("mm_* tune_mm_* freeze_mm_* use_mm_proj image_* vision_*",
                "of the vision encoder"),),
        ),
    ),
    recipe={"norm": "layer", "rope": "halves"},
)
