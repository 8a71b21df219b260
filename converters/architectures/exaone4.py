"""EXAONE 4: norms behind attention and feed-forward instead of before them; queries and keys normed head by head. The
largest has blocks with a window, and turns nothing in those without.

Source: llama.cpp `src/models/exaone4.cpp`, transformers `modeling_exaone4.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _exaone as exaone
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect
from ggferry.converters.schema.roles import block, roles

# Only a null says that there is no window: without the key transformers supposes one, and turns nothing elsewhere.
N_SWA = replace(common.N_SWA, null=0, defaults=(Default(4096, "transformers' default", dialect="hf"),))
HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.LLAMA3_ROPE, N_SWA, *exaone.WINDOWS, common.TIED, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    rope.LLAMA3_FREQUENCIES,
    block(
        tensors.attention(),
        tensors.qk_norm(),
        tensors.norm("post_attention_norm", "post_attention_layernorm"),
        tensors.gated(),
        tensors.norm("post_ffw_norm", "post_feedforward_layernorm"),
    ),
)

CAVEATS = (
    common.heads_as_wide_as_the_model("exaone4"),
    Caveat(
        "n_head * head_dim != n_embd",
        "{n_head} heads are {head_dim} wide in a model of {n_embd}; llama.cpp loads heads of embedding / heads only",
        unsupported_by="llama.cpp",
    ),
    Caveat(
        "n_swa > 0 and n_layer != 64",
        "llama.cpp runs this differently: blocks of exaone4 have windows, and those without turn nothing, only where "
        "there are 64; this model has {n_layer}",
        unsupported_by="llama.cpp",
    ),
    Caveat(
        "n_swa == 0 and n_layer == 64",
        "llama.cpp runs this differently: it gives windows to an exaone4 of 64 blocks, and this one has none",
        unsupported_by="llama.cpp",
    ),
)

HF = Dialect("hf", drops=common.DROPS, caveats=rope.CAVEATS, ignored_keys=(common.UNBIASED,))

SPEC = Architecture(
    name="exaone4", runtimes=("llama.cpp",),
    display_name="EXAONE 4",
    hf_classes=("Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(HF, "exaone4"),
    ),
    recipe={"rope": "halves", "pre_norm": False},
    caveats=CAVEATS,
)
SPEC = half.with_base(SPEC, "Exaone4Model")
