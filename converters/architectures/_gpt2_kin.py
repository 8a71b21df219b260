"""Models whose graph is GPT-2's under other names: OPT and Galactica, BioGPT, RuGPT-3 XL.

Queries, keys and values lie apart in their checkpoints; OPT's and BioGPT's learned positions begin with two rows that
no text uses. Sources: transformers `modeling_opt.py`, `modeling_biogpt.py`; llama.cpp `conversion/gpt2.py`;
evilfreelancer's `modeling_rugpt3xl.py`.
"""

from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.schema.architecture import Drop, Harmless, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts import Concat, Split
from ggferry.converters.schema.partial_layouts import Scaled

JOINED, USED = Concat(), Split(2, "n_ctx + 2")
EMBEDDING = Scaled((("embedding_scale",),))


def embedding_scale(values: Values) -> float:
    """What token embeddings are multiplied by: the root of their width, where the configuration says so."""
    return float(values["n_embd"] ** 0.5) if values["scaled_embedding"] else 1.0


SCALED = (
    HParam("scaled_embedding", None, gpt.BOOL, {"hf": "scale_embedding"}, required=False),
    HParam("embedding_scale", None, gpt.F32, derive=embedding_scale, required=False),
)
# What GPT-2's graph does not do.
OTHERWISE = (
    HParam("normed_before", None, gpt.BOOL, {"hf": "do_layer_norm_before"}, words={True: True}, required=False),
    # RuGPT-3 XL's heads may each see some blocks of text only.
    HParam("sparse_attention", None, gpt.STRING, {"hf": "sparse_mode"}, words={"none": "none"}, required=False),
    HParam("unnormed", None, gpt.BOOL, {"hf": "_remove_final_layer_norm"}, words=gpt.FALSE, required=False),
    HParam("embedding_width", None, fields={"hf": "word_embed_proj_dim"}, required=False,
           check="embedding_width == n_embd"),
    HParam("norm_weights", None, gpt.BOOL, {"hf": "layer_norm_elementwise_affine"}, words={True: True}, required=False),
)  # fmt: skip
_BLOCK = """
blk.{n}.attn_norm.weight   LAYER.self_attn_layer_norm.weight
blk.{n}.attn_norm.bias     LAYER.self_attn_layer_norm.bias
blk.{n}.attn_qkv.weight    ATTN.q_proj.weight ATTN.k_proj.weight ATTN.v_proj.weight @qkv
blk.{n}.attn_qkv.bias      ATTN.q_proj.bias ATTN.k_proj.bias ATTN.v_proj.bias @qkv
blk.{n}.attn_output.weight LAYER.self_attn.out_proj.weight
blk.{n}.attn_output.bias   LAYER.self_attn.out_proj.bias
blk.{n}.ffn_norm.weight    LAYER.final_layer_norm.weight
blk.{n}.ffn_norm.bias      LAYER.final_layer_norm.bias
blk.{n}.ffn_up.weight      LAYER.fc1.weight
blk.{n}.ffn_up.bias        LAYER.fc1.bias
blk.{n}.ffn_down.weight    LAYER.fc2.weight
blk.{n}.ffn_down.bias      LAYER.fc2.bias
""".replace("ATTN", "LAYER.self_attn")
OPT = """
token_embd.weight          model.decoder.embed_tokens.weight
position_embd.weight       model.decoder.embed_positions.weight @used
output_norm.weight         model.decoder.final_layer_norm.weight
output_norm.bias           model.decoder.final_layer_norm.bias
output.weight              lm_head.weight
""" + _BLOCK.replace("LAYER", "model.decoder.layers.{n}")
BIOGPT = """
token_embd.weight          biogpt.embed_tokens.weight @scaled
position_embd.weight       biogpt.embed_positions.weight @used
output_norm.weight         biogpt.layer_norm.weight
output_norm.bias           biogpt.layer_norm.bias
output.weight              output_projection.weight
""" + _BLOCK.replace("LAYER", "biogpt.layers.{n}")
RUGPT = """
token_embd.weight          model.embed_tokens.weight
position_embd.weight       model.embed_positions.weight
output_norm.weight         model.norm.weight
output_norm.bias           model.norm.bias
output.weight              lm_head.weight
""" + _BLOCK.replace("LAYER.self_attn_layer_norm", "LAYER.input_layernorm").replace(
    "LAYER.final_layer_norm", "LAYER.post_attention_layernorm"
).replace("out_proj", "o_proj").replace("fc1", "mlp.up_proj").replace("fc2", "mlp.down_proj").replace(
    "LAYER", "model.layers.{n}"
)
NORMS = {"eps": 1e-5}
"""Of transformers' code, whatever a configuration says."""
HARMLESS = (
    Harmless("enable_bias", "the tensors say it", (True,)),
    Harmless("layer_norm_eps", "transformers' norms have 1e-5 in this class"),
    Harmless("layerdrop init_std activation_dropout learned_embeddings _name_or_path", "of training, or a name"),
    Harmless("do_layer_norm_before", "always", (True,)),
)
RUGPT_HARMLESS = (
    Harmless("embedding_dropout output_dropout", "of training"),
    Harmless("sparse_block_size sparse_num_*", "of a sparse attention that is not in use"),
    Harmless("attn_implementation", "how it is computed"),
)
MASKS = (Drop("*.version", "a buffer of fairseq's: the version of its layout", follows=True),)
