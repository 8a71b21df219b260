"""How a model computes, as data: the conventions in which model families and dialects differ.

A new word is added to its `Literal` here, and to the forward pass where it is read (`converters/forward/`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints

from ggferry.support.places import BadWord
from ggferry.support.records import dataclass

Norm = Literal["rms", "layer"]
QkNorm = Literal["head", "full", "layer", "gain", "unweighted"]
"""How queries and keys that have norms are normalized: head by head, or the full width at once. 'layer': head by head
by layer norms with torch's epsilon, whatever the others have (Chameleon). 'gain': all are, head by head without
weights, and queries are multiplied by a number for each head (Talkie). 'unweighted': all are, head by head without
weights, in the blocks that rotate them (the hparam `qk_norms` wins)."""
QkNormAt = Literal["before", "after"]
"""Whether queries and keys are normalized before or after the rotation."""
Rope = Literal["pairs", "halves", "none", "by_axes"]
"""Which columns rotate together: 'pairs' (2i, 2i+1: Meta, GGML, GGUF's llama), 'halves' (i, i+d/2: Hugging Face,
NeoX); 'by_axes': halves where a position has several axes (the hparam `rope_sections`), else pairs."""
RopeDirection = Literal["forward", "backward"]
"""Whether the angle grows or falls with the position."""
Skip = Literal["none", "embedding"]
"""'embedding': the embeddings are normalized, and every block adds a share of them, `layer_output_scale` (Talkie)."""
Qkv = Literal["separate", "fused", "gated", "grouped", "joint_kv", "ranks", "shards"]
"""'fused': one matrix of all queries, then all keys, then all values; 'gated': the same behind a gate for each value
(HRM-Text); 'grouped': one matrix, group by group: the
queries of the heads that share a key, that key, its value; 'joint_kv': queries apart, one matrix of all keys, then all
values; 'ranks': one matrix, rank by rank of tensor parallelism (the hparam `n_ranks`): a rank's queries, its keys, its
values; 'shards': one matrix of four parts, each of queries, values, keys."""
Alibi = Literal["after", "before"]
"""Whether the bias of distance, if there is one, is added to the scores after or before they are scaled."""
Attention = Literal["grouped", "latent"]
"""'latent': DeepSeek's, whose keys and values are expanded from a joint low rank."""
LatentKv = Literal["split", "joint"]
"""The matrices of that expansion: 'split': for each head one for keys, transposed, and one for values; 'joint': one
matrix, with the rows of each head's keys, then its values."""
Window = Literal["sliding", "chunked"]
"""What `n_swa` counts: the positions seen back from each one, or the length of chunks that do not see each other."""
Temperature = Literal["none", "all", "unrotated", "logarithm"]
"""In which blocks queries grow with their position (by `temperature_scale`, beyond `temperature_length`): in none, in
all, in those that do not rotate them. 'logarithm': in all, in proportion to its logarithm (Grok 2)."""
GroupRank = Literal["gating", "two"]
"""By what a group of experts is ranked. 'gating': its best expert where softmax scores experts, and the sum of its best
two where by sigmoid (DeepSeek V2 and V3). 'two': the sum of its best two, whatever scores them (Mistral 4)."""
QueryHeads = Literal["grouped", "tiled"]
"""Whether the heads that share a key are consecutive, or every n-th."""
PostNorms = Literal["same", "fifths"]
"""What is added to the weights of the norms behind a branch: what is to the others, or 1/5 behind attention and 1/5^1.5
behind the network (PLaMo 2 and 3 store the difference from that)."""
AttnGate = Literal["none", "query"]
"""'query': each head of the query projection also holds a gate for the head's output."""
GateActivation = Literal["sigmoid", "softplus"]
"""The activation of that gate, or of the tensor `attn_gate`."""
OutputNorm = Literal["output", "embedding", "encoder"]
"""The tensor that normalizes the last block's result: llama.cpp names LFM2's as if it were a norm of the embedding, and
NeoBERT's as an encoder's."""
FfnNorm = Literal["ffn_norm", "post_attention_norm", "attn_output_norm"]
"""The tensor that normalizes the input of the feed-forward."""
IndexerTurns = Literal["first", "last"]
"""Which columns of the indexer's heads turn, where some do not."""
IndexerQk = Literal["apart", "joint"]
"""Whether an indexer that averages keys has a matrix for queries and one for keys, or one of both."""
DeltaProjections = Literal["separate", "grouped"]
"""How a gated delta net projects queries, keys, values and the output's gate: 'separate': the gate has a matrix of its
own; 'grouped': one matrix for all, group by group, where a group is the heads that share a key."""
DeltaValues = Literal["grouped", "tiled"]
"""Whether the value heads of one key are consecutive, or every n-th."""
DeltaGate = Literal["silu", "sigmoid"]
"""The activation of the gate behind a gated delta net."""
Ffn = Literal["gated", "plain", "fused"]
"""down(act(gate) · up), down(act(up)), or gated with gate and up in one matrix."""
Glu = Literal["multiplied", "clamped"]
"""How act(gate) is combined with up; 'clamped': as in gpt-oss, both clamped to a limit, and up + 1."""
Limited = Literal["before", "after"]
"""Where the hparams `expert_limit` and `shared_limit` bound an expert's gate from above: before its activation or after
it. They bound its up on both sides."""
Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu_squared", "xielu"]
Classifier = Literal["tanh", "gelu", "silu"]
"""The activation behind the first layer of a classifier. The hparam `classifier_activation` wins."""
BatchNorm = Literal["folded", "running"]
"""Whether a batch norm is a factor and a shift, or is given by what training left: weight, bias, mean, variance."""
QueryScales = Literal["positive", "raw"]
"""Whether the factors of a query's columns are stored as they are, or softplus of what is stored (Gemma 4's audio
encoder)."""
Axes = Literal["apart", "in_turn"]
"""Of a rotation of pairs along two axes, whether those of one stand before those of the other, or they take turns."""
Patches = Literal["planes", "pixels"]
"""A kernel of patches: three planes, or a row of pixels, the colors of each side by side."""
Rows = Literal["logits", "states"]
"""What a model gives for each token. One whose texts are pooled gives states."""
Residual = Literal["sequential", "parallel", "single", "normed"]
"""'parallel': both branches read the block's input; 'single': a block has one branch; 'normed': each branch is added to
the normed input that it read, times `residual_scale` (MiniMax-01)."""
EmbeddingScale = Literal["none", "sqrt_width", "normed"]
"""'normed': embeddings are normalized, without weights."""
LogitScale = Literal["multiply", "divide"]
Routing = Literal["softmax", "sigmoid", "chosen", "root_softplus", "sparsemixer"]
"""The score of an expert; 'chosen': softmax over the chosen experts only. The hparam `expert_gating` wins."""
SharedExperts = Literal["added", "averaged"]
"""How the output of shared experts is combined with that of the chosen ones."""
RouterReads = Literal["normed", "start"]
"""What the router reads: what its experts read, or the block's input as it is."""
ExpertWeight = Literal["output", "input"]
"""Whether an expert's weight multiplies its output or its input."""
GateUp = Literal["separate", "halves", "alternating"]
"""An expert's gate and up: two matrices, or one with the rows of gate and then those of up, or alternating rows."""
Wkv = Literal["", "rwkv4", "rwkv6", "rwkv7"]
"""The recurrence of RWKV."""
MixOrder = Literal["wkvrg", "rkvwg"]
"""In which order RWKV-6's low-rank mixing has decay, key, value, receptance and gate."""
Decay = Literal["rate", "log"]
"""Whether the state's decay is stored as the rate -exp(w), or as its logarithm w."""

