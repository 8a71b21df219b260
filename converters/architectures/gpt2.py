"""GPT-2: learned positions, biases everywhere, linear layers stored with a column an output (Conv1D). Under other names
(`_gpt2_family`) its graph is that of OPT, BioGPT and RuGPT-3 XL.

Source: llama.cpp `src/models/gpt2.cpp`, transformers `modeling_gpt2.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _gpt2_family as family
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.parts import Transpose
from ggferry.converters.schema.roles import also, block, roles, varied

N_FF = replace(gpt.N_FF, fields={"hf": f"{gpt.N_FF.fields['hf']}|ffn_dim", "ggml": "n_ff"})
# OPT's; llama.cpp computes the tanh form of GELU whatever the model was trained with.
ACTIVATION = replace(
    gpt.GELU_TANH, words={**gpt.GELU_TANH.words, "relu": "relu"},
    check="activation == 'gelu' or activation == 'gelu_tanh' or activation == 'relu'", defaults=(family.BIOGPT_GELU,),
)
HPARAMS = (
    *(N_FF if size is gpt.N_FF else size for size in gpt.SIZES), gpt.N_HEAD_KV, gpt.SCALED, gpt.ATTN_SCALE,
    common.ALWAYS_TIED, ACTIVATION, *family.SCALED, *family.OTHERWISE,
    # Scores divided by the block's number too (stanford-crfm's): nothing in GGUF says so, and no runtime does it.
    HParam("by_layer", None, gpt.BOOL, {"hf": "scale_attn_by_inverse_layer_idx"}, words=gpt.FALSE, required=False,
           own_only=True),
    HParam("crossed", None, gpt.BOOL, {"hf": "add_cross_attention"}, words=gpt.FALSE, required=False),
)

ROLES = roles(
    gpt.embedding(),
    gpt.POSITIONS,
    block(
        gpt.attention_norm(), gpt.attention(Transpose(), SAME, Transpose(), biased="biased == 1"),
        gpt.feed_forward(Transpose(), biased="biased == 1"), layer=gpt.LAYER,
    ),
)
ROLES = also(ROLES, "ggml", gpt.GGML_NAMES)
# Before 29 March 2023 (ggml acd4aeee), and by convert-h5-to-ggml.py ever since, only mlp/c_proj was turned.
ROLES = varied(
    ROLES, "ggml-conv1d", "ggml",
    """
    blk.{n}.attn_qkv.weight    model.h.{n}.attn/c_attn/w @rotated
    blk.{n}.attn_output.weight model.h.{n}.attn/c_proj/w @rotated
    blk.{n}.ffn_up.weight      model.h.{n}.mlp/c_fc/w @rotated
    """,
    rotated=Transpose(),
)

# llm.c's names are those of train_gpt2.c's ParameterTensors; its matrices have a row an output.
ROLES = also(
    ROLES,
    "llm.c",
    """
    token_embd.weight          wte
    position_embd.weight       wpe
    output_norm.weight         lnfw
    output_norm.bias           lnfb
    blk.{n}.attn_norm.weight   ln1w.{n}
    blk.{n}.attn_norm.bias     ln1b.{n}
    blk.{n}.attn_qkv.weight    qkvw.{n}
    blk.{n}.attn_qkv.bias      qkvb.{n}
    blk.{n}.attn_output.weight attprojw.{n}
    blk.{n}.attn_output.bias   attprojb.{n}
    blk.{n}.ffn_norm.weight    ln2w.{n}
    blk.{n}.ffn_norm.bias      ln2b.{n}
    blk.{n}.ffn_up.weight      fcw.{n}
    blk.{n}.ffn_up.bias        fcb.{n}
    blk.{n}.ffn_down.weight    fcprojw.{n}
    blk.{n}.ffn_down.bias      fcprojb.{n}
    """,
)
LLMC = Dialect(
    "llm.c",
    fields="hf",
    header="header",
    required_tensors=("wte", "qkvw.0", "fcprojw.0"),
    fixed={"eps": 1e-5, "tied": True, "activation": "gelu_tanh", **family.BIASES},
)

ROLES = also(ROLES, "opt", family.OPT, qkv=family.JOINED, used=family.USED)
ROLES = varied(ROLES, "biogpt", "opt", "token_embd.weight model.decoder.embed_tokens.weight @by", by=family.EMBEDDING)
ROLES = varied(ROLES, "biogpt-tied", "biogpt", "output.weight model.decoder.embed_tokens.weight")
ROLES = varied(ROLES, "rugpt", "opt", "position_embd.weight model.decoder.embed_positions.weight")
RELU = Caveat(
    "activation == 'relu'", "llama.cpp runs this differently: it computes GELU in every gpt2, and this model relu",
    unsupported_by="llama.cpp",
)
UNBIASED = Caveat(
    "biased == 0", "a model without biases: llama.cpp expects them in gpt2", unsupported_by="llama.cpp"
)
OPT = Dialect(
    "opt",
    fields="hf",
    classes=("OPTForCausalLM",),
    conventions={"position_offset": 2},
    drops=(*common.DROPS, *family.MASKS),
    fixed=family.NORMS,
    renames=family.OPT_NAMES,
    caveats=(gpt.ERF,),
    ignored_keys=family.IGNORED_KEYS,
)
BIOGPT = replace(
    OPT, name="biogpt", classes=("BioGptForCausalLM",), drops=family.MASKS,
    fixed={**family.NORMS, **family.BIASES, "tied": False},
    renames=family.BIOGPT_NAMES,
    ignored_keys=(*family.IGNORED_KEYS, IgnoredKey("tie_word_embeddings", "the output is written out", (False, True))),
)

SPEC = Architecture(
    name="gpt2", runtimes=("llama.cpp",),
    display_name="GPT-2",
    hf_classes=("GPT2LMHeadModel", "OPTForCausalLM", "BioGptForCausalLM", "RuGPT3XLForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"transposed": ("attn_qkv", "attn_output", "ffn_up", "ffn_down")},
            fixed=family.BIASES,
            drops=gpt.DROPS,
            caveats=(gpt.ERF, gpt.UNSCALED),
            renames=gpt.HEADLESS,
            ignored_keys=(gpt.UPCAST,),
        ),
        Dialect(
            "ggml-conv1d",
            conventions={"transposed": ("attn_qkv", "attn_output", "ffn_up")},
            renames=gpt.GGML_RENAMES,
            fields="ggml",
            fixed=family.BIASES,
            shaped=("model/h0/attn/c_attn/w", "n_embd", "3*n_embd"),
        ),
        Dialect(
            "biogpt.cpp",
            names="biogpt",
            fields="ggml",
            layouts=tuple(header.name for header in family.BIOGPT_HEADERS),
            conventions={"position_offset": 2},
            fixed={**family.NORMS, **family.BIASES, "tied": False, "scaled_embedding": True},
            renames=family.BIOGPT_NAMES,
            caveats=(gpt.ERF,),
        ),
        Dialect("ggml", renames=gpt.GGML_RENAMES, fixed=family.BIASES),
        LLMC,
        OPT,
        BIOGPT,
        replace(BIOGPT, name="biogpt-tied", forbidden_tensors=("output_projection.weight",)),
        Dialect(
            "rugpt",
            fields="hf",
            classes=("RuGPT3XLForCausalLM",),
            fixed=family.BIASES,
            renames=family.RUGPT_NAMES,
            drops=gpt.DROPS,
            caveats=(gpt.ERF,),
            ignored_keys=family.RUGPT_IGNORED_KEYS,
        ),
    ),
    recipe=gpt.RECIPE,
    headers=(gpt.GPT2_HEADER, *family.BIOGPT_HEADERS),
    caveats=(RELU, UNBIASED),
)
SPEC = half.with_base(SPEC, "GPT2Model")
