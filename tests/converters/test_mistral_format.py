"""Mistral's own format against transformers' of the same model, and vocabularies of folders without weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import mistral_common
import pytest
import torch
from safetensors.torch import load_file, save_file

import ggferry
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.formats.errors import GgferryError, NotFoundError, UnexpectedTensorError
from helpers.archive_tools import command
from helpers.third_party_fixtures import ROOT

CHECKPOINTS = ROOT / "fixtures/hf/ckpt"
DATA = Path(mistral_common.__file__).parent / "data"
NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "block_sparse_moe": "feed_forward",
    "model.layers": "layers",
}


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """transformers' convert_mistral_weights_to_hf.py, permute_for_rope, undone."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()


def mistral_format(source: Path, folder: Path, **more: Any) -> Path:
    """The checkpoint of transformers as Mistral would have published it."""
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    tensors = {}
    for name, tensor in {k: v for path in source.glob("*.safetensors") for k, v in load_file(path).items()}.items():
        if "q_proj" in name:
            tensor = interleaved(tensor, config["num_attention_heads"])
        if "k_proj" in name:
            tensor = interleaved(tensor, config["num_key_value_heads"])
        for theirs, own in NAMES.items():
            name = name.replace(theirs, own)
        tensors[name] = tensor.clone()
    save_file(tensors, folder / "consolidated.safetensors")
    params = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "hidden_dim": config["intermediate_size"],
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "rope_theta": config["rope_theta"],
        "max_position_embeddings": config["max_position_embeddings"],
        **({"sliding_window": config["sliding_window"]} if config.get("sliding_window") else {}),
        **(
            {"moe": {"num_experts": config["num_local_experts"], "num_experts_per_tok": config["num_experts_per_tok"]}}
            if "num_local_experts" in config
            else {}
        ),
        **more,
    }
    (folder / "params.json").write_text(json.dumps(params))
    for name in ("tokenizer.model", "tokenizer.json"):
        if (source / name).exists():
            shutil.copy(source / name, folder)
    return folder


def held(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    reader = gguf.GGUFReader(path)
    skipped = ("GGUF.", "general.", "tokenizer.")
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith(skipped)}
    return keys, {tensor.name: tensor.data.tobytes() for tensor in reader.tensors}


@pytest.mark.parametrize("name", ["mistral", "mixtral"])
def test_both_formats_give_one_file(name: str, tmp_path: Path) -> None:
    own = mistral_format(CHECKPOINTS / name, tmp_path / "own")
    done = ggferry.convert(own, tmp_path / "own.gguf", verify="fast")
    ggferry.convert(CHECKPOINTS / name, tmp_path / "hf.gguf", verify="fast")
    left, right = held(tmp_path / "own.gguf"), held(tmp_path / "hf.gguf")
    widths = {"llama.attention.key_length": 16, "llama.attention.value_length": 16}  # params.json states what follows
    assert left[1] == right[1] and left[0] == {**right[0], **widths}
    assert not [each for each in done.assumed if each.name == "n_ctx"]
    assert ggferry.verify(own, tmp_path / "own.gguf", level="fast").proof.level == "fast"


