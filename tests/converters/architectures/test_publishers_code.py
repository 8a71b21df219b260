"""Families that only their publishers' code computes, made of the tiny model of another family that computes the same:
renamed and fused as they are published, they have the same logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.tiny_models import TOKENS, make, relative, write

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]
pytestmark = pytest.mark.filterwarnings("ignore")


def published(
    name: str, folder: Path, cls: str, edit: Callable[[Config, Tensors], Tensors], **changes: Any
) -> np.ndarray:
    """transformers' logits of a tiny model, which stands in `folder` as `edit` makes it."""
    logits = make(name, folder, **changes)
    config = json.loads((folder / "config.json").read_text())
    tensors = edit(config, load_file(folder / "model.safetensors"))
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [cls], "model_type": "x"}))
    return logits


def check(folder: Path, logits: np.ndarray, name: str) -> Path:
    """Both sides compute what transformers does, and no key is left over; the GGUF that the graph makes."""
    source = graph_of(str(folder))
    assert source.architecture.name == name
    assert not [note for note in source.notes if "does not use" in note]
    assert relative(logits, forward(source, TOKENS)) <= 1e-5
    made = write(source, folder / "x.gguf")
    assert relative(logits, forward(graph_of(str(made)), TOKENS)) <= 1e-5
    return made


def renamed(tensors: Tensors, **words: str) -> Tensors:
    """`__` stands for a dot."""
    for old, new in words.items():
        tensors = {name.replace(old.replace("__", "."), new): tensor for name, tensor in tensors.items()}
    return tensors


def joined(tensors: Tensors, parts: tuple[str, ...], whole: str, join: Callable[..., np.ndarray]) -> Tensors:
    """The matrices (and biases) called `parts` made one."""
    found = dict(tensors)
    for name in tensors:
        if f".{parts[0]}." in name:
            pieces = [found.pop(name.replace(parts[0], part)) for part in parts]
            found[name.replace(parts[0], whole)] = join(*pieces)
    return found


def below(*pieces: np.ndarray) -> np.ndarray:
    return np.concatenate(pieces)


def by_groups(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int = 2) -> np.ndarray:
    """The queries of a group of heads, its key, its value."""
    cut = [np.split(part, groups) for part in (q, k, v)]
    return np.concatenate([np.concatenate(group) for group in zip(*cut, strict=True)])


QKV = ("q_proj", "k_proj", "v_proj")
GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 2}
ALONE = {"num_attention_heads": 6, "num_key_value_heads": 6}


def internlm2(config: Config, tensors: Tensors) -> Tensors:
    tensors = joined(tensors, QKV, "wqkv", by_groups)
    return renamed(
        tensors, self_attn="attention", o_proj="wo", embed_tokens="tok_embeddings", lm_head="output",
        input_layernorm="attention_norm", post_attention_layernorm="ffn_norm", mlp="feed_forward", gate_proj="w1",
        up_proj="w3", down_proj="w2",
    )


def as_it_is(config: Config, tensors: Tensors) -> Tensors:
    return tensors


def orion(config: Config, tensors: Tensors) -> Tensors:
    config["rms_norm_eps"] = config.pop("layer_norm_eps")
    for key in ("qk_layernorm", "use_qkv_bias", "use_parallel_residual"):
        config.pop(key)
    config["rope_parameters"].pop("partial_rotary_factor")
    return tensors


def baichuan(config: Config, tensors: Tensors) -> Tensors:
    config["model_max_length"] = 64
    return joined(tensors, QKV, "W_pack", below)


def minicpm(config: Config, tensors: Tensors) -> Tensors:
    config["scale_emb"] = config.pop("embedding_multiplier")
    config["scale_depth"] = config.pop("residual_multiplier") * config["num_hidden_layers"] ** 0.5
    config["dim_model_base"] = config["hidden_size"] / config.pop("logits_scaling")
    config.pop("attention_multiplier")
    return tensors


