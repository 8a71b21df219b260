"""How much memory a model takes while it runs: its weights, and the cache of keys, values and states.

The cache is what llama.cpp allocates for one sequence with flash attention (b11549: src/llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp, llama-hparams.cpp n_embd_r and n_embd_s); buffers of the
computation come on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.formats.gguf.values import Value
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockError, BlockType
from ggferry.support.records import dataclass

CONTEXTS = (4096, 32768)
"""Lengths that are shown beside the one the model was made for."""
CACHE_TYPES = ("f16", "q8_0", "q4_0")
ALL_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Types that llama.cpp's --cache-type-k and -v take (common/arg.cpp, kv_cache_types)."""
MOST_BLOCKS = 10_000  # llama.cpp takes 512
PAD, BATCH = 256, 512  # cells are whole pads; a window's cache has room for a batch (--ubatch-size)
LLAMA_4 = 8192  # its window in src/models/llama4.cpp, whatever the file states
_BOTH = ("falcon-h1",)  # architectures whose every block attends and has a state
_STATES = ("mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7")  # none of whose blocks attends
_ENCODERS = (
    "bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "eurobert",
    "modern-bert",
    "gemma-embedding",
    "dream",
    "llada",
    "llada-moe",
    "rnd1",
    "t5encoder",
)
_WINDOWLESS = (
    "llama",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "starcoder2",
    "smollm3",
    "mistral3",
    "dots1",
    "arctic",
    "phi3",
)
"""Architectures for which llama.cpp has no window, whatever the file states."""
_UNKNOWN = ("t5", "whisper", "deepseek4", "hy-v4", "minimax-m3", "minimax-text-01", "plamo3", "rwkv")


@dataclass(frozen=True, slots=True)
class Cache:
    """What a context takes.

    Attributes:
        context: Tokens.
        type: Type of the cached keys and values; states are float32.
        attention: Bytes of keys and values.
        states: Bytes of recurrent states.
    """

    context: int
    type: str
    attention: int
    states: int

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.attention + self.states


@dataclass(frozen=True, slots=True)
class _Block:
    """What one block caches: elements of a cell's key and value, whether a window bounds the cells, state numbers."""

    key: int
    value: int
    window: bool
    state: int


class UnknownCache(Exception):
    """What a model of this kind caches is not known here; the message says why."""


def keys_of(graph: ModelGraph) -> dict[str, Any]:
    """Return GGUF's keys without the architecture → value, also for those that a file need not state."""
    sizes, prefix = graph.sizes, f"{graph.architecture.name}."
    known = {spec.key: sizes[spec.name] for spec in graph.architecture.hparams if spec.key and spec.name in sizes}
    declared = {
        key.removeprefix(prefix): value.data
        for key, value in graph.checkpoint.metadata.items()
        if isinstance(value, Value) and key.startswith(prefix)
    }
    return {**declared, **{key: value for key, value in known.items() if value is not None}}


