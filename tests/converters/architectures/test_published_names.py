"""Checkpoints as their publishers name and lay them out, where transformers saves the same model otherwise: its logits
are the witness all the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward, part_compared
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError, InconsistentError, ShapeError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.next_tokens import further_logits, predicting
from helpers.tiny_models import TOKENS, make, relative, write

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]
pytestmark = pytest.mark.filterwarnings("ignore")


def published(name: str, folder: Path, edit: Callable[[Config, Tensors], Tensors], **changes: Any) -> np.ndarray:
    """transformers' logits of the tiny model, which stands in `folder` as `edit` makes it."""
    logits = make(name, folder, **changes)
    config = json.loads((folder / "config.json").read_text())
    tensors = edit(config, load_file(folder / "model.safetensors"))
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return logits


def check(folder: Path, logits: np.ndarray) -> Path:
    """Both sides compute what transformers does; the GGUF that the graph makes."""
    source = graph_of(str(folder))
    assert relative(logits, forward(source, TOKENS)) <= 1e-5
    made = write(source, folder / "x.gguf")
    assert relative(logits, forward(graph_of(str(made)), TOKENS)) <= 1e-5
    return made


def exaone(config: Config, tensors: Tensors) -> Tensors:
    """LG's names, of LLaMA's graph."""
    config |= {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "activation_function": "silu"}
    config |= {"num_layers": config.pop("num_hidden_layers"), "layer_norm_epsilon": config.pop("rms_norm_eps")}
    config.pop("hidden_act")
    words = {
        "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h",
        "self_attn.o_proj": "self_attn.out_proj", "self_attn": "attn.attention", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj",
    }
    found = {}
    for name, tensor in tensors.items():
        for old, new in words.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


@pytest.mark.parametrize("kind", ["llama", "llama llama3"])
def test_exaone(kind: str, tmp_path: Path) -> None:
    logits = published(kind, tmp_path, exaone, num_attention_heads=8, num_key_value_heads=2, head_dim=12)
    assert "exaone.attention.layer_norm_rms_epsilon" in open_gguf(str(check(tmp_path, logits))).metadata


def rotated_experts(config: Config, tensors: Tensors) -> Tensors:
    """Qwen3-VL-MoE as Qwen published it: experts hold a column an output."""
    return {name: x.swapaxes(1, 2) if ".mlp.experts." in name else x for name, x in tensors.items()}


@pytest.mark.parametrize("width", [40, 24, 48])
def test_experts_lie_as_their_shapes_say(width: int, tmp_path: Path) -> None:
    """Also where gate and up together are as wide as the model (24), and where each is (48)."""
    saved = make("qwen3vlmoe", tmp_path / "saved", moe_intermediate_size=width)
    logits = published("qwen3vlmoe", tmp_path / "published", rotated_experts, moe_intermediate_size=width)
    assert np.array_equal(saved, logits)
    one, other = (check(tmp_path / kind, logits) for kind in ("saved", "published"))
    tensors = [
        {name: found.files[0].read(ref.spans[0].offset, ref.nbytes) for name, ref in found.tensors.items()}
        for found in (open_gguf(str(one)), open_gguf(str(other)))
    ]
    assert tensors[0] == tensors[1]


