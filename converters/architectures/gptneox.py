"""GPT-NeoX, Pythia, Dolly, RedPajama, StableLM-Alpha: part of each head turned, two norms read side by side or in turn.

Source: llama.cpp `src/models/gptneox.cpp`, transformers `modeling_gpt_neox.py`, in both generations of its keys
(`rotary_pct`, `rotary_emb_base`; `rope_parameters`). Hugging Face keeps query, key and value of each head together.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _megatron as megatron
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

_TRUE = (Default(True, "transformers' default", dialect="hf"),)
# The class reads neither `rope_theta` nor `partial_rotary_factor` beside the rotary parameters: it has other names.
_FRACTION = "rope_parameters.partial_rotary_factor|rope_scaling.partial_rotary_factor"
_OLD_HEADER = Default(
    True, "headers before 20 May 2023 do not state it: the runtimes they were for knew parallel branches only",
    dialect="ggml",
)
HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV,
    HParam("parallel_residual", "use_parallel_residual", gpt.BOOL, {"hf": "use_parallel_residual", "ggml": "par_res"},
           words={0: False, 1: True},
           defaults=(*_TRUE, _OLD_HEADER, Default(True, "what readers take for granted"))),
    replace(rope.BASE, fields={"hf": f"{rope.scaling_place('rope_theta')}|rotary_emb_base"}),
    replace(rope.FRACTION, fields={"hf": f"{_FRACTION}|rotary_pct"},
            defaults=(Default(0.25, "transformers' default", dialect="hf"),)),
    replace(rope.N_ROT, fields={**rope.N_ROT.fields, "ggml": "n_rot"}), rope.KIND, *rope.SCALING,
    HParam("biased", None, gpt.BOOL, {"hf": "attention_bias"}, required=False, defaults=_TRUE),
    common.TIED, gpt.GELU,
)

ROLES = roles(
    tensors.embedding("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", bias=True),
    block(
        megatron.first_norm(), megatron.attention("attention.", bias="biased == 1"), megatron.second_norm(),
        megatron.feed_forward(), layer="gpt_neox.layers.{n}.",
    ),
)

HEADER = HeaderLayout(
    name="gptneox",
    containers=gpt.GGML_CONTAINERS,
    header=Struct(
        "GPT-NeoX header",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
        n_ctx    i32  1..            positions
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   rotated part of a head
        par_res  i32  0..1           both branches of a block read its input
        ftype    i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("gpt_neox.layers.*",),
    vocab=VocabLayout(pre="olmo"),
    quantization=0,
)
HEADER_2023_04 = HeaderLayout(
    name="gptneox-2023-04",
    containers=gpt.GGML_CONTAINERS[:1],
    header=Struct(
        "GPT-NeoX header of April and May 2023",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
        n_ctx    i32  1..            positions
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   rotated part of a head
        ftype    i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("gpt_neox.layers.*",),
    vocab=VocabLayout(pre="olmo"),
    quantization=0,
)

UNBIASED = Caveat("biased == 0", "attention without biases: llama.cpp expects them in gptneox",
    unsupported_by="llama.cpp")

SPEC = Architecture(
    name="gptneox", runtimes=("llama.cpp",),
    display_name="GPT-NeoX",
    hf_classes=("GPTNeoXForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "grouped"},
            drops=(replace(common.DROP_TIED, pattern="embed_out.weight"), common.DROP_BUFFERS, *gpt.DROP_MASKS),
            caveats=(*rope.CAVEATS, gpt.ERF, common.OWN_OUTPUT, UNBIASED),
            ignored_keys=(
                IgnoredKey("rope_theta", "repeats rotary_emb_base", follows="rope_base"),
                IgnoredKey("partial_rotary_factor", "repeats rotary_pct", follows="rope_fraction"),
            ),
        ),
        Dialect(
            "ggml",
            names="hf",
            conventions={"qkv": "grouped"},
            drops=(common.DROP_BUFFERS, *gpt.DROP_MASKS),
            caveats=(common.OWN_OUTPUT,),
        ),
    ),
    recipe={**gpt.RECIPE, "rope": "halves", "activation": "gelu"},
    headers=(HEADER, HEADER_2023_04),
)