@pytest.mark.slow
def test_the_flag_takes_them_though_others_are_there(tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(CHECKPOINTS / "mistral", both)
    mistral_format(CHECKPOINTS / "mistral", both)
    plain = ggferry.convert(both, tmp_path / "a.gguf", verify="fast")
    own = ggferry.convert(both, tmp_path / "b.gguf", verify="fast", mistral_format=True)
    assert [each["name"] for each in own.receipt["source"]["files"]] == ["consolidated.safetensors"]
    assert held(tmp_path / "a.gguf")[1] == held(tmp_path / "b.gguf")[1]
    assert plain.receipt["source"]["files"] != own.receipt["source"]["files"]
    command("verify", both, tmp_path / "b.gguf", "--level", "fast")  # its receipt says which were taken
    with pytest.raises(NotFoundError, match=r"no consolidated\.safetensors"):
        ggferry.convert(CHECKPOINTS / "mistral", tmp_path / "c.gguf", mistral_format=True)


def test_what_sees_is_left_out_by_name_and_anything_else_is_refused(tmp_path: Path) -> None:
    own = mistral_format(CHECKPOINTS / "mistral", tmp_path / "own", vision_encoder={"hidden_size": 8})
    tensors = load_file(own / "consolidated.safetensors")
    save_file({**tensors, "vision_encoder.conv.weight": torch.ones(2, 2)}, own / "consolidated.safetensors")
    done = ggferry.convert(own, tmp_path / "x.gguf", verify="fast")
    assert any("vision_encoder.conv.weight" in note for note in done.notes)
    save_file({**tensors, "layers.0.attention.extra": torch.ones(2, 2)}, own / "consolidated.safetensors")
    with pytest.raises(UnexpectedTensorError):
        ggferry.convert(own, tmp_path / "y.gguf")
    save_file(tensors, own / "consolidated.safetensors")


@pytest.mark.parametrize(
    "more",
    [
        {"quantization": {"qformat_weight": "fp8_e4m3"}},
        {"yarn": {"factor": 16.0, "apply_scale": False}},
        {"llama_4_scaling": {"beta": 0.1}},
    ],
)
def test_what_the_graph_does_not_do_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    own = mistral_format(CHECKPOINTS / "mistral", tmp_path / "own", **more)
    with pytest.raises(GgferryError) as error:
        ggferry.convert(own, tmp_path / "y.gguf")
    assert next(iter(more)) in str(error.value) and error.value.exit_code in (4, 5)


def test_without_a_length_one_is_assumed_and_said(tmp_path: Path) -> None:
    own = mistral_format(CHECKPOINTS / "mistral", tmp_path / "own")
    params = json.loads((own / "params.json").read_text())
    del params["max_position_embeddings"]
    (own / "params.json").write_text(json.dumps(params))
    done = ggferry.convert(own, tmp_path / "x.gguf", verify="none")
    assert [(each.name, each.value) for each in done.assumed] == [("n_ctx", 32768), ("tied", False)]


# --- vocabularies of folders without weights ---


def without_weights(name: str, folder: Path) -> Path:
    ignored = shutil.ignore_patterns("*.safetensors", "*.bin", "*.index.json")
    return Path(shutil.copytree(CHECKPOINTS / name, folder, ignore=ignored))


@pytest.mark.parametrize("name", ["llama", "qwen2", "bert", "gemma2"])
def test_a_vocabulary_needs_no_weights(name: str, tmp_path: Path) -> None:
    alone = without_weights(name, tmp_path / "alone")
    done = ggferry.convert(alone, tmp_path / "alone.gguf", vocab_only=True)
    ggferry.convert(CHECKPOINTS / name, tmp_path / "whole.gguf", vocab_only=True)
    fields = [gguf.GGUFReader(tmp_path / f"{which}.gguf").fields for which in ("alone", "whole")]
    keys = [{k: f.contents() for k, f in found.items() if k.startswith("tokenizer.")} for found in fields]
    assert keys[0] == keys[1] and len(keys[0]) > 5
    assert any("no weights are here" in note for note in done.notes)
    assert "config.json" in [each["name"] for each in done.receipt["source"]["files"]]
    assert ggferry.verify(alone, tmp_path / "alone.gguf").proof


def test_without_the_flag_or_a_tokenizer_it_is_refused(tmp_path: Path) -> None:
    alone = without_weights("llama", tmp_path / "alone")
    with pytest.raises(GgferryError):
        ggferry.convert(alone, tmp_path / "x.gguf")
    (alone / "tokenizer.model").unlink()
    with pytest.raises(GgferryError):
        ggferry.convert(alone, tmp_path / "x.gguf", vocab_only=True)
    assert not (tmp_path / "x.gguf").exists()


def small_params(folder: Path, tekken: Path) -> Path:
    folder.mkdir()
    params = {
        "dim": 64,
        "n_layers": 1,
        "head_dim": 16,
        "hidden_dim": 96,
        "n_heads": 4,
        "n_kv_heads": 2,
        "norm_eps": 1e-5,
        "vocab_size": 131072,
        "rope_theta": 1e6,
        "max_position_embeddings": 4096,
    }
    (folder / "params.json").write_text(json.dumps(params))
    shutil.copy(tekken, folder / "tekken.json")
    return folder


@pytest.mark.slow
def test_params_and_tekken_alone_make_a_vocabulary_that_llama_cpp_reads_alike(tmp_path: Path) -> None:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekken = DATA / "tekken_240911.json"
    ggferry.convert(small_params(tmp_path / "nemo", tekken), tmp_path / "v.gguf", vocab_only=True, verify="fast")
    theirs = Tekkenizer.from_file(tekken)
    program = Path(__file__).parents[1] / "helpers/llama_vocabulary.py"
    texts = [text for text in TEXTS if text]
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "v.gguf")],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = zip(texts, json.loads(done.stdout.splitlines()[-1]), strict=True)
    differing = [text for text, ids in found if ids != theirs.encode(text, bos=True, eos=False)]
    assert len(differing) == 3  # where llama.cpp's pattern has no \\p{M}, as a note says
    assert all(any(unicodedata.category(sign).startswith("M") for sign in text) for text in differing)


