"""Mistral's own format: `consolidated.safetensors` with Meta's names of tensors, and a params.json.

Rows of Q and K lie in pairs, as in GGUF (conversion/mistral.py, `undo_permute = False`). Keys: mistral-inference,
`args.py` (TransformerArgs, MoeArgs), and vLLM, `transformers_utils/configs/mistral.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Default, Dialect, HParam, IgnoredKey
from ggferry.formats.gguf.values import ValueType

NAME = "mistral-format"
PLACES = {
    "n_vocab": "vocab_size", "n_ctx": "max_position_embeddings|max_seq_len", "n_embd": "dim", "n_layer": "n_layers",
    "n_ff": "hidden_dim", "n_head": "n_heads", "n_head_kv": "n_kv_heads", "head_dim": "head_dim",
    "head_dim_v": "head_dim", "eps": "norm_eps", "rope_base": "rope_theta", "window_stated": "sliding_window",
    "n_expert": "moe.num_experts", "n_expert_used": "moe.num_experts_per_tok", "tied": "tied_embeddings",
    "activation": "activation",
}
"""Short name of an hparam → where params.json keeps it."""
DEFAULTS = {
    "n_ctx": Default(32768, "params.json states none: Mistral 7B's; its successors have more", dialect=NAME),
    "tied": Default(False, "mistral-inference's default", dialect=NAME),
}
REFUSED = (
    HParam("own_yarn", None, ValueType.FLOAT32, {NAME: "yarn.factor"}, words={1.0: 1.0}, required=False),
    HParam("own_growth", None, ValueType.FLOAT32, {NAME: "llama_4_scaling.beta"}, words={0.0: 0.0}, required=False),
    HParam("own_scheme", None, ValueType.STRING, {NAME: "quantization.qformat_weight"}, words={"none": "none"},
           required=False),
)
"""What params.json may say and LLaMA's graph does not do; the checkpoints in transformers' format are read."""
TENSORS = """
token_embd.weight          tok_embeddings.weight
output_norm.weight         norm.weight
output.weight              output.weight
blk.{n}.attn_norm.weight   layers.{n}.attention_norm.weight
blk.{n}.attn_q.weight      layers.{n}.attention.wq.weight
blk.{n}.attn_k.weight      layers.{n}.attention.wk.weight
blk.{n}.attn_v.weight      layers.{n}.attention.wv.weight
blk.{n}.attn_output.weight layers.{n}.attention.wo.weight
blk.{n}.ffn_norm.weight    layers.{n}.ffn_norm.weight
blk.{n}.ffn_gate.weight    layers.{n}.feed_forward.w1.weight
blk.{n}.ffn_down.weight    layers.{n}.feed_forward.w2.weight
blk.{n}.ffn_up.weight      layers.{n}.feed_forward.w3.weight
"""
EXPERTS = """
blk.{n}.ffn_gate_inp.weight  layers.{n}.feed_forward.gate.weight
blk.{n}.ffn_gate_exps.weight layers.{n}.feed_forward.experts.{e}.w1.weight @stack
blk.{n}.ffn_down_exps.weight layers.{n}.feed_forward.experts.{e}.w2.weight @stack
blk.{n}.ffn_up_exps.weight   layers.{n}.feed_forward.experts.{e}.w3.weight @stack
"""
DIALECT = Dialect(
    NAME,
    required_tensors=("tok_embeddings.weight", "layers.0.attention.wq.weight", "layers.0.attention_norm.weight"),
    drops=half.drop_vision("vision_encoder.*", "vision_language_adapter.*", "patch_merger.*",
        "pre_mm_projector_norm.*"),
    ignored_keys=(
        IgnoredKey("vision_encoder vision_encoder.* multimodal multimodal.*", "of the vision half, which is dropped"),
        IgnoredKey("max_batch_size model_parallel_size model_type", "of programs that run it"),
        IgnoredKey("causal", "the default", (True,)),
        IgnoredKey("use_biases", "the default", (False,)),
    ),
)


def declared(hparams: Sequence[HParam]) -> tuple[HParam, ...]:
    """Return hparams with their places in params.json, and those that are refused."""
    found = tuple(
        replace(
            each,
            fields={**each.fields, NAME: PLACES[each.name]},
            defaults=(*((DEFAULTS[each.name],) if each.name in DEFAULTS else ()), *each.defaults),
        )
        if each.name in PLACES
        else each
        for each in hparams
    )
    return (*found, *REFUSED)
