"""BERT and NomicBert: the oracle's states and files, variants against transformers, llama.cpp's embeddings."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggferry
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import EXACT_LOGITS
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import GgferryError, InconsistentError, OutOfRangeError, UnsupportedError, UsageError
from helpers.peers import Peers
from helpers.third_party_fixtures import hf_tokens
from helpers.tiny_models import relative, shake, whole

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)
LIMIT = 1e-5
IDS = [2, 17, 42, 9, 3]


@pytest.fixture(scope="module")
def hf(fixtures: Path) -> Path:
    return fixtures / "hf"


@pytest.mark.slow
def test_bert_is_the_oracles(hf: Path, peer: Peers, tmp_path: Path) -> None:
    """Names, shapes, bytes, keys, vocabulary and states; the pooler is dropped with a reason, as the file's is."""
    result = convert(Request(str(hf / "ckpt" / "bert"), str(tmp_path / "x.gguf")))[0]
    ours, theirs = graph_of(result.path), graph_of(str(peer("hf/out/bert/bert.f32.gguf")))
    tokens = hf_tokens()
    expected = np.load(hf / "out" / "bert" / "hf_logits_f32.npy")
    for graph in (graph_of(str(hf / "ckpt" / "bert")), ours, theirs):
        assert relative(expected, forward(graph, tokens)) <= LIMIT
    a, b = whole(ours), whole(theirs)
    assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
    mine, other = ours.checkpoint.metadata, theirs.checkpoint.metadata
    spelling = {"tokenizer.ggml.seperator_token_id"}  # as llama.cpp reads it; the specification's is written as well
    named = {"general.name", "general.size_label", "general.file_type", "general.quantization_version"}
    assert {key for key in other if mine.get(key) != other[key]} <= named | spelling
    assert result.receipt["logits"]["what"] == "states of the last block"
    assert result.receipt["logits"]["top1_agreement"] is None
    assert result.receipt["logits"]["relative_rms"] <= EXACT_LOGITS
    assert result.receipt["runtimes"]["run_it"] == ["llama.cpp"]
    assert sorted(drop["name"] for drop in result.receipt["dropped"]) == ["pooler.dense.bias", "pooler.dense.weight"]


def test_bert_agrees_with_llama_cpp(hf: Path) -> None:
    """Its gelu is a table of the tanh form in float16."""
    tokens = hf_tokens()
    found = forward(graph_of(str(hf / "ckpt" / "bert")), tokens)
    assert relative(np.load(hf / "out" / "bert" / "llamacpp_logits_f32.npy"), found) <= 1e-3


SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 40,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert, one type": ("Bert", {"type_vocab_size": 1}),
    "bert, three types, eps": ("Bert", {"type_vocab_size": 3, "layer_norm_eps": 1e-3}),
    "nomic": ("NomicBert", {}),
    "nomic, base": ("NomicBert", {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}),
    "nomic, eps": ("NomicBert", {"layer_norm_eps": 1e-3, "type_vocab_size": 1}),
}


def saved(folder: Path, name: str, **changes: Any) -> np.ndarray:
    """States of a random model, which is saved by transformers."""
    import torch
    import transformers

    torch.manual_seed(3)
    kind, own = VARIANTS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **own, **changes})
    model = getattr(transformers, f"{kind}Model")(config).eval()
    shake(model)
    model.save_pretrained(folder)
    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).last_hidden_state[0].numpy()


def edited(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_against_transformers(name: str, tmp_path: Path) -> None:
    expected = saved(tmp_path / "hf", name)
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    for side in (str(tmp_path / "hf"), result.path):
        assert relative(expected, forward(graph_of(side), IDS)) <= LIMIT


def nomic_ai(folder: Path) -> Path:
    """A NomicBert as nomic-ai publishes it: transformers saves it under the same names, with its own configuration."""
    own = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "n_embd": 48,
        "n_head": 3,
        "n_inner": 80,
        "n_layer": 3,
        "n_positions": 160,
        "max_trained_positions": 40,
        "vocab_size": 96,
        "type_vocab_size": 2,
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_scaling_factor": 2,
        "prenorm": False,
        "causal": False,
        "auto_map": {"AutoModel": "modeling.NomicBertModel"},
    }
    (folder / "config.json").write_text(json.dumps(own))
    return folder