def chatglm(config: Config, tensors: Tensors) -> Tensors:
    base = config.pop("rope_parameters")["rope_theta"]
    for key in ("head_dim", "hidden_act", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps",
                "num_key_value_heads", "intermediate_size", "attention_bias"):
        config.pop(key)
    config |= {
        "num_layers": 3, "seq_length": 64, "kv_channels": 8, "layernorm_epsilon": 1.5625e-07, "ffn_hidden_size": 88,
        "multi_query_attention": True, "multi_query_group_num": 3, "add_qkv_bias": True, "rope_ratio": base / 10000,
        "padded_vocab_size": config["vocab_size"], "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False, "original_rope": True,
    }
    return renamed(
        joined(tensors, QKV, "query_key_value", below), model__embed_tokens="transformer.embedding.word_embeddings",
        model__norm="transformer.encoder.final_layernorm", lm_head="transformer.output_layer",
        model__layers="transformer.encoder.layers", self_attn="self_attention", o_proj="dense",
        gate_up_proj="dense_h_to_4h", down_proj="dense_4h_to_h",
    )


def qwen(config: Config, tensors: Tensors) -> Tensors:
    config["rotary_emb_base"] = config.pop("rope_parameters")["rope_theta"]
    config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
    for key in ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window", "hidden_act",
                "num_key_value_heads"):
        config.pop(key, None)
    config |= {"intermediate_size": 2 * 88, "kv_channels": 8, "rotary_pct": 1.0, "seq_length": 64, "no_bias": True,
               "scale_attn_weights": True, "use_dynamic_ntk": True, "use_logn_attn": True, "bf16": True}
    return renamed(
        joined(tensors, QKV, "c_attn", below), model__layers="transformer.h", model__embed_tokens="transformer.wte",
        model__norm="transformer.ln_f", input_layernorm="ln_1", post_attention_layernorm="ln_2", self_attn="attn",
        o_proj="c_proj", gate_proj="w2", up_proj="w1", down_proj="c_proj",
    )


def codeshell(config: Config, tensors: Tensors) -> Tensors:
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config |= {
        "n_embd": config.pop("hidden_size"), "n_layer": config.pop("num_hidden_layers"), "n_inner": 88,
        "n_head": config.pop("num_attention_heads"), "num_query_groups": config.pop("num_key_value_heads"),
        "n_positions": config.pop("max_position_embeddings"), "layer_norm_epsilon": config.pop("norm_epsilon"),
        "position_embedding_type": "rope", "group_query_attention": True, "activation_function": "gelu_pytorch_tanh",
    }
    for key in ("intermediate_size", "use_bias", "sliding_window", "hidden_act"):
        config.pop(key, None)
    return renamed(
        joined(tensors, QKV, "c_attn", below), model__layers="transformer.h", model__embed_tokens="transformer.wte",
        model__norm="transformer.ln_f", input_layernorm="ln_1", post_attention_layernorm="ln_2", self_attn="attn",
        o_proj="c_proj",
    )


def pangu(config: Config, tensors: Tensors) -> Tensors:
    config["bias"] = config.pop("attention_bias")
    config.pop("mlp_bias")
    return tensors


def seeing(config: Config, tensors: Tensors) -> Tensors:
    config |= {"mm_hidden_size": 24, "tune_mm_mlp_adapter": False, "use_mm_proj": True}
    return tensors | {"model.mm_projector.0.weight": np.ones((2, 3), np.float32)}


