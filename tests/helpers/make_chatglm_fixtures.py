"""Make fixtures/chatglm-cpp: files by chatglm.cpp's own convert.py, of both versions of its header, of tiny weights.

Run with the git directory of li-plus/chatglm.cpp: `python tests/helpers/make_chatglm_fixtures.py chatglm.cpp/.git`. The
classes of its converter are given what they ask of a model and a tokenizer; the published models are not needed.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[2] / "fixtures"
OUT = FIXTURES / "chatglm-cpp"
SPM = FIXTURES / "tokenizers" / "spm_bpe" / "tokenizer.model"
COMMITS = {1: "b2d89c6", 2: "f86777c"}
FILES = {
    "glm2-v1-q4_0.bin": (1, 2, "Q4_0"),
    "glm3-v1-q8_0.bin": (1, 3, "Q8_0"),
    "glm2-v2-q5_1.bin": (2, 2, "Q5_1"),
    "glm3-v2-f32.bin": (2, 3, "F32"),
    "glm3-v2-f16.bin": (2, 3, "F16"),
    "glm4-v2-q4_1.bin": (2, 4, "Q4_1"),
    "glm4-v2-q5_0.bin": (2, 4, "Q5_0"),
}
"""Name → version of the header, model, type."""
WIDTH, HEADS, GROUPS, LAYERS, INNER, CONTEXT, ROWS = 64, 4, 2, 2, 96, 128, 544
MERGES = ("th", "the", " t", " the", "in", "ing", "an", "and", "  ", "12", "123", "\n\n")


def config(version: int) -> dict[str, Any]:
    """Return the publisher's configuration of the model."""
    return {
        "model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": WIDTH, "num_layers": LAYERS,
        "num_attention_heads": HEADS, "multi_query_attention": True, "multi_query_group_num": GROUPS,
        "ffn_hidden_size": INNER, "kv_channels": WIDTH // HEADS, "seq_length": CONTEXT, "padded_vocab_size": ROWS,
        "vocab_size": ROWS, "layernorm_epsilon": 1e-5 if version == 1 else 1.5625e-7, "add_qkv_bias": True,
        "add_bias_linear": False, "apply_residual_connection_post_layernorm": False, "original_rope": True,
        "post_layer_norm": True, "rmsnorm": True, "rope_ratio": 1 if version == 1 else 50, "eos_token_id": 2,
        "pad_token_id": 0, "bos_token_id": 1, "sep_token_id": None, "pre_seq_len": None, "quantization_bit": 0,
        "torch_dtype": "float32",
    }  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    """Return the tensors under the publisher's names, float32."""
    rng = np.random.default_rng(2023)
    shapes: dict[str, tuple[int, ...]] = {"embedding.word_embeddings.weight": (ROWS, WIDTH)}
    joint = (HEADS + 2 * GROUPS) * WIDTH // HEADS
    for n in range(LAYERS):
        block = f"encoder.layers.{n}"
        shapes |= {
            f"{block}.input_layernorm.weight": (WIDTH,),
            f"{block}.self_attention.query_key_value.weight": (joint, WIDTH),
            f"{block}.self_attention.query_key_value.bias": (joint,),
            f"{block}.self_attention.dense.weight": (WIDTH, WIDTH),
            f"{block}.post_attention_layernorm.weight": (WIDTH,),
            f"{block}.mlp.dense_h_to_4h.weight": (2 * INNER, WIDTH),
            f"{block}.mlp.dense_4h_to_h.weight": (WIDTH, INNER),
        }
    shapes |= {"encoder.final_layernorm.weight": (WIDTH,), "output_layer.weight": (ROWS, WIDTH)}
    return {
        f"transformer.{name}": rng.normal("layernorm" in name, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def ranks() -> bytes:
    """Return the lines of a vocabulary like GLM-4's: the bytes, and a few tokens of several."""
    tokens = [*(bytes([number]) for number in range(256)), *(text.encode() for text in MERGES)]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def main(repository: str) -> None:
    """Write the files."""
    import torch

    sys.modules["tabulate"] = types.SimpleNamespace(tabulate=lambda *_, **__: "")  # type: ignore[assignment]
    OUT.mkdir(exist_ok=True)
    lines = OUT / "ranks.tiktoken"
    lines.write_bytes(ranks())
    proto = types.SimpleNamespace(serialized_model_proto=SPM.read_bytes)
    tokenizer = types.SimpleNamespace(tokenizer=types.SimpleNamespace(sp_model=proto), vocab_file=str(lines))
    for name, (version, model, kind) in FILES.items():
        place = f"{COMMITS[version]}:chatglm_cpp/convert.py"
        code = subprocess.run(["git", "-C", repository, "show", place], check=True, capture_output=True).stdout
        module: dict[str, Any] = {"__name__": "convert"}
        exec(compile(code, place, "exec"), module)
        tensors = {key: torch.tensor(value) for key, value in weights().items()}
        given = types.SimpleNamespace(config=types.SimpleNamespace(**config(version)), state_dict=lambda: tensors)  # noqa: B023
        with (OUT / name).open("wb") as file:
            module[f"ChatGLM{model}Converter"].convert(file, given, tokenizer, module["GGMLType"][kind])


if __name__ == "__main__":
    main(sys.argv[1])
