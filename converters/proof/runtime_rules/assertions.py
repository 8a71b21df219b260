"""What llama.cpp asserts of a file's values, and which tensors its graphs use unasked."""

from __future__ import annotations

from ggferry.converters.proof.runtime_rules.listed import asserting
from ggferry.converters.proof.runtime_rules.rule import File, Rule

MOST_LAYERS, MOST_EXPERTS = 512, 1024
"""LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS (llama-hparams.h)."""
SHARED_CACHES = "gemma3n gemma4"
CACHES_READ = (
    "llama-model.cpp llama_model::create_memory",
    "models/gemma3n.cpp llama_model_gemma3n::load_arch_hparams",
    "models/gemma4.cpp llama_model_gemma4::load_arch_hparams",
)
GEMMA_3N_OWN = 20
"""Blocks with keys and values of their own in every gemma3n (gemma3n.cpp)."""
UNBIASED = "falcon-h1 granitehybrid nemotron_h nemotron_h_moe"
"""Architectures whose loader does not require the bias of a convolution that the graph adds."""

SEVERAL_AXES = "qwen2vl qwen3vl qwen3vlmoe qwen35 qwen35moe paddleocr hunyuan_vl glm4 glm4moe"
"""Architectures whose heads turn by positions on several axes, where sections are stated."""

OF_BOTH_KINDS = (
    "bailingmoe3 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe minimax-01 nemotron_h nemotron_h_moe "
    "plamo2 qwen35 qwen35moe qwen3next"
)
"""Architectures whose blocks either attend or keep a state (llama-arch.cpp, `llm_arch_is_hybrid`), but for those whose
blocks do both."""
STATE = ("ssm_out.weight", "ssm_norm.weight", "shortconv.conv.weight", "attn_norm_2.weight")
"""Tensors of which a block that keeps a state has one in these architectures."""

ROTATED = ("rope.dimension_count", "rope.dimension_count_swa")
"""Keys of how many columns of a head turn."""
EPSILONS = tuple(f"attention.{name}_epsilon" for name in ("layer_norm", "layer_norm_rms", "group_norm"))
"""Keys of what is added to a mean of squares before its root divides."""

WHOLE_HEADS = asserting(r"graph n_embd_head == n_rot")
"""Architectures whose graphs assert that a head turns whole."""
EQUAL_HEADS = asserting(
    r"graph (n_embd_head == hparams\.n_embd_head_[kv]\(\)|hparams\.n_embd_head_v\(\) == hparams\.n_embd_head_k\(\))"
    r"|loader (n_embd_v_gqa == n_embd_k_gqa|.* requires n_embd_head_k == n_embd_head_v\")"
)
"""Architectures that assert that keys are as wide as values."""
WITH_EXPERTS = asserting(
    r"loader .*(n_expert must be > 0|n_expert && n_expert_used|n_expert and n_expert_used|zero experts).*"
)
"""Architectures that assert that blocks behind the dense ones have experts."""
TWICE_AS_WIDE = asserting(r"loader (2 \* n_embd == d_inner|\"only an expansion factor of 2 .*)")
LATENT_HEADS = asserting(r"loader n_embd_head_qk_nope >= 1")
DENSE_LEAD = ("lfm2", "lfm2moe")
"""Architectures in which all blocks are dense where no key says how many."""


def _counts(file: File) -> str:
    blocks = int(file.number("block_count", 1))
    if not 0 < blocks <= MOST_LAYERS:
        return f"{blocks} blocks, and it has room for {MOST_LAYERS}"
    loops = int(file.number("num_loops", 1))
    if loops > 1 and blocks * loops > MOST_LAYERS:
        return f"{blocks} blocks in {loops} loops, and it has room for {MOST_LAYERS}"
    return ""


def _experts(file: File) -> str:
    count, used = int(file.number("expert_count")), int(file.number("expert_used_count"))
    groups, groups_used = int(file.number("expert_group_count")), int(file.number("expert_group_used_count"))
    if file.architecture in ("hunyuan_vl", "hunyuan-dense") and count <= 1:
        count = used = 0
    if count > MOST_EXPERTS:
        return f"{count} experts, and it has room for {MOST_EXPERTS}"
    if count == 0:
        return f"{used or groups} used experts or groups of them without experts" if used or groups else ""
    if not 0 < used <= count:
        return f"{used} of {count} experts are used"
    if groups >= count:
        return f"{groups} groups of {count} experts: it asserts that a group has several"
    if groups > 1 and count % groups:
        return f"{count} experts in {groups} groups"
    if groups > 1 and not 0 < groups_used < groups:
        return f"{groups_used} of {groups} groups of experts are used: it asserts that fewer are used than there are"
    return ""


def _negative_epsilon(file: File) -> str:
    below = [key for key in EPSILONS if file.number(key) < 0]
    return f"{below[0]} {file.number(below[0]):g}: it asserts that none is negative" if below else ""