def deci(config: Config, tensors: Tensors) -> Tensors:
    """The keys and values of two heads, written down once more for others that read them: as many heads in each block
    as it likes."""
    counts = config["num_key_value_heads_per_layer"] = [4, 2, 8]
    config.pop("num_key_value_heads")
    for block, count in enumerate(counts):
        for part in "kv":
            name = f"model.layers.{block}.self_attn.{part}_proj.weight"
            heads = tensors[name].reshape(2, -1, tensors[name].shape[1])
            tensors[name] = heads.repeat(count // 2, axis=0).reshape(-1, heads.shape[2])
    return tensors


def openelm(config: Config, tensors: Tensors) -> Tensors:
    """Of the second block each head of keys and values is written down twice; its feed-forward is wider by what comes
    to nothing."""
    for part in "kv":
        name = f"model.layers.1.self_attn.{part}_proj.weight"
        heads = tensors[name].reshape(2, -1, tensors[name].shape[1])
        tensors[name] = heads.repeat(2, axis=0).reshape(-1, heads.shape[2])
    tensors = {
        name: np.pad(x, ((0, 0), (0, 8)) if "down_proj" in name else ((0, 8), (0, 0))) if "layers.1.mlp" in name else x
        for name, x in tensors.items()
    }
    blocks = config["num_hidden_layers"]
    stated = {
        "vocab_size": config["vocab_size"], "model_dim": 48, "num_transformer_layers": blocks, "head_dim": 12,
        "num_query_heads": [8] * blocks, "num_kv_heads": [2, 4, 2], "max_context_length": 64, "ffn_dim_divisor": 8,
        "ffn_multipliers": [88 / 48, 2.0, 88 / 48], "rope_freq_constant": 5000, "activation_fn_name": "swish",
        "ffn_with_glu": True, "normalize_qk_projections": True, "normalization_layer_name": "rms_norm",
        "share_input_output_layers": True, "rope_max_length": 128, "qkv_multipliers": [0.5, 1.0],
    }
    config.clear()
    config |= stated
    tensors = joined(joined(tensors, QKV, "qkv_proj", below), ("gate_proj", "up_proj"), "proj_1", below)
    return renamed(
        tensors, model__embed_tokens="transformer.token_embeddings", model__norm="transformer.norm",
        model__layers="transformer.layers", self_attn="attn", o_proj="out_proj", mlp="ffn", down_proj="proj_2",
        input_layernorm="attn_norm", post_attention_layernorm="ffn_norm",
    )


def rugpt(config: Config, tensors: Tensors) -> Tensors:
    """GPT-2's matrices have a column for each output, and one for queries, keys and values."""
    stated = {
        "vocab_size": config["vocab_size"], "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
        "intermediate_size": 88, "max_position_embeddings": 64, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5,
        "sparse_mode": "none", "sparse_block_size": 16, "tie_word_embeddings": True, "output_dropout": 0.1,
    }
    config.clear()
    config |= stated
    found = {}
    for name, tensor in tensors.items():
        rotated = tensor.T if tensor.ndim == 2 and ".h." in name else tensor
        for part, piece in zip(QKV, np.split(rotated, 3), strict=True) if "c_attn" in name else ():
            found[name.replace("attn.c_attn", f"self_attn.{part}")] = piece
        if "c_attn" not in name:
            found[name] = rotated
    return renamed(
        found, transformer__h="model.layers", transformer__wte="model.embed_tokens",
        transformer__wpe="model.embed_positions", transformer__ln_f="model.norm", ln_1="input_layernorm",
        ln_2="post_attention_layernorm", attn__c_proj="self_attn.o_proj", c_fc="up_proj", c_proj="down_proj",
    )


CASES: dict[str, tuple[str, str, Callable[[Config, Tensors], Tensors], dict[str, Any]]] = {
    "internlm2": ("llama", "InternLM2ForCausalLM", internlm2, GROUPED),
    "xverse": ("llama", "XverseForCausalLM", as_it_is, GROUPED),
    "orion": ("stablelm", "OrionForCausalLM", orion,
              {**GROUPED, "use_qkv_bias": False, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default",
                                                                    "partial_rotary_factor": 1.0}}),
    "baichuan": ("llama", "BaichuanForCausalLM", baichuan, ALONE),
    "minicpm": ("granite", "MiniCPMForCausalLM", minicpm,
                {**GROUPED, "attention_bias": False, "mlp_bias": False, "attention_multiplier": 6**-0.5,
                 "logits_scaling": 1.5, "tie_word_embeddings": True}),
    "chatglm": ("glm", "ChatGLMModel", chatglm, {}),
    "qwen": ("qwen2", "QWenLMHeadModel", qwen, {**ALONE, "tie_word_embeddings": False}),
    "codeshell": ("starcoder2", "CodeShellForCausalLM", codeshell, {"sliding_window": None, **GROUPED}),
    "deci": ("llama", "DeciLMForCausalLM", deci, GROUPED),
    "openelm": ("qwen3", "OpenELMForCausalLM", openelm, {**GROUPED, "head_dim": 12, "tie_word_embeddings": True}),
    "pangu-embedded": ("llama biases", "PanguEmbeddedForCausalLM", pangu, {**GROUPED, "mlp_bias": False}),
    "gpt2": ("gpt2", "RuGPT3XLForCausalLM", rugpt, {}),
    "stablelm": ("stablelm", "LlavaStableLMEpochForCausalLM", seeing, {}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_a_published_model_computes_what_its_kin_does(name: str, tmp_path: Path) -> None:
    base, cls, edit, changes = CASES[name]
    check(tmp_path, published(base, tmp_path, cls, edit, **changes), name)


RUN = sorted(CASES.keys() - {"baichuan"})  # of other than 32 or 40 blocks it is another model there


@pytest.mark.slow
def test_llama_cpp_continues_alike(tmp_path: Path) -> None:
    files = []
    for name in RUN:
        base, cls, edit, changes = CASES[name]
        changes = changes | ({"tie_word_embeddings": False} if name == "codeshell" else {})
        published(base, tmp_path / name, cls, edit, **changes)
        files.append(write(graph_of(str(tmp_path / name)), tmp_path / f"{name}.gguf"))
    for file, answer in zip(files, continuations(TOKENS, 4, *files), strict=True):
        tokens = list(TOKENS)
        for token, _ in answer:
            scores = forward(graph_of(str(file)), tokens)[-1]
            assert scores.max() - scores[token] < 2e-2, file
            tokens.append(token)


def baichuan_13b(config: Config, tensors: Tensors) -> Tensors:
    config.pop("max_position_embeddings")
    return baichuan(config, tensors)


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "blocks"), [(baichuan, 32), (baichuan_13b, 40)])
def test_a_baichuan_of_either_size_runs_in_llama_cpp(
    edit: Callable[[Config, Tensors], Tensors], blocks: int, tmp_path: Path
) -> None:
    published("llama", tmp_path, "BaichuanForCausalLM", edit, **ALONE, num_hidden_layers=blocks)
    source = graph_of(str(tmp_path))
    made = write(source, tmp_path / "x.gguf")
    assert "baichuan.attention.max_alibi_bias" not in open_gguf(str(made)).metadata
    tokens = list(TOKENS)
    for token, _ in continuations(TOKENS, 3, made)[0]:
        scores = forward(source, tokens)[-1]
        assert scores.max() - scores[token] < 5e-3
        tokens.append(token)


