"""Make fixtures/mlx-lm: tiny mixtures of experts that mlx-lm quantized and saved, and what MLX computes of them.

Run once: `python tests/helpers/make_mlx_lm_fixtures.py sources FOLDER` in the test environment makes the models with
transformers; `… quantized FOLDER` in one that has mlx==0.32.4, mlx-cpu==0.32.4 and mlx-lm==0.32.2 has mlx-lm load,
quantize and save them. The answers are the sha256 of the values of each layer as float32 by `mx.dequantize`, and the
logits of mlx-lm's model of the same values in float32, but for a global scale, with which MLX computes on a GPU alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[2] / "fixtures" / "mlx-lm"
TOKENS = (1, 17, 4, 90, 33, 2, 61, 5, 44, 100, 12, 77, 3, 3, 58, 29)
SIZES = {"hidden_size": 64, "intermediate_size": 96}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mixtral": ("mixtral", SIZES, {"bits": 4, "group_size": 32}),
    "qwen3moe": ("qwen3moe", SIZES | {"moe_intermediate_size": 64}, {"mode": "nvfp4", "global_scale": True}),
    "deepseek3": (
        "deepseek v3",
        SIZES | {"moe_intermediate_size": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 24},
        {"bits": 4, "group_size": 32},
    ),
    "qwen3next": ("qwen3next", SIZES | {"moe_intermediate_size": 32}, {"mode": "mxfp4"}),
    "granitemoe": ("granitemoe", SIZES | {"intermediate_size": 128}, {"bits": 3, "group_size": 64}),
    "kimi-linear": ("kimi linear", {"moe_intermediate_size": 32}, {"mode": "mxfp8"}),
    "falcon-h1": (
        "falcon-h1",
        SIZES | {"attention_in_multiplier": 1.0, "mamba_d_ssm": 96, "mamba_n_heads": 12},
        {"bits": 4, "group_size": 32},
    ),
    "falcon-h1-tied": (
        "falcon-h1",
        SIZES
        | {"attention_in_multiplier": 1.0, "key_multiplier": 1.0, "tie_word_embeddings": True}
        | {"mamba_d_ssm": 96, "mamba_n_heads": 12},
        {"bits": 5, "group_size": 32},
    ),
    "dbrx": (
        "dbrx",
        {"d_model": 64, "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 5, "moe_top_k": 2}},
        {"bits": 4, "group_size": 32},
    ),
    "gptneox": (
        "gptneox",
        {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 8},
        {"bits": 4, "group_size": 32},
    ),
    "gptj": ("gptj", {"n_embd": 64, "n_inner": 256, "n_head": 8}, {"bits": 3, "group_size": 32}),
    "rwkv7": ("", {}, {"bits": 4, "group_size": 32}),
    "kimi-k3": ("", {}, {}),
}
"""Name → tiny model, its sizes, and how it is quantized, if it is."""
MIXTURES = ("mixtral", "qwen3moe", "deepseek3", "qwen3next", "granitemoe", "kimi-linear")


def older(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the keys that mlx-lm reads, where transformers 5 has others."""
    rotary = config.get("rope_parameters") or {"rope_theta": 10000.0}
    config = {"rope_theta": rotary["rope_theta"], "rope_scaling": None, **config}
    config |= {"partial_rotary_factor": rotary["partial_rotary_factor"]} if "partial_rotary_factor" in rotary else {}
    config |= {"num_experts": config["num_local_experts"]} if "num_local_experts" in config else {}
    if config["model_type"] == "gpt_neox":
        config |= {"rotary_emb_base": rotary["rope_theta"], "rotary_pct": rotary.get("partial_rotary_factor", 0.25)}
    if config["model_type"] != "kimi_linear":
        return config
    kinds = config.pop("layer_types")
    parts = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
    config["linear_attn_config"] = {
        **{key: config.pop(own) for key, own in parts.items()},
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
        "kda_layers": [number for number, kind in enumerate(kinds, 1) if kind == "linear_attention"],
        "full_attn_layers": [number for number, kind in enumerate(kinds, 1) if kind != "linear_attention"],
    }
    del config["mlp_layer_types"]
    return config | {"first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid"}


def rwkv7(folder: Path) -> None:
    """Write an RWKV-7 as flash-linear-attention has it."""
    from converters.architectures.test_rwkv import RWKV7, as_hf, fla_name, goose_vectors

    as_hf(goose_vectors(), folder, RWKV7 | {"model_type": "rwkv7"}, fla_name)


