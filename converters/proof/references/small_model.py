"""A model for llama.cpp of a few kilobytes, all zeros, with the 256 bytes for a vocabulary: it loads in no time."""

from __future__ import annotations

from math import prod

from ggferry.formats.gguf.values import Value, ValueType, array, f32, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type

WIDTH = 32
SPECIAL = ("<unk>", "<s>", "</s>")
TOKENS = (*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)))
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def write_small_model(path: str) -> None:
    """Write it; `path` is a new file."""
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    shapes |= {f"blk.0.{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.{name}.weight": (WIDTH, WIDTH) for name in MATRICES}
    keys: dict[str, Value] = {"general.architecture": string("llama")}
    counts = {
        "context_length": 256,
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": WIDTH,
        "attention.head_count": 1,
        "rope.dimension_count": WIDTH,
    }
    keys |= {f"llama.{name}": u32(count) for name, count in counts.items()}
    keys["llama.attention.layer_norm_rms_epsilon"] = f32(1e-5)
    keys |= {
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, TOKENS),
        "tokenizer.ggml.scores": array(ValueType.FLOAT32, [0.0] * len(TOKENS)),
        "tokenizer.ggml.token_type": array(ValueType.INT32, [2, 3, 3] + [6] * 256),
    }
    kind = block_type("F32")
    tensors = [(name, kind, shape, bytes(4 * prod(shape))) for name, shape in shapes.items()]
    write_gguf(path, keys, tensors)