def test_a_small_baichuan_without_positions_says_so_by_a_key(tmp_path: Path) -> None:
    published("llama", tmp_path, "BaichuanForCausalLM", baichuan_13b, **ALONE)
    source = graph_of(str(tmp_path))
    made = write(source, tmp_path / "x.gguf")
    assert open_gguf(str(made)).metadata["baichuan.attention.max_alibi_bias"].data == 8.0
    assert relative(forward(source, TOKENS), forward(graph_of(str(made)), TOKENS)) <= 1e-6
    assert "runs this differently" in " ".join(source.notes)


def test_the_output_of_baichuan_2_has_rows_one_long(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    def second(config: Config, tensors: Tensors) -> Tensors:
        config["z_loss_weight"] = 0
        return baichuan(config, tensors)

    published("llama", tmp_path, "BaichuanForCausalLM", second, **ALONE)
    make("llama", tmp_path / "kin", **ALONE)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "kin", attn_implementation="eager")
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.nn.functional.normalize(model.lm_head.weight))
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    made = check(tmp_path, logits, "baichuan")
    (output,) = (node for node in graph_of(str(made)).nodes if node.name == "output.weight")
    assert output.inputs[0].type.name == "F32"
    assert "rows of its output one long" in " ".join(graph_of(str(tmp_path)).notes)


def test_heads_that_see_some_blocks_of_text_only_are_refused(tmp_path: Path) -> None:
    def sparse(config: Config, tensors: Tensors) -> Tensors:
        tensors = rugpt(config, tensors)
        config["sparse_mode"] = "alternating"
        return tensors

    published("gpt2", tmp_path, "RuGPT3XLForCausalLM", sparse)
    with pytest.raises(GgferryError, match="sparse_mode"):
        graph_of(str(tmp_path))


def test_what_chatglm_does_not_do_is_refused(tmp_path: Path) -> None:
    def biased(config: Config, tensors: Tensors) -> Tensors:
        tensors = chatglm(config, tensors)
        config["add_bias_linear"] = True
        return tensors

    published("glm", tmp_path, "ChatGLMModel", biased)
    with pytest.raises(GgferryError, match="add_bias_linear"):
        graph_of(str(tmp_path))