def _zero_epsilon(file: File) -> str:
    zero = [key for key in EPSILONS if file.value(key) is not None and file.number(key) == 0]
    return f"{zero[0]} 0: a row of zeros would be divided by zero" if zero else ""


def _context(file: File) -> str:
    none = file.value("context_length") is not None and file.number("context_length") == 0
    return "context_length 0: it makes no context, unless it is told another length" if none else ""


def _no_experts(file: File) -> str:
    blocks = int(file.number("block_count"))
    dense = int(file.number("leading_dense_block_count", blocks if file.architecture in DENSE_LEAD else 0))
    return "" if file.number("expert_count") or dense >= blocks else "no experts: it asserts that there are some"


def _twice_as_wide(file: File) -> str:
    inner, width = int(file.number("ssm.inner_size")), int(file.number("embedding_length"))
    return f"a state space {inner} wide for a model of {width}: it loads twice that only" if inner != 2 * width else ""


def _latent_heads(file: File) -> str:
    width, rotated = int(file.number("attention.key_length_mla")), int(file.number("rope.dimension_count"))
    return f"{rotated} of {width} columns of a key turn: it asserts that one does not" if 0 < width <= rotated else ""


def _equal_window_heads(file: File) -> str:
    keys, values = (int(file.number(f"attention.{name}_length_swa")) for name in ("key", "value"))
    apart = keys and values and keys != values
    return f"keys {keys} wide and values {values} in blocks with a window: it asserts one width" if apart else ""


def _added_layers(file: File) -> str:
    width = int(file.number("embedding_length"))
    for key in ("dense_2_feat_in", "dense_3_feat_out"):
        if file.number(key) not in (0, width):
            return f"{key} is {file.number(key):.0f} in a model of {width}: it asserts that they are equal"
    return ""


def _three_layers(file: File) -> str:
    held = file.value("target_layers")
    return (
        f"{len(held)} layers of the target are read: it wants 3" if isinstance(held, tuple) and len(held) != 3 else ""
    )


def _chooses(file: File) -> str:
    """The indexers of Hunyuan 4: a key turns in part, and the first block has one of its own."""
    if not file.number("attention.indexer.top_k"):
        return ""
    width, rotated = int(file.number("attention.indexer.key_length")), int(file.number("rope.dimension_count"))
    if width <= rotated:
        return f"{rotated} of {width} columns of an indexer's key turn: it asserts that one does not"
    own = file.value("attention.indexer.types")
    first = own[0] if isinstance(own, tuple) and own else True
    return "" if first else "block 0 has no indexer of its own: it asserts that it has"


def _known_activation(file: File) -> str:
    name = file.text("hidden_activation")
    return "" if name in ("", "silu", "gelu", "gelu_pytorch_tanh") else f"the activation {name!r}, which it has not"


def _without_original(file: File) -> str:
    """A scale that grows with the position, by the context before it was stretched."""
    scaled = file.number("attention.temperature_scale") and not file.number("rope.scaling.original_context_length")
    return "scores grow with the position by an original context that no key states" if scaled else ""


def _unbiased(file: File) -> str:
    for block in range(file.blocks):
        name = f"blk.{block}.ssm_conv1d"
        if f"{name}.weight" in file.tensors and f"{name}.bias" not in file.tensors:
            return f"{name} has no bias, which it adds without a look whether there is one"
    return ""


def _one_kind(file: File) -> str:
    """The inputs of the kind that no block has are given no buffer, and are set all the same.

    Seen in b11549 with every architecture of `OF_BOTH_KINDS` of which transformers makes such a model.
    """
    kinds = set()
    for block in range(file.blocks):
        state = any(f"blk.{block}.{name}" in file.tensors for name in STATE)
        if state or (f"blk.{block}.attn_output.weight" in file.tensors and not _predicts(file, block)):
            kinds.add(state)
    if len(kinds) != 1:
        return ""
    return f"all blocks {'keep a state and none attends' if kinds.pop() else 'attend and none keeps a state'}"


def _predicts(file: File, block: int) -> bool:
    return f"blk.{block}.nextn.eh_proj.weight" in file.tensors


def _sections(file: File) -> str:
    held = file.value("rope.dimension_sections")
    whole = sum(held) if isinstance(held, tuple) and all(isinstance(one, int) for one in held) else 0
    width = _head_width(file)
    return f"rotary sections of {whole} frequencies in heads {width} wide" if whole > width > 0 else ""


def _head_width(file: File) -> int:
    """Return how wide a head is; 0 where the keys leave it to each block."""
    declared, heads = file.value("attention.key_length"), file.value("attention.head_count")
    if isinstance(declared, int):
        return declared
    return int(file.number("embedding_length")) // heads if isinstance(heads, int) and heads else 0


