"""A tiny LLaMA whose matrices inside the blocks are quantized as a test asks, and what its GGUF must hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.readers.gguf import open_gguf

WIDTH, FF, HEADS, KV_HEADS, LAYERS, VOCAB = 64, 96, 4, 2, 3, 72
LINE = "metadata of the file: "
"""Before the name of a pretended tensor whose bytes are a line of the file's metadata."""
Tensors = dict[str, torch.Tensor]
Quantize = Callable[[str, np.ndarray, np.random.Generator], tuple[Tensors, np.ndarray]]
"""name of the weight, its values → the tensors that stand for it, and what they mean in float32."""


def model(quantize: Quantize, ff: int = FF, vocab: int = VOCAB) -> tuple[Tensors, dict[str, np.ndarray]]:
    """A tiny LLaMA whose matrices inside the blocks are quantized; their meaning by name."""
    rng = np.random.default_rng(5)
    kv = WIDTH // HEADS * KV_HEADS
    tensors: Tensors = {}
    meaning = {}
    for name, shape in (("model.embed_tokens", (vocab, WIDTH)), ("lm_head", (vocab, WIDTH)), ("model.norm", (WIDTH,))):
        tensors[f"{name}.weight"] = torch.tensor(rng.normal(1 if len(shape) == 1 else 0, 0.2, shape)).bfloat16()
    for n in range(LAYERS):
        block = f"model.layers.{n}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{name}.weight"] = torch.ones(WIDTH, dtype=torch.bfloat16)
        for name, shape in {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (kv, WIDTH),
            "self_attn.v_proj": (kv, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (ff, WIDTH),
            "mlp.up_proj": (ff, WIDTH),
            "mlp.down_proj": (WIDTH, ff),
        }.items():
            weight = f"{block}.{name}.weight"
            made, meaning[weight] = quantize(weight, rng.normal(0, 0.1, shape).astype(np.float32), rng)
            tensors |= made
    return tensors, meaning


def write(folder: Path, tensors: Tensors, settings: Any, dtype: str | None = "bfloat16", **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": FF,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        **more,
    }
    config |= {} if dtype is None else {"torch_dtype": dtype}
    config |= {} if settings is None else {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    lines = {name: bytes(tensor.tolist()).decode() for name, tensor in tensors.items() if name.startswith(LINE)}
    weights = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in lines}
    metadata = {name.removeprefix(LINE): text for name, text in lines.items()}
    save_file(weights, folder / "model.safetensors", metadata)
    return folder


def request(source: Path, out: Path, outtype: str = "f32", level: str = "full") -> Request:
    return Request(str(source), str(out), Options(outtype=outtype), vocab=VocabOptions(none=True), level=level)


def in_gguf_order(name: str, weight: np.ndarray) -> np.ndarray:
    """Rows of Q and K as llama.cpp wants them: rotary pairs as neighbors."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return weight
    half = len(weight) // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    _, _, block, *middle, _ = name.split(".")
    return f"blk.{block}.{GGUF_NAMES['.'.join(middle)]}.weight"


def check_file(path: Path, meaning: dict[str, np.ndarray], dtype: str) -> None:
    found = open_gguf(str(path))
    for name, weight in meaning.items():
        ref = found.tensors[gguf_name(name)]
        data = found.files[0].read(ref.spans[0].offset, ref.nbytes)
        assert ref.type.name == dtype and ref.shape == weight.shape
        expected = torch.from_numpy(np.ascontiguousarray(in_gguf_order(name, weight)))
        kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        assert data == expected.to(kinds[dtype]).contiguous().view(torch.uint8).numpy().tobytes(), name
    found.close()


def without(end: str) -> Callable[[Tensors], None]:
    """Take away the first tensor whose name ends so."""

    def change(tensors: Tensors) -> None:
        del tensors[next(name for name in tensors if name.endswith(end))]

    return change


def changed(end: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    """Put what `make` returns in the place of the first tensor whose name ends so."""

    def change(tensors: Tensors) -> None:
        name = next(name for name in tensors if name.endswith(end))
        tensors[name] = make(tensors[name].clone())

    return change


def first_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Make the first number none."""
    tensor.view(-1)[0] = torch.nan
    return tensor