def test_blocks_that_lack_a_half_are_refused(tmp_path: Path) -> None:
    def nemotron(config: Config, tensors: Tensors) -> Tensors:
        config["block_configs"] = [{"attention": {"no_op": True}}] * 3
        return tensors

    published("llama", tmp_path, "DeciLMForCausalLM", nemotron, **GROUPED)
    with pytest.raises(GgferryError, match="block_configs"):
        graph_of(str(tmp_path))


def seeing_all(folder: Path) -> np.ndarray:
    """transformers' logits of a model whose every token sees all others."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    open_mask = torch.zeros(1, 1, len(TOKENS), len(TOKENS))
    with torch.no_grad():
        return model(torch.tensor([TOKENS]), attention_mask=open_mask).logits[0].numpy()


def llada(config: Config, tensors: Tensors) -> Tensors:
    stated = {
        "d_model": 48, "n_heads": 8, "n_kv_heads": 2, "n_layers": 3, "mlp_hidden_size": 88, "max_sequence_length": 64,
        "vocab_size": config["vocab_size"], "embedding_size": config["vocab_size"], "rope_theta": 5000.0,
        "rms_norm_eps": config["rms_norm_eps"], "weight_tying": False, "block_type": "llama", "layer_norm_type": "rms",
        "activation_type": "silu", "rope": True, "alibi": False, "include_bias": False, "mask_token_id": 327,
    }
    config.clear()
    config |= stated
    return renamed(
        tensors, model__layers="model.transformer.blocks", model__embed_tokens="model.transformer.wte",
        model__norm="model.transformer.ln_f", lm_head="model.transformer.ff_out", input_layernorm="attn_norm",
        post_attention_layernorm="ff_norm", self_attn__o_proj="attn_out", self_attn__="", mlp__gate_proj="ff_proj",
        mlp__up_proj="up_proj", mlp__down_proj="ff_out",
    )


def llada_moe(config: Config, tensors: Tensors) -> Tensors:
    config["expert_intermediate_size"] = config.pop("moe_intermediate_size")
    return without_windows(config, tensors) | {}


def without_windows(config: Config, tensors: Tensors) -> Tensors:
    for key in ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window", "decoder_sparse_step",
                "mlp_only_layers", "intermediate_size"):
        if key != "intermediate_size" or "num_experts" in config:
            config.pop(key, None)
    return tensors


DIFFUSION: dict[str, tuple[str, str, Callable[[Config, Tensors], Tensors], dict[str, Any]]] = {
    "dream": ("qwen2", "DreamModel", without_windows, {**GROUPED, "tie_word_embeddings": False}),
    "llada": ("llama", "LLaDAModelLM", llada, GROUPED),
    "llada-moe": ("qwen3moe not normed", "LLaDAMoEModelLM", llada_moe, GROUPED),
    "rnd1": ("qwen3moe", "RND1", without_windows, GROUPED),
}


@pytest.mark.parametrize("name", DIFFUSION)
def test_a_model_that_fills_in_masked_tokens_sees_all(name: str, tmp_path: Path) -> None:
    base, cls, edit, changes = DIFFUSION[name]
    make(base, tmp_path / "kin", **changes)
    logits = seeing_all(tmp_path / "kin")
    causal = published(base, tmp_path, cls, edit, **changes)
    assert relative(logits, causal) > 0.1
    made = open_gguf(str(check(tmp_path, logits, name)))
    assert made.metadata[f"{name}.attention.causal"].data is False
    assert "diffusion language model" in " ".join(graph_of(str(tmp_path)).notes)


def test_what_llama_cpp_does_otherwise_is_known_of_the_written_file_too(tmp_path: Path) -> None:
    published("llama", tmp_path, "BaichuanForCausalLM", baichuan, **ALONE)
    made = graph_of(str(write(graph_of(str(tmp_path)), tmp_path / "x.gguf")))
    assert "llama.cpp runs this differently" in " ".join(made.reservations)
    make("llama", tmp_path / "plain")
    assert graph_of(str(tmp_path / "plain")).reservations == ()
