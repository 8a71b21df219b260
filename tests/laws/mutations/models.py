"""The models that planted mistakes are shown with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Model:
    """`kind`: of `tiny_models.TINY`, with `changes` of its configuration that let every witness testify (windows that a
    prompt crosses, what llama.cpp computes alike), with blocks that predict further tokens behind it ('drafting NAME'),
    or a path within the fixtures; or a model without a vocabulary whose weights a scheme has packed ('packed NAME') or
    that torch saved as views of larger storages ('torch views'). `edits`: of config.json, None for a key that is not
    there. `outtype`: what it is converted to."""

    kind: str
    changes: dict[str, Any] = field(default_factory=dict)
    edits: dict[str, Any] = field(default_factory=dict)
    outtype: str = "keep"


WINDOW = {"sliding_window": 30}
ALIKE = {"query_pre_attn_scalar": 16}
MODELS = {
    **{name: Model(name) for name in (
        "llama", "llama linear", "llama yarn", "llama yarn attention_factor", "llama longrope", "qwen2", "qwen3",
        "qwen3moe", "granite", "command-r", "stablelm", "stablelm 12b", "gptneox", "gptneox sequential", "bloom",
        "mpt clip", "deepseek v2", "deepseek v2 yarn", "deepseek v2 groups", "deepseek v3", "mamba",
    )},
    **{name: Model(name) for name in (
        "minimax_m2", "granitemoe", "exaone4", "exaone_moe", "smollm3", "arcee", "mellum one base", "laguna", "hy_v3",
        "llama4", "nemotron", "kimi linear", "granite hybrid", "minicpm3", "dots1", "seed_oss", "glm4moe", "olmo3",
        "glm4", "afmoe", "jamba", "apertus", "qwen3vl", "qwen3vlmoe", "olmoe", "jais2", "ernie4_5", "ernie4_5_moe",
        "phimoe", "chameleon", "unlimited ocr", "hrm", "minimax-01", "step35",
        "muse glimmer", "qwen3next", "qwen35", "qwen4exp", "lfm2", "gemma3n", "gpt-oss", "dbrx", "falcon-h1",
        "cohere2", "cohere2moe", "mistral4", "hunyuan dense", "deepseek v4",
    )},
    "minimax-m3": Model("minimax-m3", {"index_topk_blocks": 9}),
    "minimax-m3 that chooses": Model("minimax-m3"),
    "glm 5.3 that drafts": Model("drafting glm 5.3 flash", {"index_topk": 63}),
    "nemotron-h that drafts": Model("drafting nemotron-h latent"),
    "mimo2 that drafts": Model("drafting mimo2", WINDOW),
    "qwen4exp that drafts": Model("drafting qwen4exp"),
    "gemma4 shared": Model("gemma4 shared", {"vocab_size_per_layer_input": 400}),
    "glm 5.3 flash": Model("glm 5.3 flash", {"index_topk": 63}),
    "ling 3": Model("ling 3", {"rms_norm_eps": 1e-6}),
    "dots3 note": Model("dots3 note", {"index_topk": 64}),
    "mimo2": Model("mimo2", WINDOW),
    "mimo2 of a window": Model("mimo2", WINDOW, {"sliding_window_size": 29}),
    "llama3": Model("llama llama3"),
    "qwen2 epsilon": Model("qwen2", {"rms_norm_eps": 0.1}),
    "mistral": Model("mistral window", WINDOW),
    "mixtral": Model("mixtral", WINDOW),
    "qwen2 window": Model("qwen2 window", WINDOW, {"layer_types": None}),
    "qwen2 no window": Model("qwen2", edits={**WINDOW, "max_window_layers": 0, "layer_types": None}),
    "gemma2": Model(
        "gemma2",
        {**ALIKE, "sliding_window": 20, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": Model("gemma3", ALIKE),
    "gemma3 period": Model("gemma3, old", ALIKE),
    "llama q4_0": Model("fixtures/legacy-llama/ggjt3-20230821/q4_0.bin"),
    "llama q5_1": Model("fixtures/legacy-llama/ggjt3-20230821/q5_1.bin"),
    "llama q4_0 of April": Model("fixtures/legacy-llama/ggjt1-20230428/q4_0.bin"),
    "llama to q4_k_m": Model("fixtures/hf/ckpt/llama_k256", outtype="q4_k_m"),
    "llama to q6_k": Model("fixtures/hf/ckpt/llama_k256", outtype="q6_k"),
    "llama to q5_0": Model("fixtures/hf/ckpt/llama_k256", outtype="q5_0"),
    "llama of SentencePiece": Model("fixtures/hf/ckpt/llama"),
    "qwen3 tts": Model("fixtures/qwen3-tts"),
    "pocket tts": Model("pocket tts"),
    "adapter": Model("fixtures/lora/lora_plain"),
    "llama without a base": Model("llama", edits={"rope_parameters": None, "rms_norm_eps": None}),
    "llama of torch": Model("torch views"),
    "mixtral of twelve": Model("mixtral", {**WINDOW, "num_local_experts": 12}),
    **{name: Model(f"packed {name}") for name in (
        "fp8 blocks", "gptq 4 desc_act", "ct int4 group", "awq", "bnb nested nf4", "bnb int8", "mlx 4", "bitnet",
        "bitnet, online",
        "ct nvfp4",
        "mlx mxfp8", "mxfp4 of mlx", "gptq of March 2023", "hqq 3, axis 0", "torchao int4", "torchao 4 with zeros",
        "exl2", "quark int4",
    )},
}
