"""Today's llama.cpp loads what our graphs make of every family, and continues a prompt as our forward pass does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from helpers.llama_cpp import continuations
from helpers.tiny_models import TINY, TOKENS, make, write

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS = 6
# What llama.cpp computes otherwise, as the notes of the conversion say: left out, or changed to what it can do.
OTHERWISE = {
    "llama yarn betas": "computes with 32 and 1",
    "llama longrope short": "takes the long factors, because its context is longer than the original one",
    "qwen2 window": "has no window here",
    "qwen2moe normed": "does not norm",
    "qwen3moe not normed": "norms",
    "gemma2 caps": "always caps",
    "command-r plus": "expects normed queries from 64 blocks on",
    "starcoder2 unbiased": "expects biases",
    "deepseek v2 groups": "ranks groups by the sum of two",
    "gpt2 unscaled": "scales",
    "smollm3 otherwise": "turns all blocks but every fourth",
    "seed_oss output bias": "has no such bias",
    "olmoe grouped": "wants as many key heads as heads",
    "exaone4 windows": "has windows from 64 blocks on",
    "gpt-oss": "rounds the range of yarn",
    "llama4 chunks": "attends in chunks of 8192",
    "gemma3n": "has constants for its widths",
    "gemma3n shared": "has constants for its widths",
    **dict.fromkeys(("arcee biases", "ernie4_5 biases", "cohere2 otherwise"), "has not all of its biases"),
    "ernie4_5_moe between": "wants experts in every block",
    **dict.fromkeys(("phimoe", "phimoe longrope"), "takes its layer norms for others"),
    "dots1 grouped": "wants as many key heads as heads",
    "cohere2moe sigmoid": "turns all dense blocks",
    "afmoe otherwise": "turns all blocks but every fourth",
    "laguna windows first": "turns as much of all heads as of the first block's",
    "mellum": "has one rotary base",
    "mimo2 otherwise": "norms the weights of experts and does not scale them",
    "gptj": "knows the name and has no graph",
    "gptneo": "does not know it",
    "codegen": "knows gptj's name and has no graph",
    "opt": "computes GELU",
    "hunyuan vl": "has positions on three axes for text",
    **dict.fromkeys(("cwm", "ministral"), "lets all blocks see everything"),
    "gptneox unbiased": "expects biases, and an output of its own",
    "mpt scale": "scales by the width of a head",
    "jais2 unbiased": "expects biases",
    "glm wide": "loads heads of embedding / heads only",
    "bitnet": "has silu",
    "chameleon": "takes tokens for pictures",
    "chameleon swin": "has no biases",
    **dict.fromkeys(("deepseek v3.2", "glm 5"), "turns the indexer's heads by Hadamard matrices of 64"),
    "falcon rw": "turns, has no biases, computes side by side",
}
ALIKE: dict[str, dict[str, Any]] = {
    "opt gelu": {"num_hidden_layers": 2},
    "dots3 note that sees": {"index_topk": 64},  # of 5 several score 0, and which of them is chosen is chance
    "lfm2moe": {"routed_scaling_factor": 1.0},
    "minimax-m3": {"index_topk_blocks": 9},
    "unlimited ocr": {"first_k_dense_replace": 0},
    "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-6},
    "mistral4": {"rms_norm_eps": 1e-6},
    "kimi linear": {"rms_norm_eps": 1e-6},
    "hy_v4": {"rms_norm_eps": 1e-6},
    "ling 3": {"rms_norm_eps": 1e-6},
    "nemotron": {"num_attention_heads": 4},
    "nemotron-h": {"time_step_min": 1e-9},
    "nemotron-h moe": {"time_step_min": 1e-9},
    "nemotron-h latent": {"time_step_min": 1e-9},
    "gpt-oss rounded": {"tie_word_embeddings": False},
    "exaone4": {"head_dim": 6},
    "llama4": {"attn_scale": 0.1, "floor_scale": 8192},
    "mistral window": {"sliding_window": 64},
    "mixtral": {"sliding_window": 64},
    "phi3 tied, partial": {"sliding_window": 64},
    "starcoder2": {"sliding_window": 64},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "gemma3, old": {"query_pre_attn_scalar": 16},
    "falcon-h1 biases": {"attention_bias": False},  # that of the output is loaded and not added
    "falcon mamba": {"mixer_rms_eps": 1e-5},
}
RUN = [name for name in TINY if name not in OTHERWISE and not name.startswith("rwkv")]  # it has no RWKV-4


@pytest.mark.parametrize("name", RUN)
def test_llama_cpp_continues_alike(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", **ALIKE.get(name, {}))
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    (found,) = continuations(TOKENS, STEPS, write(graph, tmp_path / "x.gguf"))
    close = 2e-2 if "gelu" in str(graph.architecture.recipe) else 1e-4  # its gelu is a table of float16
    tokens = list(TOKENS)
    for token, probability in found:
        logits = forward(graph, tokens)[-1].astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert token == int(scores.argmax())
        assert probability == pytest.approx(scores.max(), abs=close)
        tokens.append(token)