@pytest.mark.parametrize("keep", [True, False])
def test_gpt_oss_with_experts_in_mxfp4(keep: bool, tmp_path: Path) -> None:
    """Whose values transformers knows how to unpack: laid out anew they are the same, and no bit is lost."""
    import torch
    from transformers import GptOssForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    make("gpt-oss", tmp_path, hidden_size=64, intermediate_size=32, head_dim=12)
    chance, packed = torch.Generator().manual_seed(3), {}
    model = GptOssForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").float()
    for name, tensor in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            shape = (tensor.shape[0], tensor.shape[2], tensor.shape[1] // 32)
            blocks = torch.randint(0, 256, (*shape, 16), generator=chance, dtype=torch.uint8)
            scales = torch.randint(118, 126, shape, generator=chance, dtype=torch.uint8)
            packed |= {f"{name}_blocks": blocks.numpy(), f"{name}_scales": scales.numpy()}
            tensor.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    others = {name: x.numpy() for name, x in model.state_dict().items() if f"{name}_blocks" not in packed}
    save_file(others | packed, tmp_path / "model.safetensors")
    assert relative(logits, forward(graph_of(str(tmp_path)), TOKENS)) <= 1e-5
    options = Options(outtype="keep" if keep else "f32")
    made = convert(Request(str(tmp_path), str(tmp_path / "x.gguf"), options, vocab=VocabOptions(none=True)))[0]
    kinds = {ref.type.name for name, ref in open_gguf(made.path).tensors.items() if name.endswith("_exps.weight")}
    assert kinds == ({"MXFP4"} if keep else {"F32"})
    graded = {row["name"]: row["grade"] for row in made.receipt["tensors"]}
    assert graded["blk.1.ffn_up_exps.weight"] == "repacked"
    assert relative(logits, forward(graph_of(made.path), TOKENS)) <= 1e-5


def fused_ernie(config: Config, tensors: Tensors) -> Tensors:
    """As Baidu's own code names and joins what ERNIE 4.5 is made of."""
    config["architectures"] = ["Ernie4_5_ForCausalLM"]
    joined = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "up_gate_proj": ("gate_proj", "up_proj")}
    for name in list(tensors):
        for whole, parts in joined.items():
            if f".{parts[0]}." in name:
                pieces = [tensors.pop(name.replace(parts[0], part)) for part in parts]
                tensors[name.replace(parts[0], whole)] = np.concatenate(pieces)
    return {name.replace("model.", "ernie.", 1): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", ["ernie4_5", "ernie4_5 biases"])
def test_ernie_in_fused_matrices(kind: str, tmp_path: Path) -> None:
    check(tmp_path, published(kind, tmp_path, fused_ernie))


def listed_hunyuan(config: Config, tensors: Tensors) -> Tensors:
    """As Tencent's configurations say block by block what all blocks share."""
    blocks = config["num_hidden_layers"]
    config |= {"moe_topk": [2] * blocks, "num_shared_expert": [1] * blocks, "moe_intermediate_size": [40] * blocks}
    return tensors


def test_hunyuan_says_block_by_block_what_is_alike(tmp_path: Path) -> None:
    keys = open_gguf(str(check(tmp_path, published("hunyuan moe", tmp_path, listed_hunyuan)))).metadata
    assert [keys[f"hunyuan-moe.{name}"].data for name in ("expert_used_count", "expert_shared_count")] == [2, 1]
    config = json.loads((tmp_path / "config.json").read_text()) | {"moe_topk": [2, 2, 1]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InconsistentError, match="blocks differ in used_stated"):
        graph_of(str(tmp_path))


def test_hunyuan_stretched_by_an_alpha_is_longer_than_it_says(tmp_path: Path) -> None:
    make("hunyuan dense alpha", tmp_path, max_position_embeddings=32768)
    graph = graph_of(str(tmp_path))
    assert graph.sizes["n_ctx"] == 262144 and "for 262144" in " ".join(graph.notes)
    assert graph.sizes["rope_base"] == pytest.approx(5000 * 50 ** (12 / 10))


def test_phimoe_by_microsofts_name(tmp_path: Path) -> None:
    def renamed(config: Config, tensors: Tensors) -> Tensors:
        config["architectures"] = ["PhiMoEForCausalLM"]
        return tensors

    logits = published("phimoe", tmp_path, renamed)
    check(tmp_path, logits)
    assert "runs this differently" in " ".join(graph_of(str(tmp_path)).notes)


def test_apertus_numbers_are_one_each(tmp_path: Path) -> None:
    def doubled(config: Config, tensors: Tensors) -> Tensors:
        return tensors | {"model.layers.1.mlp.act_fn.beta": np.ones(2, np.float32)}

    published("apertus", tmp_path, doubled)
    with pytest.raises(ShapeError, match=r"layers\.1\.mlp\.act_fn\.beta"):
        graph_of(str(tmp_path))


def flat(config: Config, tensors: Tensors) -> Tensors:
    """Qwen2-VL as published: one configuration for both halves, the text's names without a prefix."""
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    config |= {key: value for key, value in text.items() if key != "model_type"}
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    names = {
        name: name.replace("model.language_model.", "model.").replace("model.visual.", "visual.") for name in tensors
    }
    return {new: tensors[old] for old, new in names.items()}


def test_qwen2_vl_with_one_configuration(tmp_path: Path) -> None:
    made = open_gguf(str(check(tmp_path, published("qwen2vl", tmp_path, flat))))
    assert made.metadata["qwen2vl.rope.dimension_sections"].data == (1, 1, 1, 0)


def wrapped(config: Config, tensors: Tensors) -> Tensors:
    """Mistral 3's text model within one that sees."""
    text = dict(config)
    config.clear()
    config |= {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text}
    config |= {"vision_config": {"hidden_size": 8}, "spatial_merge_size": 2, "tie_word_embeddings": False}
    eyes = {"vision_tower.patch_conv.weight": np.zeros((8, 3), np.float32)}
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()} | eyes