def with_real_vocabulary(folder: Path, file: Path, name: str) -> Path:
    """A small model as Mistral publishes one: consolidated weights, params.json, a tokenizer file of its own name."""
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    folder.mkdir()
    rows = SentencePieceTokenizer(str(file)).n_words
    made = torch.Generator().manual_seed(7)
    shapes = {
        "tok_embeddings": (rows, 64),
        "output": (rows, 64),
        "layers.0.attention.wq": (64, 64),
        "layers.0.attention.wk": (32, 64),
        "layers.0.attention.wv": (32, 64),
        "layers.0.attention.wo": (64, 64),
        "layers.0.feed_forward.w1": (96, 64),
        "layers.0.feed_forward.w2": (64, 96),
        "layers.0.feed_forward.w3": (96, 64),
        "norm": (64,),
        "layers.0.attention_norm": (64,),
        "layers.0.ffn_norm": (64,),
    }
    tensors = {f"{key}.weight": (torch.randn(shape, generator=made) * 0.1).bfloat16() for key, shape in shapes.items()}
    save_file(tensors, folder / "consolidated.safetensors")
    params = {
        "dim": 64,
        "n_layers": 1,
        "head_dim": 16,
        "hidden_dim": 96,
        "n_heads": 4,
        "n_kv_heads": 2,
        "norm_eps": 1e-5,
        "vocab_size": rows,
        "rope_theta": 1e6,
        "max_position_embeddings": 4096,
    }
    (folder / "params.json").write_text(json.dumps(params))
    shutil.copy(file, folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.model", "own"])
@pytest.mark.parametrize(
    "file", ["mistral_instruct_tokenizer_240323.model.v3", "mistral_instruct_tokenizer_241114.model.v7"]
)
def test_real_sentencepiece_files_give_mistral_commons_ids(file: str, name: str, tmp_path: Path) -> None:
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer

    own = f"tokenizer.model.{file[-2:]}"
    source = with_real_vocabulary(tmp_path / "own", DATA / file, own if name == "own" else name)
    done = ggferry.convert(source, tmp_path / "x.gguf")
    assert done.receipt["tokenizer"]["model"] == "llama"
    theirs = SentencePieceTokenizer(str(DATA / file))
    texts = [text for text in TEXTS if text and "\0" not in text]
    program = ROOT / "tests" / "helpers" / "llama_vocabulary.py"
    answer = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "x.gguf")],
        input=json.dumps(texts).encode(),
        capture_output=True,
        check=True,
    )
    found = zip(texts, json.loads(answer.stdout), strict=True)
    assert [text for text, ids in found if ids != theirs.encode(text, bos=True, eos=False)] == []
    assert [ggferry.open_model(tmp_path / "x.gguf").tokenize(text) for text in texts[:8]] == [
        theirs.encode(text, bos=True, eos=False) for text in texts[:8]
    ]
