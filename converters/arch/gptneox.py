"""GPT-NeoX, Pythia, Dolly, RedPajama, StableLM-Alpha: part of each head turned, two norms read side by side or in turn.

Source: llama.cpp `src/models/gptneox.cpp`, transformers `modeling_gpt_neox.py`, in both generations of its keys
(`rotary_pct`, `rotary_emb_base`; `rope_parameters`). Hugging Face keeps query, key and value of each head together.
"""

from dataclasses import replace

from ggferry.converters.arch import _common as common
from ggferry.converters.arch import _gpt as gpt
from ggferry.converters.arch import _megatron as megatron
from ggferry.converters.arch import _rope as rope
from ggferry.converters.layout import heads_to_qkv
from ggferry.converters.spec import Architecture, Default, Dialect, HParam, Remark, roles

_TRUE = (Default(True, "transformers' default", dialect="hf"),)
HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV,
    HParam("parallel_residual", "use_parallel_residual", gpt.BOOL, {"hf": "use_parallel_residual"},
           defaults=(*_TRUE, Default(True, "what readers take for granted"))),
    replace(rope.BASE, fields={"hf": f"{rope.BASE.fields['hf']}|rotary_emb_base"}),
    replace(rope.FRACTION, fields={"hf": f"{rope.FRACTION.fields['hf']}|rotary_pct"},
            defaults=(Default(0.25, "transformers' default", dialect="hf"),)),
    rope.N_ROT, rope.KIND, *rope.SCALING,
    HParam("biased", None, gpt.BOOL, {"hf": "attention_bias"}, required=False, defaults=_TRUE),
    common.TIED, gpt.GELU,
)  # fmt: skip

ROLES = roles(
    """
    token_embd.weight            : n_vocab n_embd | hf gpt_neox.embed_in.weight
    output_norm.weight f32       : n_embd         | hf gpt_neox.final_layer_norm.weight
    output_norm.bias             : n_embd         | hf gpt_neox.final_layer_norm.bias
    output.weight when=tied==0   : n_vocab n_embd | hf embed_out.weight
    """
    + megatron.FIRST_NORM.replace("LAYER", "gpt_neox.layers.{n}")
    + megatron.ATTENTION.replace("LAYER.ATTN", "gpt_neox.layers.{n}.attention").replace("BIASED", "when=biased==1")
    + megatron.SECOND_NORM.replace("LAYER", "gpt_neox.layers.{n}").replace("FLAG", "")
    + megatron.FFN.replace("LAYER", "gpt_neox.layers.{n}").replace("BIASED", ""),
    qkv=heads_to_qkv("n_head_kv"),
)

TIED = Remark(
    "tied == 1", "an output tied to the embedding: llama.cpp expects one of its own in gptneox", stops="llama.cpp"
)
UNBIASED = Remark("biased == 0", "attention without biases: llama.cpp expects them in gptneox", stops="llama.cpp")

SPEC = Architecture(
    name="gptneox",
    display_name="GPT-NeoX",
    hf_classes=("GPTNeoXForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect(
            "hf",
            conventions={"qkv": "grouped"},
            drops=(replace(common.DROP_TIED, pattern="embed_out.weight"), common.DROP_BUFFERS, *gpt.DROP_MASKS),
            remarks=(*rope.REMARKS, gpt.ERF, TIED, UNBIASED),
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={**gpt.RECIPE, "rope": "halves", "activation": "gelu"},
)