def with_names_of_the_code(source: Path, target: Path) -> Path:
    """The names that transformers' own modules have, with queries, keys and values apart (`conversion_mapping.py`)."""
    from safetensors.numpy import load_file, save_file

    found = {}
    for name, array in load_file(source / "model.safetensors").items():
        for old, new in (
            ("emb_ln", "embeddings.LayerNorm"),
            ("encoder.layers.", "layers."),
            ("attn.out_proj", "self_attn.o_proj"),
            ("fc11", "up_proj"),
            ("fc12", "gate_proj"),
            ("fc2", "down_proj"),
            ("norm1", "post_attention_layernorm"),
            ("norm2", "post_mlp_layernorm"),
        ):
            name = name.replace(old, new)
        if "Wqkv" in name:
            parts = zip("qkv", np.split(array, 3), strict=True)
            found |= {name.replace("attn.Wqkv", f"self_attn.{part}_proj"): rows.copy() for part, rows in parts}
        else:
            found[name] = array
    target.mkdir()
    (target / "config.json").write_text((source / "config.json").read_text())
    save_file(found, target / "model.safetensors")
    return target


def test_all_layouts_of_nomic_become_one_model(tmp_path: Path) -> None:
    expected = saved(tmp_path / "hf", "nomic")
    first = understand(open_checkpoint(str(tmp_path / "hf")))
    apart = understand(open_checkpoint(str(with_names_of_the_code(tmp_path / "hf", tmp_path / "apart"))))
    own = understand(open_checkpoint(str(nomic_ai(tmp_path / "hf"))))
    assert [graph.dialect.name for graph in (first, apart, own)] == ["nomic", "hf", "nomic"]
    tensors = whole(first)
    for graph in (first, apart, own):
        assert relative(expected, forward(graph, IDS)) <= LIMIT
        assert all(np.array_equal(tensors[name], array) for name, array in whole(graph).items())
        assert {key: value for key, value, _ in graph.written()} == {key: value for key, value, _ in first.written()}
    assert any("stretches the rotary base by 2" in note for note in own.notes)
    result = convert(Request(str(tmp_path / "apart"), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    assert result.receipt["verified"] == "full" and relative(expected, forward(graph_of(result.path), IDS)) <= LIMIT


def test_nomic_by_its_published_equations(tmp_path: Path) -> None:
    """2402.01613 §3: rotary positions instead of learned ones, SwiGLU, and otherwise BERT; no biases in its layers.
    Written without any of ggferry's code."""
    saved(tmp_path, "nomic")
    graph = understand(open_checkpoint(str(tmp_path)))
    w = {name: value.astype(np.float64) for name, value in whole(graph).items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def rotated(x: np.ndarray) -> np.ndarray:  # (n, heads, 16)
        angles = np.arange(len(x))[:, None] * 1000.0 ** (-np.arange(8) / 8)
        spin = np.exp(1j * angles)[:, None] * (x[..., :8] + 1j * x[..., 8:])
        return np.concatenate((spin.real, spin.imag), -1)

    x = norm(w["token_embd.weight"][IDS] + w["token_types.weight"][0], "token_embd_norm")
    for n in range(3):
        q, k, v = ((x @ part.T).reshape(-1, 3, 16) for part in np.split(w[f"blk.{n}.attn_qkv.weight"], 3))
        scores = np.einsum("ihd,jhd->hij", rotated(q), rotated(k)) / 4
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", odds / odds.sum(-1, keepdims=True), v).reshape(-1, 48)
        x = norm(x + mixed @ w[f"blk.{n}.attn_output.weight"].T, f"blk.{n}.attn_output_norm")
        gate = x @ w[f"blk.{n}.ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (x @ w[f"blk.{n}.ffn_up.weight"].T)
        x = norm(x + inner @ w[f"blk.{n}.ffn_down.weight"].T, f"blk.{n}.layer_output_norm")
    assert relative(x, forward(graph, IDS)) <= LIMIT


# --- what stands beside the model -----------------------------------------------------------------------------


def pooled(folder: Path, path: str = "1_Pooling", **modes: bool) -> Path:
    kind = "sentence_transformers.models"
    modules = [
        {"idx": 0, "path": "", "type": f"{kind}.Transformer"},
        {"idx": 1, "path": path, "type": f"{kind}.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({f"pooling_mode_{mode}": on for mode, on in modes.items()})
    )
    return folder


@pytest.mark.parametrize(("mode", "number"), [("mean_tokens", 1), ("cls_token", 2), ("lasttoken", 3)])
def test_pooling_is_written(mode: str, number: int, tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    graph = understand(open_checkpoint(str(pooled(tmp_path, **{"cls_token": False, "mean_tokens": False, mode: True}))))
    assert {key: value.data for key, value, _ in graph.written()}["bert.pooling_type"] == number


def test_pooling_that_gguf_cannot_say_and_folders_elsewhere(tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    with pytest.raises(InconsistentError, match="pooling by max"):
        understand(open_checkpoint(str(pooled(tmp_path, max_tokens=True))))
    assert understand(open_checkpoint(str(tmp_path)), {"pooling_type": "1"}).sizes["pooling"] == 1
    for path in ("../1_Pooling", "/etc", "..", ""):
        with pytest.raises(OutOfRangeError, match="within the model"):
            open_checkpoint(str(pooled(tmp_path, path, mean_tokens=True)))


def test_without_pooling_bert_says_nothing_and_nomic_its_mean(tmp_path: Path) -> None:
    for name, expected in (("bert", None), ("nomic", 1)):
        saved(tmp_path / name, name)
        written = {key: value.data for key, value, _ in understand(open_checkpoint(str(tmp_path / name))).written()}
        prefix = "bert" if name == "bert" else "nomic-bert"
        assert written.get(f"{prefix}.pooling_type") == expected and written[f"{prefix}.attention.causal"] is False


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("bert", "hidden_act", "relu"),
        ("bert", "hidden_act", "silu"),
        ("bert", "num_attention_heads", 5),
        ("bert", "position_embedding_type", "relative_key"),
        ("bert", "is_decoder", True),
        ("bert", "type_vocab_size", 3),
        ("bert", "max_position_embeddings", 41),
        ("bert", "num_hidden_layers", 2),
        ("bert", "num_attention_heads", 0),
        ("bert", "layer_norm_eps", "a"),
        ("nomic", "hidden_act", "gelu"),
        ("nomic", "rope_parameters", {"rope_type": "llama3", "factor": 2.0}),
        ("nomic", "head_dim", 8),
        ("nomic", "num_attention_heads", 48),
    ],
)
def test_what_contradicts_or_cannot_be_said_is_refused(name: str, key: str, value: Any, tmp_path: Path) -> None:
    saved(tmp_path, name)
    with pytest.raises(GgferryError):
        understand(open_checkpoint(str(edited(tmp_path, **{key: value}))))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "gelu"),
        ("rotary_emb_fraction", 0.5),
        ("prenorm", True),
        ("moe_every_n_layers", 2),
        ("rotary_emb_interleaved", True),
        ("rotary_head_dim", True),
    ],
)
def test_what_nomics_own_code_could_do_besides_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    saved(tmp_path / "hf", "nomic")
    folder = nomic_ai(tmp_path / "hf")
    with pytest.raises(UnsupportedError):
        understand(open_checkpoint(str(edited(folder, **{key: value}))))


def test_more_tokens_than_positions(tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    with pytest.raises(UsageError, match="at most 40"):
        forward(graph_of(str(tmp_path)), [1] * 41)


@pytest.mark.parametrize(("name", "idle"), [("bert", set()), ("nomic", {"context_length", "pooling_type"})])
def test_no_key_is_idle(name: str, idle: set[str], tmp_path: Path) -> None:
    """Every written key changes what is computed, or contradicts the tensors; how vectors are pooled and how far the
    model was trained do not enter its states."""
    saved(tmp_path / "hf", name)
    graph = graph_of(convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].path)
    expected, found, prefix = forward(graph, IDS), set(), f"{graph.architecture.name}."
    for key, value in graph.checkpoint.metadata.items():
        if key.startswith(prefix):
            changed = (
                (not value.data) if isinstance(value.data, bool) else value.data * (1e9 if value.data < 1e-6 else 2)
            )
            other = replace(graph.checkpoint, metadata={**graph.checkpoint.metadata, key: replace(value, data=changed)})
            try:
                if np.array_equal(expected, forward(understand(other), IDS)):
                    found.add(key.removeprefix(prefix))
            except GgferryError:
                continue
    assert found == idle


# --- llama.cpp --------------------------------------------------------------------------------------------------

EMBED = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.embedding, params.n_ctx, params.n_parallel = sys.argv[1], True, 128, 1
params.n_gpu_layers, params.warmup, params.verbosity = 0, False, -1
params.pooling_type = getattr(xllamacpp.llama_pooling_type, "LLAMA_POOLING_TYPE_" + sys.argv[3])
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
answer = server.handle_embeddings({"input": json.loads(sys.argv[2]), "embd_normalize": -1})
print("ANSWER", json.dumps(answer["data"][0]["embedding"]))
"""
POOLED = {"MEAN": lambda states: states.mean(0), "CLS": lambda states: states[0], "LAST": lambda states: states[-1]}


def llama_cpps(path: str, tokens: list[int], pooling: str) -> np.ndarray:
    """Its embedding of the tokens. One vector a text is all its server gives, so states are compared by how they are
    pooled."""
    command = [sys.executable, "-c", EMBED, path, json.dumps(tokens), pooling]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stdout[-500:] + done.stderr[-2000:]
    return np.array(json.loads(lines[0].removeprefix("ANSWER ")), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", POOLED)
def test_llama_cpp_embeds_with_our_bert(pooling: str, hf: Path, tmp_path: Path) -> None:
    path = convert(Request(str(hf / "ckpt" / "bert"), str(tmp_path / "x.gguf")))[0].path
    tokens = hf_tokens()
    expected = POOLED[pooling](forward(graph_of(path), tokens))
    assert relative(expected, llama_cpps(path, tokens, pooling)) <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("pooling", POOLED)
def test_llama_cpp_embeds_with_our_nomic_bert(pooling: str, hf: Path, tmp_path: Path) -> None:
    """The oracle's BERT lends its vocabulary, without which no program loads the file. No gelu, no table."""
    saved(tmp_path / "hf", "nomic", vocab_size=384, max_position_embeddings=128)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "hf" / name).write_bytes((hf / "ckpt" / "bert" / name).read_bytes())
    path = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf")))[0].path
    tokens = [2, 99, 350, 17, 204, 42, 3]
    expected = POOLED[pooling](forward(graph_of(path), tokens))
    assert relative(expected, llama_cpps(path, tokens, pooling)) <= 1e-4


def test_a_rotary_base_that_transformers_ignores_is_said(tmp_path: Path) -> None:
    saved(tmp_path / "hf", "nomic")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    for base, said in ((1000.0, False), (500.0, True)):
        changed = {key: value for key, value in config.items() if key != "rope_parameters"} | {"rotary_emb_base": base}
        (tmp_path / "hf" / "config.json").write_text(json.dumps(changed))
        graph = understand(open_checkpoint(str(tmp_path / "hf")))
        assert graph.hparams["rope_base"].value == base
        assert any("transformers ignores it" in note for note in graph.notes) is said


@pytest.mark.slow
def test_the_road_back_states_how_many_positions_there_are(fixtures: Path, tmp_path: Path) -> None:
    """A GGUF file has no rows before the first token's, so that the length of the table follows from its context."""
    import torch
    import transformers

    source, back = fixtures / "hf" / "ckpt" / "bert", tmp_path / "back"
    ggferry.convert(str(source), out=str(tmp_path / "x.gguf"), outtype="f32", verify="fast")
    ggferry.convert(str(tmp_path / "x.gguf"), to="safetensors", out=str(back), verify="fast")
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, back)]
    assert configs[0]["max_position_embeddings"] == configs[1]["max_position_embeddings"] != 512
    ids = torch.tensor([hf_tokens()])
    with torch.no_grad():
        first, second = (
            transformers.BertModel.from_pretrained(str(folder), add_pooling_layer=False).eval()(ids).last_hidden_state
            for folder in (source, back)
        )
    assert torch.equal(first, second)
