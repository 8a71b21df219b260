"""Models whose graph is GPT-2's under other names: OPT and Galactica, BioGPT, RuGPT-3 XL.

Queries, keys and values lie apart in their checkpoints; OPT's and BioGPT's learned positions begin with two rows that
no text uses. Sources: transformers `modeling_opt.py`, `modeling_biogpt.py`; llama.cpp `conversion/gpt2.py`;
evilfreelancer's `modeling_rugpt3xl.py`.
"""

from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.schema.architecture import Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.parts import Concat, Split
from ggferry.converters.schema.layouts.values import Scaled
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

JOINED, USED = Concat(), Split(2, "n_ctx + 2")
EMBEDDING = Scaled((("embedding_scale",),))


def embedding_scale(values: Values) -> float:
    """What token embeddings are multiplied by: the root of their width, where the configuration says so."""
    return float(values["n_embd"] ** 0.5) if values["scaled_embedding"] else 1.0


SCALED = (
    HParam("scaled_embedding", None, gpt.BOOL, {"hf": "scale_embedding"}, required=False, absent=True),
    HParam("embedding_scale", None, gpt.F32, derive=embedding_scale, required=False),
)
# OPT's matrices may have none; those of its norms stay.
BIASED = HParam(
    "biased", None, gpt.BOOL, {"hf": "enable_bias"}, required=False,
    defaults=(Default(True, "transformers' default", dialect="hf"),),
)
# What GPT-2's graph does not do.
OTHERWISE = (
    BIASED,
    HParam("normed_before", None, gpt.BOOL, {"hf": "do_layer_norm_before"}, words={True: True}, required=False,
           own_only=True),
    # RuGPT-3 XL's heads may each see some blocks of text only.
    HParam("sparse_attention", None, gpt.STRING, {"hf": "sparse_mode"}, words={"none": "none"}, required=False),
    HParam("unnormed", None, gpt.BOOL, {"hf": "_remove_final_layer_norm"}, words=gpt.FALSE, required=False),
    HParam("embedding_width", None, fields={"hf": "word_embed_proj_dim"}, required=False,
           check="embedding_width == n_embd"),
    HParam("norm_weights", None, gpt.BOOL, {"hf": "layer_norm_elementwise_affine"}, words={True: True}, required=False),
)
OPT = """
token_embd.weight          model.decoder.embed_tokens.weight
position_embd.weight       model.decoder.embed_positions.weight @used
output_norm.weight         model.decoder.final_layer_norm.weight
output_norm.bias           model.decoder.final_layer_norm.bias
output.weight              lm_head.weight
blk.{n}.attn_norm.weight   layers.{n}.self_attn_layer_norm.weight
blk.{n}.attn_norm.bias     layers.{n}.self_attn_layer_norm.bias
blk.{n}.attn_qkv.weight    layers.{n}.self_attn.q_proj.weight layers.{n}.self_attn.k_proj.weight \
                           layers.{n}.self_attn.v_proj.weight @qkv
blk.{n}.attn_qkv.bias      layers.{n}.self_attn.q_proj.bias layers.{n}.self_attn.k_proj.bias \
                           layers.{n}.self_attn.v_proj.bias @qkv
blk.{n}.attn_output.weight layers.{n}.self_attn.out_proj.weight
blk.{n}.attn_output.bias   layers.{n}.self_attn.out_proj.bias
blk.{n}.ffn_norm.weight    layers.{n}.final_layer_norm.weight
blk.{n}.ffn_norm.bias      layers.{n}.final_layer_norm.bias
blk.{n}.ffn_up.weight      layers.{n}.fc1.weight
blk.{n}.ffn_up.bias        layers.{n}.fc1.bias
blk.{n}.ffn_down.weight    layers.{n}.fc2.weight
blk.{n}.ffn_down.bias      layers.{n}.fc2.bias
"""
OPT_NAMES = (("model.decoder.layers.", "layers."), ("decoder.layers.", "layers."), ("decoder.", "model.decoder."))
BIOGPT_NAMES = (
    ("biogpt.layers.", "layers."), ("biogpt.layer_norm.", "model.decoder.final_layer_norm."),
    ("biogpt.", "model.decoder."), ("output_projection.", "lm_head."),
)
RUGPT_NAMES = (
    ("model.layers.{n}.input_layernorm.", "layers.{n}.self_attn_layer_norm."),
    ("model.layers.{n}.post_attention_layernorm.", "layers.{n}.final_layer_norm."),
    ("model.layers.{n}.self_attn.o_proj.", "layers.{n}.self_attn.out_proj."),
    ("model.layers.{n}.mlp.up_proj.", "layers.{n}.fc1."),
    ("model.layers.{n}.mlp.down_proj.", "layers.{n}.fc2."),
    ("model.layers.", "layers."),
    ("model.norm.", "model.decoder.final_layer_norm."),
    ("model.embed_", "model.decoder.embed_"),
)



def _biogpt(name: str, ftypes: str, quantization: int) -> HeaderLayout:
    """Return a layout of biogpt.cpp's (docs/formats/small-ggml-programs.md).

    Its quantizers never wrote the version of the blocks, 0 until October 2023 and 2 since. Q5_0 and Q5_1 have one size
    in both, so that a person must say it.
    """
    return HeaderLayout(
        name=name,
        containers=(("ggml", None),),
        header=Struct(
            "biogpt.cpp header",
            f"""
            n_vocab  i32  1..MAX_GGML_VOCAB
            n_layer  i32  1..MAX_LAYERS
            n_head   i32  1..MAX_HEADS
            n_ctx    i32  1..MAX_WIDTH   positions; their matrix has two rows more, which no text uses
            n_ff     i32  1..MAX_WIDTH
            n_embd   i32  1..MAX_WIDTH
            ftype    i32  {ftypes}       GGML_FTYPE alone; the tensors' own types decide
            """,
        ),
        names=("biogpt.layers.*.self_attn.q_proj.weight",),
        vocab=VocabLayout("again", texts="moses", merges=True),
        quantization=quantization,
    )


BIOGPT_HEADERS = (
    _biogpt("biogpt.cpp", "0..7", 0),
    _biogpt("biogpt.cpp-2023-05", "8..9", 0),
    _biogpt("biogpt.cpp-2023-10", "8..9", 2),
)
BIOGPT_GELU = Default(
    "gelu", "what BioGPT was trained with; the file does not say it, and biogpt.cpp computes its tanh approximation",
    dialect="biogpt.cpp",
)
NORMS = {"eps": 1e-5, "scaled": True}
"""Of transformers' code, whatever a configuration says: the epsilon of norms, and that scores are divided."""
BIASES = {"biased": True}
"""Of all classes but OPT's."""
IGNORED_KEYS = (
    IgnoredKey("layer_norm_eps", "transformers' norms have 1e-5 in this class", (1e-12, 1e-5)),
    IgnoredKey("layerdrop init_std activation_dropout learned_embeddings _name_or_path", "of training, or a name"),
    IgnoredKey("do_layer_norm_before", "always", (True,)),
)
RUGPT_IGNORED_KEYS = (
    IgnoredKey("embedding_dropout output_dropout", "of training"),
    IgnoredKey("sparse_block_size sparse_num_*", "of a sparse attention that is not in use"),
    IgnoredKey("attn_implementation", "how it is computed"),
)
MASKS = (Drop("*.version", "a buffer of fairseq's: the version of its layout", follows=True),)