def _whole_heads(file: File) -> str:
    rotated, width = int(file.number("rope.dimension_count")), _head_width(file)
    apart = rotated and width and rotated != width and not file.number("rope.dimension_count_swa")
    return f"{rotated} of {width} columns of a head turn: it asserts that all do" if apart else ""


def _pairs(file: File) -> str:
    odd = [key for key in ROTATED if int(file.number(key)) % 2]
    return f"{odd[0]} {file.number(odd[0]):.0f}: it asserts that columns turn in pairs" if odd else ""


def _equal_heads(file: File) -> str:
    keys, values = (int(file.number(f"attention.{name}_length")) for name in ("key", "value"))
    return f"keys {keys} wide and values {values}: it asserts one width" if keys and values and keys != values else ""


def _shared_caches(file: File) -> str:
    """A block without keys and values of its own takes the cache of one that must be there and of its kind."""
    own, windows = own_caches(file)
    if own < 2:
        return f"{own} of {file.blocks} blocks have keys and values of their own: it asserts at least two"
    for block in range(own, len(windows)):
        source = own - (2 if windows[block] else 1)
        if windows[source] != windows[block]:
            kinds = ("without a window", "with one") if windows[source] else ("with a window", "without one")
            return f"block {block}, {kinds[0]}, would take over keys and values of block {source}, {kinds[1]}"
    return ""


def own_caches(file: File) -> tuple[int, list[bool]]:
    """Return how many blocks have keys and values of their own, and which of all have a window."""
    count = file.blocks
    taken = int(file.number("attention.shared_kv_layers"))
    own = GEMMA_3N_OWN if file.architecture == "gemma3n" else int(file.number("block_count")) - taken
    windows = file.flags("attention.sliding_window_pattern", count)
    return own, windows if own <= count else []


def _pictures_at_the_end(file: File) -> str:
    """Qwen3-VL's last block hands on the rows of chosen tokens only.

    Features of every token would be added to them (models/qwen3vl.cpp).
    """
    features, blocks = int(file.number("n_deepstack_layers")), int(file.number("block_count"))
    found = 0 < blocks <= features
    return (
        f"features of pictures are added behind {features} blocks: it asserts that the last has none" if found else ""
    )


_NORMED = "../ggml/src/ggml-cpu/ops.cpp ggml_compute_forward_rms_norm_f32"
_LOADED = "llama-model.cpp llama_model_base::load_hparams"
RULES = (
    Rule("aborts", "*", _counts, (_LOADED,)),
    Rule("aborts", "*", _experts, (_LOADED,)),
    Rule("aborts", "*", _negative_epsilon, (_NORMED,)),
    Rule("unsafe", "*", _zero_epsilon, (_NORMED,)),
    Rule("aborts", "*", _context, ("llama-context.cpp llama_init_from_model",)),
    Rule(
        "aborts",
        UNBIASED,
        _unbiased,
        (
            "models/mamba-base.cpp llm_build_mamba_base::build_mamba2_layer",
            "models/falcon-h1.cpp llama_model_falcon_h1::load_arch_tensors",
            "models/granite-hybrid.cpp llama_model_granite_hybrid::load_arch_tensors",
            "models/nemotron-h.cpp llama_model_nemotron_h::load_arch_tensors",
        ),
    ),
    Rule("aborts", OF_BOTH_KINDS, _one_kind, ("llama-model.cpp llama_model::create_memory",)),
    Rule("aborts", SEVERAL_AXES, _sections, ("../ggml/src/ggml-cpu/ops.cpp ggml_mrope_cache_init",)),
    Rule("aborts", "qwen3vl qwen3vlmoe", _pictures_at_the_end, ()),
    Rule("aborts", WHOLE_HEADS, _whole_heads, ()),
    Rule("aborts", "*", _pairs, ("../ggml/src/ggml-cpu/ops.cpp ggml_compute_forward_rope_flt",)),
    Rule("aborts", EQUAL_HEADS, _equal_heads, ()),
    Rule("aborts", "gemma4 gemma4-assistant", _equal_window_heads, ()),
    Rule("aborts", WITH_EXPERTS, _no_experts, ()),
    Rule("aborts", TWICE_AS_WIDE, _twice_as_wide, ()),
    Rule("aborts", LATENT_HEADS, _latent_heads, ()),
    Rule("aborts", "hy_v4", _chooses, ()),
    Rule("aborts", "dflash", _known_activation, ()),
    Rule("aborts", "gemma-embedding", _added_layers, ()),
    Rule("aborts", "eagle3", _three_layers, ()),
    Rule("aborts", "mistral3", _without_original, ("models/mistral3.cpp llama_model_mistral3::load_arch_hparams",)),
    Rule("aborts", SHARED_CACHES, _shared_caches, CACHES_READ),
)