def kimi_k3(folder: Path) -> None:
    """Write a Kimi K3 by the names of its publisher, without what sees."""
    from converters.architectures.test_runtime_alone import saved
    from safetensors.numpy import load_file, save_file

    saved("kimi-k3", folder)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("vision_tower")}
    save_file(kept, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "kimi_k3"}
    inner = config["text_config"]
    inner |= {"model_type": "kimi_linear", "latent_moe_use_norm": True, "mla_use_output_gate": True}
    inner["linear_attn_config"]["use_full_rank_gate"] = True
    (folder / "config.json").write_text(json.dumps(config))


def sources(folder: Path) -> None:
    """Write the models that mlx-lm is given."""
    from safetensors.torch import load_file, save_file

    from helpers.tiny_models import make

    for name, (model, sizes, _) in MODELS.items():
        if not model:
            {"rwkv7": rwkv7, "kimi-k3": kimi_k3}[name](folder / name)
            continue
        make(model, folder / name, **sizes)
        config = older(json.loads((folder / name / "config.json").read_text()))
        (folder / name / "config.json").write_text(json.dumps(config))
        tensors = load_file(folder / name / "model.safetensors")
        if name == "kimi-linear":  # transformers 5.24 calls the dense network as the experts; the publisher does not
            dense = {key: key.replace("layers.0.block_sparse_moe.", "layers.0.mlp.") for key in tensors}
            save_file({dense[key]: tensor for key, tensor in tensors.items()}, folder / name / "model.safetensors")


def quantized(folder: Path) -> None:
    """Write the fixtures."""
    import mlx.core as mx  # type: ignore[import-not-found]
    import mlx_lm  # type: ignore[import-not-found]
    from mlx.utils import tree_flatten, tree_map  # type: ignore[import-not-found]
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model  # type: ignore[import-not-found]

    def as_type(kind: Any, model: Any) -> None:
        def cast(value: Any) -> Any:
            return value.astype(kind) if mx.issubdtype(value.dtype, mx.floating) else value

        model.update(tree_map(cast, model.parameters()))

    def values(weights: dict[str, Any], base: str, own: dict[str, Any]) -> Any:
        mode, words, scales = own.get("mode", "affine"), weights[f"{base}.weight"], weights[f"{base}.scales"]
        if mode == "affine":
            scales, biases = (weights[f"{base}.{end}"].astype(mx.float32) for end in ("scales", "biases"))
            return mx.dequantize(words, scales, biases, own["group_size"], own["bits"])
        whole = weights.get(f"{base}.global_scale")
        form = {"group_size": own["group_size"], "bits": own["bits"], "mode": mode, "dtype": mx.float32}
        if whole is None:
            return mx.dequantize(words, scales, None, **form)
        each = [mx.dequantize(words[e], scales[e], None, global_scale=whole[e], **form) for e in range(len(whole))]
        return mx.stack(each)

    answers: dict[str, Any] = {"mlx": mx.__version__, "mlx_lm": mlx_lm.__version__, "values": {}}
    logits = {}
    for name, (_, _, how) in MODELS.items():
        model, config = load_model(folder / name)
        as_type(mx.float16, model)
        arguments = {"group_size": None, "bits": None, **how}
        if how:
            model, config = quantize_model(model, config, **arguments)
        save_model(OUT / name, model)
        save_config(config | {"torch_dtype": "float16"}, OUT / name / "config.json")
        (OUT / name / "model.safetensors.index.json").unlink()
        own = {"group_size": 64, "bits": 4}  # `to_quantized`
        settings, weights = config.get("quantization", {}), dict(tree_flatten(model.parameters()))
        for base in (key.removesuffix(".scales") for key in weights if key.endswith(".scales")):
            found = np.array(
                values(weights, base, {**own, **settings[base]} if base in settings else settings)
            ) + np.float32(0)
            answers["values"].setdefault(name, {})[base] = hashlib.sha256(found.tobytes()).hexdigest()
        if "global_scale" in how:
            continue  # MLX computes with it on a GPU alone
        as_type(mx.float32, model)
        logits[name] = np.array(model(mx.array([TOKENS])))[0]
    (OUT / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
    np.savez_compressed(OUT / "logits.npz", **logits)


if __name__ == "__main__":
    {"sources": sources, "quantized": quantized}[sys.argv[1]](Path(sys.argv[2]))
