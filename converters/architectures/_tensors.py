"""Roles that many families share: what a decoder is made of, under Hugging Face's names.

Every function returns roles for `roles(…)` or, those of a block, for `block(…)`, which puts 'blk.{n}.' and the source's
prefix before the names. What they take alike:

* `source`, `names`: the source's names below that prefix, without '.weight' and '.bias'.
* a layout (`layout`, `q`, `k`): how its rows become GGUF's (`converters/schema/layouts/`); as they are by default.
* `bias`: whether there is one: True, False, or the condition on hparams under which there is.
* `when`: the condition on hparams, and the block `n`, under which a model has these tensors.
* sizes (`width`, `rows`, …): expressions over hparams.

The order of the roles is that of the tensors in the file. Names of GGUF: llama.cpp `llama-arch.cpp`.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.schema.architecture import From, Role
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.schema.layouts.parts import Squeeze, Stack
from ggferry.converters.schema.roles import both

Condition = bool | str
PER_HEAD = ("head_dim", "head_dim")
"""Norms of queries and keys: one weight that all heads share; one over all heads at once; one a head."""
FULL_WIDTH = ("n_head*head_dim", "n_head_kv*head_dim")
EACH_HEAD = ("n_head head_dim", "n_head_kv head_dim")


def tensor(
    name: str, shape: str, source: str, layout: Layout = SAME, *, f32: bool = False, optional: bool = False,
    when: str = "",
) -> Role:
    """Return one role. `name` and `source` whole ('attn_sinks.weight', 'self_attn.sinks'); `shape`: 'n_ff n_embd'."""
    return Role(name, tuple(shape.split()), {"hf": From((source,), layout)}, optional, f32, when)


def linear(
    name: str, shape: str, source: str, layout: Layout = SAME, *, bias: Condition = False, when: str = "",
    bias_layout: Layout | None = None,
) -> tuple[Role, ...]:
    """Return a matrix and its bias, which has as many items as the matrix has rows."""
    weight = tensor(f"{name}.weight", shape, f"{source}.weight", layout, when=when)
    return (weight, *_bias(name, shape, source, bias_layout or layout, bias, when))


def norm(
    name: str, source: str, *, width: str = "n_embd", layout: Layout = SAME, bias: Condition = False, when: str = ""
) -> tuple[Role, ...]:
    """Return the weights of a norm, kept in float32, and its biases."""
    weight = tensor(f"{name}.weight", width, f"{source}.weight", layout, f32=True, when=when)
    return (weight, *_bias(name, width, source, SAME, bias, when))


def embedding(
    token: str = "model.embed_tokens", last_norm: str = "model.norm", output: str = "lm_head", *,
    layout: Layout = SAME, bias: Condition = False, output_when: str = "tied == 0",
) -> tuple[Role, ...]:
    """Return what stands before and behind the blocks: the embedding, the last norm ('' for none; `layout` and `bias`
    are its own), the output ('' for none)."""
    last = norm("output_norm", last_norm, layout=layout, bias=bias) if last_norm else ()
    logits = linear("output", "n_vocab n_embd", output, when=output_when) if output else ()
    return (*linear("token_embd", "n_vocab n_embd", token), *last, *logits)


def attention(
    source: str = "self_attn.", names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj"), *,
    q: Layout = SAME, k: Layout = SAME, bias: Condition = False, output_bias: Condition = False, when: str = "",
    heads: str = "n_head", heads_kv: str = "n_head_kv", width: str = "head_dim", width_v: str = "head_dim_v",
) -> tuple[Role, ...]:
    """Return the four matrices of attention, then the biases of queries, keys and values, then the output's.

    `heads`, `heads_kv`, `width`, `width_v`: how many heads there are, and how wide one is. `q`, `k`: the order of their
    rows, biases too.
    """
    rows = (f"{heads}*{width}", f"{heads_kv}*{width}", f"{heads_kv}*{width_v}")
    parts = [(f"attn_{part}", row, f"{source}{name}", layout)
             for part, row, name, layout in zip("qkv", rows, names[:3], (q, k, SAME), strict=True)]
    weights = [role for name, row, at, layout in parts for role in linear(name, f"{row} n_embd", at, layout, when=when)]
    biases = [role for name, row, at, layout in parts for role in _bias(name, row, at, layout, bias, when)]
    output, *output_biases = linear(
        "attn_output", f"n_embd {heads}*{width_v}", f"{source}{names[3]}", bias=output_bias, when=when
    )
    return (*weights, output, *biases, *output_biases)


def paired_attention(*, bias: Condition = False, output_bias: Condition = False) -> tuple[Role, ...]:
    """Return `attention` whose rows of queries and keys go from halves to pairs: llama.cpp turns neighbors there."""
    return attention(
        q=heads_halves_to_pairs("n_head"), k=heads_halves_to_pairs("n_head_kv"), bias=bias, output_bias=output_bias
    )


def pre_norm(attending: Sequence[Role], feeding: Sequence[Role], *, bias: Condition = False) -> tuple[Role, ...]:
    """Return a block that reads normalized inputs, under transformers' usual names: the norm before attention, what
    attends, the norm before the feed-forward, what feeds forward. `bias`: of both norms."""
    return (
        *norm("attn_norm", "input_layernorm", bias=bias),
        *attending,
        *norm("ffn_norm", "post_attention_layernorm", bias=bias),
        *feeding,
    )


BIASED, BIASED_OUTPUT = "attention_bias == 1", "output_bias == 1"


def biased_attention() -> tuple[Role, ...]:
    """Return `attention` whose four matrices have biases where the configuration says so (`_common.BIASES`)."""
    return attention(bias=BIASED, output_bias=BIASED_OUTPUT)


def normed_attention(*, shapes: Sequence[str] = PER_HEAD, biased: bool = False) -> tuple[Role, ...]:
    """Return `attention` and `qk_norm`, as Qwen 3 has them. `biased`: whether it is `biased_attention`."""
    return (*(biased_attention() if biased else attention()), *qk_norm(shapes=shapes))


def fused_attention(
    qkv: str, output: str, *, rows: str = "(n_head+2*n_head_kv)*head_dim", columns: str = "n_head*head_dim",
    layout: Layout = SAME, output_layout: Layout = SAME, bias_layout: Layout | None = None, bias: Condition = False,
    output_bias: Condition | None = None, when: str = "",
) -> tuple[Role, ...]:
    """Return queries, keys and values in one matrix of `rows`, its bias, the output of `columns`, its bias (as `bias`
    where it is not given). `layout`: of the fused rows, and of their bias unless `bias_layout` is given."""
    own = bias if output_bias is None else output_bias
    return (
        *linear("attn_qkv", f"{rows} n_embd", qkv, layout, bias=bias, bias_layout=bias_layout, when=when),
        *linear("attn_output", f"n_embd {columns}", output, output_layout, bias=own, bias_layout=SAME, when=when),
    )


def qk_norm(
    source: str = "self_attn.", names: Sequence[str] = ("q_norm", "k_norm"), *, shapes: Sequence[str] = PER_HEAD,
    layout: Layout = SAME, bias: Condition = False, when: str = "",
) -> tuple[Role, ...]:
    """Return the norms of queries and keys. `shapes`: PER_HEAD, FULL_WIDTH, EACH_HEAD or others."""
    return tuple(
        role
        for part, name, shape in zip("qk", names, shapes, strict=True)
        for role in norm(f"attn_{part}_norm", f"{source}{name}", width=shape, layout=layout, bias=bias, when=when)
    )


def gated(
    source: str = "mlp.", names: Sequence[str] = ("gate_proj", "down_proj", "up_proj"), *, width: str = "n_ff",
    bias: Condition = False, when: str = "", suffix: str = "",
) -> tuple[Role, ...]:
    """Return a gated feed-forward network, down(act(gate) · up): gate, down and up in this order, then their biases.

    `names`: of gate, down, up. `suffix`: of GGUF's names, '_shexp' for shared experts.
    """
    shapes = {"gate": f"{width} n_embd", "down": f"n_embd {width}", "up": f"{width} n_embd"}
    parts = [(f"ffn_{part}{suffix}", shape, f"{source}{name}")
             for (part, shape), name in zip(shapes.items(), names, strict=True)]
    weights = [role for name, shape, at in parts for role in linear(name, shape, at, when=when)]
    return (*weights, *(role for name, shape, at in parts for role in _bias(name, shape, at, SAME, bias, when)))


def plain(
    source: str = "mlp.", names: Sequence[str] = ("up_proj", "down_proj"), *, width: str = "n_ff",
    layout: Layout = SAME, bias: Condition = False, when: str = "",
) -> tuple[Role, ...]:
    """Return a plain feed-forward network, down(act(up)): up and down, each with its bias behind it. `names`: of up,
    down. `layout`: of both matrices (GPT-2 stores them transposed)."""
    up, down = (f"{source}{name}" for name in names)
    return (
        *linear("ffn_up", f"{width} n_embd", up, layout, bias=bias, bias_layout=SAME, when=when),
        *linear("ffn_down", f"n_embd {width}", down, layout, bias=bias, bias_layout=SAME, when=when),
    )


def experts(
    source: str = "mlp.experts.{e}.", router: str = "mlp.gate",
    names: Sequence[str] = ("gate_proj", "down_proj", "up_proj"), *, width: str = "n_ff_exp", when: str = "",
) -> tuple[Role, ...]:
    """Return the router, kept in float32, and gate, down and up of all experts, stacked. `source`: of expert {e}."""
    shapes = {"gate": f"n_expert {width} n_embd", "down": f"n_expert n_embd {width}", "up": f"n_expert {width} n_embd"}
    return (
        tensor("ffn_gate_inp.weight", "n_expert n_embd", f"{router}.weight", f32=True, when=when),
        *(
            tensor(f"ffn_{part}_exps.weight", shape, f"{source}{name}.weight", Stack(), when=when)
            for (part, shape), name in zip(shapes.items(), names, strict=True)
        ),
    )


def or_joined(roles: Sequence[Role], source: str = "mlp.experts.", *, width: str = "n_ff_exp") -> tuple[Role, ...]:
    """Return `roles`, those of `experts`, and beside the stacks of gate and up the one that holds both where the hparam
    `joined` is true: a checkpoint that keeps them so is copied as it is."""
    apart = ("ffn_gate_exps.weight", "ffn_up_exps.weight")
    when = both(roles[0].when, "joined == 1")
    shape = f"n_expert 2*{width} n_embd"
    return (
        *(replace(role, when=both(role.when, "joined == 0")) if role.name in apart else role for role in roles),
        tensor("ffn_gate_up_exps.weight", shape, f"{source}gate_up_proj", when=when),
    )


def selection_bias(source: str, *, optional: bool = False, when: str = "") -> tuple[Role, ...]:
    """Return the bias by which experts are chosen but not weighed (DeepSeek-V3's e_score_correction_bias)."""
    return (tensor("exp_probs_b.bias", "n_expert", source, optional=optional, when=when),)


def shared_experts(
    source: str, names: Sequence[str] = ("gate_proj", "down_proj", "up_proj"), *, width: str, gate: str = "",
    bias: Condition = False, when: str = "",
) -> tuple[Role, ...]:
    """Return the experts that every token passes, `width` wide together; `gate`: the source of the one row that weighs
    them (Qwen2-MoE), which comes first."""
    weighed = tensor("ffn_gate_inp_shexp.weight", "n_embd", f"{gate}.weight", Squeeze(0), f32=True, when=when)
    return (*((weighed,) if gate else ()), *gated(source, names, width=width, bias=bias, when=when, suffix="_shexp"))


def _bias(name: str, shape: str, source: str, layout: Layout, bias: Condition, when: str) -> tuple[Role, ...]:
    if bias is False:
        return ()
    own = "" if bias is True else bias
    return (tensor(f"{name}.bias", shape.split()[0], f"{source}.bias", layout, when=both(when, own)),)