def cache(architecture: str, keys: Mapping[str, Any], context: int, type_name: str) -> Cache:
    """Return what a context of so many tokens takes.

    Args:
        architecture: GGUF's `general.architecture`.
        keys: As `keys_of` returns them.
        context: Tokens.
        type_name: One of ALL_TYPES, for keys and values.

    Raises UnknownCache.
    """
    if architecture in _UNKNOWN or any(key.startswith("attention.indexer.") for key in keys):
        raise UnknownCache(f"{architecture} caches more than keys and values")
    if architecture in _ENCODERS or keys.get("attention.causal") is False:
        return Cache(context, type_name, 0, 0)
    kind, cells = block_type(type_name.upper()), -(-context // PAD) * PAD
    window = int(keys.get("attention.sliding_window") or 0)
    window = LLAMA_4 if architecture == "llama4" and window else window
    few = -(-min(cells, window + BATCH) // PAD) * PAD
    attention = states = 0
    for block in _blocks(architecture, keys):
        rows = few if block.window and window else cells
        attention += rows * (_row(kind, block.key) + _row(kind, block.value))
        states += 4 * block.state
    return Cache(context, type_name, attention, states)


def _row(kind: BlockType, columns: int) -> int:
    try:
        return kind.row_bytes(columns)
    except BlockError:
        raise UnknownCache(f"its keys are no whole blocks of {kind.name}") from None


def _blocks(architecture: str, keys: Mapping[str, Any]) -> list[_Block]:
    try:
        count = int(keys["block_count"])
        if not 0 < count <= MOST_BLOCKS:
            raise ValueError
        heads = _each(keys.get("attention.head_count_kv", keys.get("attention.head_count", 0)), count)
        states = _recurrent(architecture, keys, heads, count)
        kept = count - int(keys.get("attention.shared_kv_layers") or 0)
        windows = _windows(architecture, keys, count)
        found = []
        for n in range(count):
            attends = (not states[n] or architecture in _BOTH) and heads[n] > 0 and n < kept
            key, value = _widths(keys, bool(windows[n])) if attends else (0, 0)
            found.append(_Block(heads[n] * key, heads[n] * value, bool(windows[n]), states[n]))
        return found
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        raise UnknownCache("its sizes are not stated") from None


def _each(value: Any, count: int) -> list[int]:
    """Return a value for each block, of a number or a list."""
    listed = list(value) if isinstance(value, Sequence) else [value] * count
    if len(listed) < count:
        raise IndexError
    return [int(each) for each in listed]


def _widths(keys: Mapping[str, Any], window: bool) -> tuple[int, int]:
    """Return the elements of a head's key and value; with a latent space the value is part of the key."""
    latent = keys.get("attention.key_length_mla") and keys.get("attention.value_length_mla")
    own = "_swa" if window else ""
    found = []
    for which in ("key", "value"):
        declared = keys.get(f"attention.{which}_length{own}") or keys.get(f"attention.{which}_length")
        found.append(int(declared or keys["embedding_length"] // max(_each(keys["attention.head_count"], 1))))
    return found[0], 0 if latent else found[1]


def _windows(architecture: str, keys: Mapping[str, Any], count: int) -> list[int]:
    declared = keys.get("attention.sliding_window_pattern")
    if architecture in _WINDOWLESS or declared is None:
        return [0] * count
    if isinstance(declared, Sequence):
        return _each(declared, count)
    return [int(int(declared) > 0 and (n + 1) % int(declared) != 0) for n in range(count)]


def _recurrent(architecture: str, keys: Mapping[str, Any], heads: Sequence[int], count: int) -> list[int]:
    """Return how many numbers of state each block keeps."""
    size = _state(keys)
    if not size:
        return [0] * count
    if architecture in _STATES or architecture in _BOTH:
        return [size] * count
    listed, interval = keys.get("attention.recurrent_layers"), keys.get("full_attention_interval")
    if listed is not None:
        marks = _each(listed, count)
    elif interval:
        marks = [int((n + 1) % int(interval) != 0) for n in range(count)]
    else:
        wide = _each(keys.get("feed_forward_length", 0), count)
        alone = architecture.startswith("nemotron_h")  # a block there is one thing: it attends, mixes or is dense
        marks = [int(heads[n] == 0 and not (alone and wide[n] > 0)) for n in range(count)]
    return [size * mark for mark in marks]


def _state(keys: Mapping[str, Any]) -> int:
    """Return the numbers of a recurrent block: the last inputs of its convolution, and its state."""
    width = int(keys.get("embedding_length") or 0)
    if head := int(keys.get("wkv.head_size") or 0):
        return int(keys.get("token_shift_count") or 2) * width + width * head
    if held := int(keys.get("shortconv.l_cache") or 0):
        return width * (held - 1)
    kernel = int(keys.get("ssm.conv_kernel") or 0)
    if head := int(keys.get("kda.head_dim") or 0):
        inner = _each(keys["attention.head_count"], 1)[0] * head
        return 3 * max(0, (kernel or 4) - 1) * inner + head * inner
    inner, state = int(keys.get("ssm.inner_size") or 0), int(keys.get("ssm.state_size") or 0)
    groups = int(keys.get("ssm.group_count") or 0)
    return max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner
