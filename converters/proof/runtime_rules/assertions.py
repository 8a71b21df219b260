"""What llama.cpp asserts of a file's values, and which tensors its graphs use unasked."""

from __future__ import annotations

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

SEVERAL_AXES = "qwen2vl qwen3vl qwen3vlmoe qwen35 qwen35moe paddleocr hunyuan-vl glm4 glm4moe"
"""Architectures whose heads turn by positions on several axes, where sections are stated."""

EPSILONS = tuple(f"attention.{name}_epsilon" for name in ("layer_norm", "layer_norm_rms", "group_norm"))
"""Keys of what is added to a mean of squares before its root divides."""

WHOLE_HEADS = (
    "llama llama4 deci falcon grok baichuan qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe plamo "
    "codeshell orion internlm2 starcoder2 xverse cohere2moe dbrx olmo olmo2 olmoe arctic deepseek jais2 exaone "
    "exaone4 exaone-moe granite graniteswitch granite_swa chameleon dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe "
    "hunyuan_vl hy_v3 smollm3 dream smallthinker llada llada-moe seed_oss grovemoe apertus cogvlm rnd1 pangu- "
    "embedded mistral3 paddleocr maincoder talkie mellum pockettts "
)  # fmt: skip
"""Architectures whose graphs assert that a head turns whole."""
EQUAL_HEADS = (
    "llama llama4 deci falcon grok gpt2 gptneox mpt baichuan starcoder refact bert modern-bert neo-bert eurobert "
    "bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe clef "
    "qwen4exp phi2 phi3 plamo codeshell orion internlm2 starcoder2 maple xverse command-r cohere2 cohere2moe dbrx "
    "olmo olmo2 olmoe muse-glimmer openelm arctic deepseek chatglm glm4 glm4moe bitnet t5 jais jais2 nemotron "
    "nemotron_h nemotron_h_moe exaone exaone4 exaone-moe granite granitehybrid graniteswitch granite_swa "
    "chameleon bailingmoe2 dots1 arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan_vl hy_v3 smollm3 "
    "dream smallthinker llada llada-moe seed_oss grovemoe apertus minimax-01 minimax-m2 minimax-m3 cogvlm rnd1 "
    "pangu-embedded mistral3 eagle3 dflash paddleocr spark2_5 maincoder talkie mellum nanbeige pockettts "
    "k2-horizon "
)  # fmt: skip
"""Architectures whose graphs assert that keys are as wide as values."""


def _counts(file: File) -> str:
    blocks = int(file.number("block_count", 1))
    if not 0 < blocks <= MOST_LAYERS:
        return f"{blocks} blocks, and it has room for {MOST_LAYERS}"
    return ""


def _experts(file: File) -> str:
    count, used = int(file.number("expert_count")), int(file.number("expert_used_count"))
    groups, groups_used = int(file.number("expert_group_count")), int(file.number("expert_group_used_count"))
    if file.architecture in ("hunyuan-vl", "hunyuan-dense") and count <= 1:
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


def _unbiased(file: File) -> str:
    for block in range(file.blocks):
        name = f"blk.{block}.ssm_conv1d"
        if f"{name}.weight" in file.tensors and f"{name}.bias" not in file.tensors:
            return f"{name} has no bias, which it adds without a look whether there is one"
    return ""


def _sections(file: File) -> str:
    held = file.value("rope.dimension_sections")
    whole = sum(held) if isinstance(held, tuple) and all(isinstance(one, int) for one in held) else 0
    width = _head_width(file)
    return f"rotary sections of {whole} frequencies in heads {width} wide" if whole > width > 0 else ""


def _head_width(file: File) -> int:
    """Return how wide a head is; 0 where the keys leave it to each block."""
    stated, heads = file.value("attention.key_length"), file.value("attention.head_count")
    if isinstance(stated, int):
        return stated
    return int(file.number("embedding_length")) // heads if isinstance(heads, int) and heads else 0


def _whole_heads(file: File) -> str:
    turned, width = int(file.number("rope.dimension_count")), _head_width(file)
    apart = turned and width and turned != width and not file.number("rope.dimension_count_swa")
    return f"{turned} of {width} columns of a head turn: it asserts that all do" if apart else ""


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


_NORMED = "../ggml/src/ggml-cpu/ops.cpp ggml_compute_forward_rms_norm_f32"
_LOADED = "llama-model.cpp llama_model_base::load_hparams"
RULES = (
    Rule("aborts", "*", _counts, (_LOADED,)),
    Rule("aborts", "*", _experts, (_LOADED,)),
    Rule("aborts", "*", _negative_epsilon, (_NORMED,)),
    Rule("unsafe", "*", _zero_epsilon, (_NORMED,)),
    Rule("aborts", "*", _context, ("llama-context.cpp llama_init_from_model",)),
    Rule(
        "aborts", UNBIASED, _unbiased,
        (
            "models/mamba-base.cpp llm_build_mamba_base::build_mamba2_layer",
            "models/falcon-h1.cpp llama_model_falcon_h1::load_arch_tensors",
            "models/granite-hybrid.cpp llama_model_granite_hybrid::load_arch_tensors",
            "models/nemotron-h.cpp llama_model_nemotron_h::load_arch_tensors",
        ),
    ),
    Rule("aborts", SEVERAL_AXES, _sections, ("../ggml/src/ggml-cpu/ops.cpp ggml_mrope_cache_init",)),
    Rule("aborts", WHOLE_HEADS, _whole_heads, ()),
    Rule("aborts", EQUAL_HEADS, _equal_heads, ()),
    Rule("aborts", SHARED_CACHES, _shared_caches, CACHES_READ),
)  # fmt: skip
