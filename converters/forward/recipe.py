"""How a model computes, as data: the conventions in which model families and dialects differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Recipe:
    """Conventions of one forward pass. Numbers (sizes, scales, caps, windows) are hparams; tensors are named by role,
    and what a file may or may not have (biases, norms before or after) is used where it is there.

    `computation`: the module of this folder that computes the logits.
    `norm`: 'rms' | 'layer'. `norm_weights`: the norms have weights. `norm_offset`: what is added to each of them
    (Hugging Face's Gemma stores the distance from one). `pre_norm`: attention and feed-forward read a normed input.
    `qk_norm`: queries and keys are normed where they have norms, 'head' by head or the 'full' width at once, or
    'unweighted': head by head, without weights, in the blocks that turn them (the hparam `qk_norms` wins).
    `qk_norm_at`: 'before' rope | 'after'. `v_norm`: values are normed head by head, without weights.
    `window`: what `n_swa` counts: 'sliding', back from each position | 'chunked', the positions seen begin anew.
    `temperature`: queries grow with their position, by `temperature_scale` beyond `temperature_length`: 'none' | in
    'all' blocks | in the 'unrotated' ones. `attn_gate`: 'none' | 'query' (each head of the query projection holds a
    gate for what it attends to). `gate_activation`: 'sigmoid' | 'softplus', of that gate, or of the tensor `attn_gate`.
    `ffn_norm`: the tensor that norms what the feed-forward reads.
    `rope`: 'pairs' (2i, 2i+1 turn together: Meta, GGML, GGUF's llama) | 'halves' (i, i+d/2: Hugging Face, NeoX) |
    'none'. `qkv`: 'separate' | 'fused' (queries, keys, values one below the other) | 'grouped' (fused, but group by
    group: the queries of the heads that share a key, that key, its value).
    `alibi`: the bias of distance, where there is one, is added to the scores 'after' they are scaled | 'before'.
    `transposed`: linear layers by role whose matrices hold a column an output (GPT-2's Conv1D).
    `attention`: 'grouped' | 'latent' (DeepSeek's, keys and values expanded from a joint low rank). `latent_kv`: the
    expansion is 'split' (a matrix a head for keys, transposed, and one for values) | 'joint' (rows of each head's
    keys, then its values).
    `indexer_rope`: as `rope`, of the indexer that chooses what attention looks at.
    `delta_projections`: a gated delta net's queries, keys, values and gates come from matrices that are 'separate' (the
    gates from one of their own) | 'grouped' (one for all, group by group: the heads that share a key). `delta_values`:
    value heads of one key are 'grouped' (one after the other) | 'tiled' (every n-th).
    `ffn`: 'gated' (down(act(gate) · up)) | 'plain' (down(act(up))) | 'fused' (gated, gate and up in one matrix).
    `glu`: act(gate) and up are 'multiplied' | 'clamped' (gpt-oss: both to a limit, up + 1).
    `activation`: 'silu' | 'gelu' | 'gelu_tanh' | 'relu' | 'relu_squared' | 'xielu'; the hparam wins.
    `residual`: 'sequential' | 'parallel' (both branches read the block's input) | 'single' (a block has one branch);
    the hparam `parallel_residual` wins.
    `embedding_scale`: 'none' | 'sqrt_width'. `logit_scale`: 'multiply' | 'divide' by the hparam of that name.
    `expert_norm`: weights of the chosen experts are made to sum to one; the hparam wins. `routing`: the score of an
    expert: 'softmax' | 'sigmoid' | 'chosen' (softmax over the chosen alone) | 'root_softplus' | 'sparsemixer'; the
    hparam `expert_gating` wins. `expert_weight`: multiplies the expert's 'output' | its 'input'. `expert_rows`: its
    matrices hold a row an output (else a column). `gate_up`: those of gate and up are 'separate' | one matrix, gate
    then up in 'halves' | 'alternating'.
    `wkv`: 'rwkv4' | 'rwkv6' | 'rwkv7', the recurrence of RWKV. `decay`: the state's is stored as the 'rate' (-exp(w)) |
    as w, its 'log'. `rescaled`: weights are already divided as `rescale_every` asks.
    """

    computation: str = "decoder"
    norm: str = "rms"
    norm_weights: bool = True
    norm_offset: float = 0.0
    pre_norm: bool = True
    qk_norm: str = "head"
    qk_norm_at: Literal["before", "after"] = "before"
    v_norm: bool = False
    rope: str = "pairs"
    qkv: str = "separate"
    alibi: str = "after"
    transposed: tuple[str, ...] = ()
    attention: str = "grouped"
    latent_kv: str = "split"
    indexer_rope: str = "halves"
    delta_projections: str = "separate"
    delta_values: str = "grouped"
    window: Literal["sliding", "chunked"] = "sliding"
    temperature: Literal["none", "all", "unrotated"] = "none"
    attn_gate: Literal["none", "query"] = "none"
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    ffn_norm: Literal["ffn_norm", "post_attention_norm"] = "ffn_norm"
    ffn: str = "gated"
    glu: Literal["multiplied", "clamped"] = "multiplied"
    activation: str = "silu"
    residual: str = "sequential"
    embedding_scale: str = "none"
    logit_scale: str = "multiply"
    expert_norm: bool = False
    routing: Literal["softmax", "sigmoid", "chosen", "root_softplus", "sparsemixer"] = "softmax"
    expert_weight: Literal["output", "input"] = "output"
    expert_rows: bool = True
    gate_up: Literal["separate", "halves", "alternating"] = "separate"
    wkv: str = ""
    decay: str = "log"
    rescaled: bool = False


def recipe_of(*layers: Mapping[str, Any]) -> Recipe:
    """A recipe from an architecture's base conventions and what a dialect does differently."""
    known = {field.name for field in fields(Recipe)}
    recipe = Recipe()
    for conventions in layers:
        unknown = set(conventions) - known
        if unknown:
            raise ValueError(f"no such convention: {sorted(unknown)[0]}")
        recipe = replace(recipe, **conventions)
    return recipe