FurtherReads = Literal["normed", "raw"]
"""Whether a block that predicts further tokens reads the states of the block before it normalized, or as they are."""
DraftRows = Literal["ids", "offsets"]
"""What the tensor `d2t` of a draft with a vocabulary of its own holds for each row of its output: the target's id of
the token, or how far that id is ahead of the row's number."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Conventions of one forward pass.

    Numbers (sizes, scales, caps, windows) are hparams; tensors are named by role, and those that a file may lack
    (biases, norms before or after) are used where they are present. An hparam wins over `norm`, `activation`,
    `expert_norm` and, by the name `parallel_residual`, over `residual`. Fields without a line here are described at
    their types above.

    Attributes:
        computation: The module of `converters/forward/computations` that computes the logits, or the full name of one
            elsewhere.
        norm_weights: Whether the norms have weights.
        norm_offset: What is added to each of these weights (Hugging Face's Gemma stores the difference from one).
        offset_norms: The norms to which it is added, by the last part of their role; empty for all.
        pre_norm: Whether attention and feed-forward read a normalized input.
        v_norm: Whether values are normalized head by head, without weights.
        rope: How queries and keys are rotated.
        transposed: Linear layers, by role, whose matrices hold one column for each output (GPT-2's Conv1D).
        position_offset: Row of the learned positions that the first token has.
        indexer_rope: As `rope`, for the indexer that chooses what attention sees.
        logit_scale: How the hparam of that name is applied.
        expert_norm: Whether the weights of the chosen experts are scaled to sum to one.
        expert_rows: Whether an expert's matrices hold one row for each output (else one column).
        vision: Of an mmproj file, the module of `converters/forward/towers` of the vision encoder.
        audio: That of the audio encoder.
        rescaled: Whether the weights are already divided as `rescale_every` asks.
    """

    computation: str = "decoder"
    norm: Norm = "rms"
    norm_weights: bool = True
    norm_offset: float = 0.0
    offset_norms: tuple[str, ...] = ()
    post_norms: PostNorms = "same"
    pre_norm: bool = True
    qk_norm: QkNorm = "head"
    qk_norm_at: QkNormAt = "before"
    v_norm: bool = False
    rope: Rope = "pairs"
    rope_direction: RopeDirection = "forward"
    skip: Skip = "none"
    qkv: Qkv = "separate"
    query_heads: QueryHeads = "grouped"
    alibi: Alibi = "after"
    transposed: tuple[str, ...] = ()
    position_offset: int = 0
    attention: Attention = "grouped"
    latent_kv: LatentKv = "split"
    indexer_rope: Rope = "halves"
    indexer_turns: IndexerTurns = "first"
    indexer_qk: IndexerQk = "apart"
    delta_projections: DeltaProjections = "separate"
    delta_values: DeltaValues = "grouped"
    delta_gate: DeltaGate = "silu"
    window: Window = "sliding"
    temperature: Temperature = "none"
    group_rank: GroupRank = "gating"
    attn_gate: AttnGate = "none"
    gate_activation: GateActivation = "sigmoid"
    ffn_norm: FfnNorm = "ffn_norm"
    output_norm: OutputNorm = "output"
    ffn: Ffn = "gated"
    glu: Glu = "multiplied"
    limited: Limited = "before"
    activation: Activation = "silu"
    residual: Residual = "sequential"
    embedding_scale: EmbeddingScale = "none"
    logit_scale: LogitScale = "multiply"
    expert_norm: bool = False
    routing: Routing = "softmax"
    router_reads: RouterReads = "normed"
    shared_experts: SharedExperts = "added"
    expert_weight: ExpertWeight = "output"
    expert_rows: bool = True
    gate_up: GateUp = "separate"
    wkv: Wkv = ""
    decay: Decay = "log"
    mix_order: MixOrder = "wkvrg"
    rescaled: bool = False
    classifier: Classifier = "tanh"
    rows: Rows = "logits"
    draft_rows: DraftRows = "ids"
    further_reads: FurtherReads = "normed"
    vision: str = ""
    audio: str = ""
    batch_norm: BatchNorm = "folded"
    query_scales: QueryScales = "positive"
    axes: Axes = "apart"
    patches: Patches = "planes"