def test_mistral_3_within_a_model_that_sees(tmp_path: Path) -> None:
    made = check(tmp_path, published("ministral3", tmp_path, wrapped))
    assert open_gguf(str(made)).metadata["mistral3.attention.temperature_scale"].data == pytest.approx(0.4)


def test_solar_open_need_not_say_that_whole_heads_turn(tmp_path: Path) -> None:
    def silent(config: Config, tensors: Tensors) -> Tensors:
        for name in ("partial_rotary_factor", "first_k_dense_replace", "intermediate_size"):
            config.pop(name, None)
        return tensors

    made = check(tmp_path, published("solar open", tmp_path, silent))
    assert open_gguf(str(made)).metadata["glm4moe.rope.dimension_count"].data == 12


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("cohere2moe", "shared_expert_combination_strategy", "sum"),
        ("laguna", "moe_router_logit_softcapping", 30.0),
        ("laguna", "gating", "per-element"),
        ("laguna", "mlp_layer_types", ["sparse", "dense", "sparse", "sparse"]),
        ("ernie4_5_moe", "moe_layer_end_index", 3),
        ("afmoe", "route_norm", False),
        ("mellum", "mlp_layer_types", ["dense", "sparse", "sparse", "sparse"]),
        ("dbrx", "ffn_config", {"ffn_hidden_size": 40, "moe_num_experts": 5, "moe_normalize_expert_weights": 2.0}),
    ],
)
def test_what_no_file_can_say_is_refused(kind: str, key: str, value: Any, tmp_path: Path) -> None:
    def said(config: Config, tensors: Tensors) -> Tensors:
        config[key] = value
        return tensors

    published(kind, tmp_path, said)
    with pytest.raises(GgferryError):
        graph_of(str(tmp_path))


Q_NORMS = {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}


def fused(tensors: Tensors) -> Tensors:
    """Ling's names, with queries, keys and values in one matrix."""
    words = {
        "model.embed_tokens": "model.word_embeddings", "self_attn.o_proj": "attention.dense", "self_attn": "attention",
        "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias", **Q_NORMS,
    }
    found = {}
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            name, tensor = name.replace("q_proj", "query_key_value"), np.concatenate(parts)
        for old, new in words.items():
            name = name.replace(old, new)
        if not any(part in name for part in ("k_proj", "v_proj", "moe_statics")):
            found[name] = tensor
    return found


def test_ling_2_is_glms_graph(tmp_path: Path) -> None:
    def ling(config: Config, tensors: Tensors) -> Tensors:
        config |= {"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": config.pop("n_routed_experts")}
        config |= {"num_shared_experts": config.pop("n_shared_experts"), "score_function": "sigmoid"}
        return fused(tensors)

    published("glm4moe", tmp_path, ling, attention_bias=False)
    logits = make("glm4moe", tmp_path / "glm", attention_bias=False)
    made = open_gguf(str(check(tmp_path, logits))).metadata
    assert made["bailingmoe2.expert_shared_feed_forward_length"].data * 2 == 80
    assert made["bailingmoe2.rope.dimension_count"].data == 6