class Conventions(TypedDict, total=False):
    """What a table states of a `Recipe`: any of its fields, each with its type (`tests/laws/test_tables.py`)."""

    computation: str
    norm: Norm
    norm_weights: bool
    norm_offset: float
    offset_norms: tuple[str, ...]
    post_norms: PostNorms
    pre_norm: bool
    qk_norm: QkNorm
    qk_norm_at: QkNormAt
    v_norm: bool
    rope: Rope
    rope_direction: RopeDirection
    skip: Skip
    qkv: Qkv
    query_heads: QueryHeads
    alibi: Alibi
    transposed: tuple[str, ...]
    position_offset: int
    attention: Attention
    latent_kv: LatentKv
    indexer_rope: Rope
    indexer_turns: IndexerTurns
    indexer_qk: IndexerQk
    delta_projections: DeltaProjections
    delta_values: DeltaValues
    delta_gate: DeltaGate
    window: Window
    temperature: Temperature
    group_rank: GroupRank
    attn_gate: AttnGate
    gate_activation: GateActivation
    ffn_norm: FfnNorm
    output_norm: OutputNorm
    ffn: Ffn
    glu: Glu
    limited: Limited
    activation: Activation
    residual: Residual
    embedding_scale: EmbeddingScale
    logit_scale: LogitScale
    expert_norm: bool
    routing: Routing
    router_reads: RouterReads
    shared_experts: SharedExperts
    expert_weight: ExpertWeight
    expert_rows: bool
    gate_up: GateUp
    wkv: Wkv
    decay: Decay
    mix_order: MixOrder
    rescaled: bool
    classifier: Classifier
    rows: Rows
    draft_rows: DraftRows
    further_reads: FurtherReads
    vision: str
    audio: str
    batch_norm: BatchNorm
    query_scales: QueryScales
    axes: Axes
    patches: Patches


def recipe_of(*layers: Conventions) -> Recipe:
    """Return the recipe of an architecture's base conventions, overridden by those of a dialect.

    Raises ValueError (BadWord), whose message ends in the word, for an unknown convention or value.
    """
    recipe = Recipe()
    for conventions in layers:
        for name, value in conventions.items():
            _check(name, value)
        recipe = replace(recipe, **conventions)
    return recipe


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Recipe)


def _check(name: str, value: object) -> None:
    if name not in _types():
        raise BadWord("no such convention", name)
    kind, word = _types()[name], value if isinstance(value, str) else repr(value)
    if get_origin(kind) is Literal:
        known = get_args(kind)
        if value not in known:
            raise BadWord(f"no such {name}, known are {', '.join(map(repr, known))}", word)
    elif get_origin(kind) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise BadWord(f"{name} is a tuple of names", word)
    elif not isinstance(value, int | float if kind is float else kind):
        raise BadWord(f"{name} is a {kind.__name__}", word)