def test_what_predicts_further_tokens_of_ling_2_is_glms_block(tmp_path: Path) -> None:
    """Its last norm is called otherwise, and stands before the output; alone, no runtime takes such blocks."""
    predicting("glm4moe", tmp_path, attention_bias=False, num_attention_heads=4, num_key_value_heads=2)
    further = further_logits("glm4moe", tmp_path)
    path, config = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": config.pop("n_routed_experts")}
    config |= {"num_shared_experts": config.pop("n_shared_experts"), "score_function": "sigmoid"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    named = {name.replace("shared_head.norm", "final_layernorm"): x for name, x in fused(load_file(path)).items()}
    save_file({name: np.ascontiguousarray(x) for name, x in named.items()}, path)
    source = understand(open_checkpoint(str(tmp_path)))
    assert relative(further, forward(source, TOKENS, part=part_compared(source))[len(TOKENS) :]) <= 1e-5
    only = understand(open_checkpoint(str(tmp_path)), mtp_only=True)
    assert not only.runtimes and any("loads no file of such blocks alone" in note for note in only.notes)
    again = graph_of(str(write(only, tmp_path / "x.gguf")))
    assert again.by_name.keys() == only.by_name.keys()
    assert relative(forward(only, TOKENS), forward(again, TOKENS)) <= 1e-6


@pytest.mark.slow
def test_llama_cpp_takes_what_predicts_further_tokens_of_ling_2(tmp_path: Path) -> None:
    """The block behind the last one is carried, and its last norm under llama.cpp's name for it."""

    def ling(config: Config, tensors: Tensors) -> Tensors:
        config |= {"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": config.pop("n_routed_experts")}
        config |= {"num_shared_experts": config.pop("n_shared_experts"), "score_function": "sigmoid"}
        last = config["num_hidden_layers"] - 1
        found, at = fused(tensors), f"model.layers.{last + 1}."
        of_last = {name: x for name, x in found.items() if name.startswith(f"model.layers.{last}.")}
        found |= {name.replace(f"model.layers.{last}.", at): x + 0.25 for name, x in of_last.items()}
        shapes = {"eh_proj": (48, 96), "enorm": (48,), "hnorm": (48,), "final_layernorm": (48,)}
        random = np.random.default_rng(5)
        return found | {f"{at}{name}.weight": random.normal(0, 0.3, shape).astype(np.float32)
                        for name, shape in shapes.items()}

    logits = published("glm4moe", tmp_path, ling, attention_bias=False, num_attention_heads=4, num_key_value_heads=2)
    graph = understand(open_checkpoint(str(tmp_path)), mtp=True)
    assert relative(logits, forward(graph, TOKENS)) <= 1e-5
    path = write(graph, tmp_path / "x.gguf")
    blocks = graph.sizes["n_layer"]
    assert {f"blk.{blocks}.nextn.eh_proj.weight", f"blk.{blocks}.layer_output_norm.weight"} <= set(graph.by_name)
    (found,) = continuations(TOKENS, 2, path)
    assert [token for token, _ in found][:1] == [int(logits[-1].argmax())]
    plain = understand(open_checkpoint(str(tmp_path)), mtp=False)
    assert any("predicts further tokens" in drop.reason for drop in plain.dropped)


def test_sarvam_is_ling_2_whose_whole_heads_turn(tmp_path: Path) -> None:
    def sarvam(config: Config, tensors: Tensors) -> Tensors:
        config |= {"architectures": ["SarvamMoEForCausalLM"], "num_experts": config.pop("n_routed_experts")}
        config |= {"num_shared_experts": config.pop("n_shared_experts"), "score_function": "sigmoid"}
        config["rope_parameters"].pop("partial_rotary_factor")
        return fused(tensors)

    whole = {"attention_bias": False, "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 1.0}}
    logits = published("glm4moe", tmp_path, sarvam, **whole)
    assert open_gguf(str(check(tmp_path, logits))).metadata["bailingmoe2.rope.dimension_count"].data == 12


class Grove(torch.nn.Module):
    """Qwen3-MoE's experts, and a smaller one for a pair of them, with the same weights, times 0.05."""

    def __init__(self, inner: Any, smaller: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.smaller = inner, smaller

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        x = hidden[0]
        weights, chosen = (x @ self.inner.gate.weight.T).softmax(-1).topk(2, -1)
        weights, out = weights / weights.sum(-1, keepdim=True), torch.zeros_like(x)
        for token, row in enumerate(chosen.tolist()):
            for place, expert in enumerate(row):
                gate, up, down = (self.smaller[f"{expert // 2}.{part}"] for part in ("gate", "up", "down"))
                y = (torch.nn.functional.silu(x[token] @ gate.T) * (x[token] @ up.T)) @ down.T
                out[token] += weights[token, place] * y
        return self.inner(hidden) + 0.05 * out[None]


def test_grovemoe_adds_a_smaller_expert_a_group(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    make("qwen3moe", tmp_path, num_experts=6, num_attention_heads=8, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    random, tensors = torch.Generator().manual_seed(5), load_file(tmp_path / "model.safetensors")
    for n, layer in enumerate(model.model.layers):
        shapes = {"gate": (20, 48), "up": (20, 48), "down": (48, 20)}
        smaller = {
            f"{e}.{part}": torch.randn(*shape, generator=random) for e in range(3) for part, shape in shapes.items()
        }
        layer.mlp = Grove(layer.mlp, smaller)
        for name, weight in smaller.items():
            tensors[f"model.layers.{n}.mlp.chunk_experts.{name}_proj.weight"] = weight.numpy()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["GroveMoeForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    made = check(tmp_path, logits)
    assert open_gguf(str(made)).metadata["grovemoe.expert_chunk_feed_forward_length"].data == 20
    assert "llama.cpp runs this differently" in " ".join(graph_of(str(made)).notes)


def halved(config: Config, tensors: Tensors) -> Tensors:
    """Rotary pairs that lie side by side, as halves."""
    width = config["head_dim"]
    for name in [name for name in tensors if ".q_proj." in name or ".k_proj." in name]:
        tensor = tensors[name]
        pairs = tensor.reshape(-1, width // 2, 2, tensor.shape[-1])
        tensors[name] = pairs.swapaxes(1, 2).reshape(tensor.shape)
    return tensors


def unbiased_ernie(folder: Path) -> np.ndarray:
    """ERNIE's mixture whose experts are chosen by score alone, in `folder`, and transformers' logits of it."""
    import torch
    from transformers import Ernie4_5_MoeForCausalLM

    published(
        "ernie4_5_moe", folder, lambda _, tensors: {n: x * ("moe_statics" not in n) for n, x in tensors.items()},
        moe_layer_start_index=0, head_dim=6,
    )
    model = Ernie4_5_MoeForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([TOKENS])).logits[0].numpy()
    return logits


def like_ernie(architecture: str, normed: bool) -> Callable[[Config, Tensors], Tensors]:
    """ERNIE's mixture by the keys and names of Ling's and DeepSeek's first."""

    def edit(config: Config, tensors: Tensors) -> Tensors:
        config |= {"architectures": [architecture], "n_routed_experts": config.pop("moe_num_experts")}
        config |= {"num_experts_per_tok": config.pop("moe_k"), "n_shared_experts": config.pop("moe_num_shared_experts")}
        config |= {"first_k_dense_replace": config.pop("moe_layer_start_index"), "tie_word_embeddings": False}
        config["norm_topk_prob"] = normed
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        found = {name: x for name, x in halved(config, tensors).items() if "moe_statics" not in name}
        return fused(found) if architecture.startswith("Bailing") else found

    return edit


@pytest.mark.parametrize("architecture", ["BailingMoeForCausalLM", "DeepseekForCausalLM"])
def test_the_first_of_ling_and_deepseek_are_ernies_graph(architecture: str, tmp_path: Path) -> None:
    logits = unbiased_ernie(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = like_ernie(architecture, normed=True)(config, dict(load_file(tmp_path / "model.safetensors")))
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    check(tmp_path, logits)
    runs = "llama.cpp" in graph_of(str(tmp_path)).runtimes
    assert runs == architecture.startswith("Bailing")  # llama.cpp's deepseek never norms


def test_what_thinks_of_deepseek_ocr_is_ernies_graph(tmp_path: Path) -> None:
    logits = unbiased_ernie(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = like_ernie("DeepseekV2ForCausalLM", normed=True)(config, dict(load_file(tmp_path / "model.safetensors")))
    tensors |= {"model.sam_model.patch_embed.proj.weight": np.ones((2, 3), np.float32)}
    tensors |= {"model.view_seperator": np.ones(48, np.float32)}
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, tmp_path / "model.safetensors")
    inner = config | {"use_mla": False, "kv_lora_rank": None, "qk_rope_head_dim": 0, "topk_method": "greedy"}
    whole = {"architectures": ["DeepseekOCRForCausalLM"], "language_config": inner, "vision_config": {"width": 3}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    check(tmp_path, logits)
    source = graph_of(str(tmp_path))
    assert source.architecture.name == "deepseek2-ocr" and "rotary base of 10000" in " ".join(source.notes)
    assert len(source.dropped) == 2


def arctic(config: Config, tensors: Tensors) -> Tensors:
    """LLaMA's graph, beside which experts stand that give nothing."""
    config |= {"architectures": ["ArcticForCausalLM"], "num_local_experts": 3, "num_experts_per_tok": 2}
    config |= {"intermediate_size": 40, "parallel_attn_mlp_res": True}
    words = {
        "post_attention_layernorm": "residual_layernorm", "mlp.gate_proj": "residual_mlp.w1",
        "mlp.down_proj": "residual_mlp.w2", "mlp.up_proj": "residual_mlp.w3",
    }
    found, chance = {}, np.random.default_rng(3)
    for name, tensor in tensors.items():
        for old, new in words.items():
            name = name.replace(old, new)
        found[name] = tensor
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        found[f"{layer}post_attention_layernorm.weight"] = np.ones(48, np.float32)
        found[f"{layer}block_sparse_moe.gate.weight"] = chance.standard_normal((3, 48)).astype(np.float32)
        for e in range(3):
            expert = f"{layer}block_sparse_moe.experts.{e}."
            found |= {f"{expert}w{i}.weight": np.ones((40, 48), np.float32) for i in (1, 3)}
            found[f"{expert}w2.weight"] = np.zeros((48, 40), np.float32)
    return found


def test_arctic_without_its_experts_is_llama(tmp_path: Path) -> None:
    sizes = {"intermediate_size": 48, "num_attention_heads": 8, "num_key_value_heads": 2}
    check(tmp_path, published("llama", tmp_path, arctic, **sizes))


@pytest.mark.slow
def test_llama_cpp_continues_an_arctic_with_experts(tmp_path: Path) -> None:
    def stirred(config: Config, tensors: Tensors) -> Tensors:
        chance, found = np.random.default_rng(5), arctic(config, tensors)
        for name in [name for name in found if ".experts." in name]:
            found[name] = (chance.standard_normal(found[name].shape) * 0.2).astype(np.float32)
        return found

    sizes = {"intermediate_size": 48, "num_attention_heads": 8, "num_key_value_heads": 2}
    published("llama", tmp_path, stirred, **sizes)
    graph = graph_of(str(tmp_path))
    (found,) = continuations(TOKENS, 6, write(graph, tmp_path / "x.gguf"))
    tokens = list(TOKENS)
    for token, probability in found:
        logits = forward(graph, tokens)[-1].astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert token == int(scores.argmax()) and probability == pytest.approx(scores.max(), abs=1e-4)
        tokens.append(token)
