"""Models that make sound of codes: computed as their publishers' modules do, and as llama.cpp does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Lfm2Config, Lfm2Model

import ggferry
from ggferry.converters.forward.evaluate import embedding, forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, InconsistentError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_api import states
from helpers.tiny_models import check_streaming, relative

TOKENS = [5, 17, 3, 90, 41, 41, 8, 62, 77, 12, 0, 33]
LFM2: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    "norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 1e6,
}
KINDS = ["conv", "sliding_attention", "conv", "sliding_attention"]
WINDOW, OUT = 5, 34


def lfm2_codes(folder: Path, **changes: Any) -> tuple[Lfm2Model, torch.nn.Linear]:
    """Save a random detokenizer of LFM2.5-Audio; return what computes it: LiquidAI's `detokenizer.py` makes the same
    two modules."""
    torch.manual_seed(3)
    blocks = [kind.replace("sliding", "full") for kind in KINDS]
    model, last = Lfm2Model(Lfm2Config(**LFM2, layer_types=blocks)).eval(), torch.nn.Linear(LFM2["hidden_size"], OUT)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *last.named_parameters()):
            value.normal_(1.0 if "norm" in name else 0.0, 0.25)
    tensors = {f"lfm.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"lin.{name}": value for name, value in last.state_dict().items()}
    tensors |= {"emb.emb.weight": torch.randn(64, LFM2["hidden_size"]), "istft.window": torch.hann_window(32)}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["Lfm25AudioTokenizer"],
        "model_type": "lfm2",
        **LFM2,
        "layer_types": KINDS,
        "sliding_window": WINDOW,
        "output_size": OUT,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return model, last


def lfm2_spectrum(model: Lfm2Model, last: torch.nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of the last block, and the spectrum, as LiquidAI's `detokenizer.py` computes them."""
    distance = torch.arange(len(TOKENS))[:, None] - torch.arange(len(TOKENS))
    seen = ((distance >= 0) & (distance < WINDOW))[None, None]
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([TOKENS]), attention_mask=mask, use_cache=False).last_hidden_state[0]
        return rows.numpy(), last(rows).numpy()


def test_lfm2_codes_as_transformers(tmp_path: Path) -> None:
    rows, spectrum = lfm2_spectrum(*lfm2_codes(tmp_path / "hf"))
    source = graph_of(str(tmp_path / "hf"))
    check_streaming(source)
    assert relative(rows, forward(source, TOKENS)) <= 1e-5
    mean = spectrum.mean(0)
    assert relative(mean / np.linalg.norm(mean), embedding(source, forward(source, TOKENS))) <= 1e-5


def test_windows_of_other_models_of_lfm2_are_refused(tmp_path: Path) -> None:
    """transformers makes a convolution of every block whose kind is not full_attention."""
    lfm2_codes(tmp_path / "hf", architectures=["Lfm2Model"])
    others = {name: value for name, value in load_file(tmp_path / "hf" / "model.safetensors").items() if "lfm." in name}
    save_file(
        {name.removeprefix("lfm."): value for name, value in others.items()}, tmp_path / "hf" / "model.safetensors"
    )
    with pytest.raises(InconsistentError, match="sliding_attention"):
        graph_of(str(tmp_path / "hf"))


class Residual(torch.nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (torch.nn.GroupNorm(groups, width, eps=1e-6) for _ in range(2))
        self.conv1, self.conv2 = (torch.nn.Conv1d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(torch.nn.functional.silu(self.norm1(x)))
        return x + self.conv2(torch.nn.functional.silu(self.norm2(y)))


class Attending(torch.nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(groups, width, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (torch.nn.Conv1d(width, width, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.norm(x)
        q, k, v = (part(read).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(seen.transpose(1, 2))


class ConvNext(torch.nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.dwconv = torch.nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = torch.nn.LayerNorm(width, 1e-6)
        self.pwconv1, self.pwconv2 = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.gamma = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.gamma * self.pwconv2(torch.nn.functional.gelu(self.pwconv1(y)))
        return x + y.transpose(1, 2)


class WavTokenizer(torch.nn.Module):
    """Of torch's modules, as jishengpeng/WavTokenizer's `decoder/models.py` and `modules.py` put them together."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.embed = torch.nn.Embedding(96, 24), torch.nn.Conv1d(24, 32, 7, padding=3)
        self.posnet = torch.nn.Sequential(
            Residual(32, 4),
            Residual(32, 4),
            Attending(32, 4),
            Residual(32, 4),
            Residual(32, 4),
            torch.nn.GroupNorm(4, 32, eps=1e-6),
        )
        self.norm, self.final_layer_norm = torch.nn.LayerNorm(32, 1e-6), torch.nn.LayerNorm(32, 1e-6)
        self.convnext, self.out = torch.nn.Sequential(*(ConvNext(32, 48) for _ in range(7))), torch.nn.Linear(32, OUT)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.posnet(self.embed(self.embedding(tokens).transpose(1, 2)))
        x = self.convnext(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return self.out(self.final_layer_norm(x.transpose(1, 2)))


def wavtokenizer(folder: Path, **changes: Any) -> WavTokenizer:
    """Save a random decoder as llama.cpp's `convert_pt_to_hf.py` does, biases of convolutions as columns."""
    torch.manual_seed(5)
    model = WavTokenizer().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            is_norm = "norm" in name or "posnet.5" in name or "gamma" in name
            value.normal_(1.0 if is_norm and "bias" not in name else 0.0, 0.25)
    tensors = {}
    for name, value in model.state_dict().items():
        column = value.ndim == 1 and ("posnet" in name or name in ("embed.bias",) or "dwconv" in name)
        name = name.replace("posnet.5.", "posnet.5.norm.").replace("gamma", "gamma.weight")
        place = f"head.{name}" if name.startswith("out.") else f"backbone.{name}"
        tensors[place] = value[:, None].contiguous() if column else value
    codebook = "feature_extractor.encodec.quantizer.vq.layers.0._codebook."
    tensors |= {f"{codebook}{name}": torch.ones(96) for name in ("cluster_size", "inited")}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["WavTokenizerDec"],
        "hidden_size": OUT,
        "n_embd_features": 24,
        "n_ff": 48,
        "vocab_size": 96,
        "n_head": 1,
        "layer_norm_epsilon": 1e-6,
        "group_norm_epsilon": 1e-6,
        "group_norm_groups": 4,
        "max_position_embeddings": 8192,
        "n_layer": 7,
        "posnet": {"n_embd": 32, "n_layer": 6},
        "convnext": {"n_embd": 32, "n_layer": 7},
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return model


def wavtokenizer_spectrum(model: WavTokenizer) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([TOKENS]))[0].numpy()


def test_wavtokenizer_as_torch(tmp_path: Path) -> None:
    spectrum = wavtokenizer_spectrum(wavtokenizer(tmp_path / "hf"))
    source = graph_of(str(tmp_path / "hf"))
    check_streaming(source)
    assert relative(spectrum, forward(source, TOKENS)) <= 1e-5


def test_another_network_over_positions_is_refused(tmp_path: Path) -> None:
    """llama.cpp's graph and WavTokenizer's class have six parts, each of its kind."""
    wavtokenizer(tmp_path / "hf", posnet={"n_embd": 32, "n_layer": 5})
    with pytest.raises(GgferryError, match="posnet"):
        graph_of(str(tmp_path / "hf"))


@pytest.mark.slow
@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("name", ["lfm2", "wavtokenizer"])
def test_llama_cpp_gives_the_same_spectrum(name: str, outtype: str, tmp_path: Path) -> None:
    """Keys are kept in float16, gelu is a table of float16, and so are columns that are convolved."""
    made, path = tmp_path / "hf", str(tmp_path / "x.gguf")
    spectrum = lfm2_spectrum(*lfm2_codes(made))[1] if name == "lfm2" else wavtokenizer_spectrum(wavtokenizer(made))
    report = ggferry.convert(str(made), out=path, outtype=outtype)
    assert not [note for note in report.notes if "llama.cpp would" in note]
    close = {"f32": 2e-3, "f16": 1e-2, "q8_0": 1e-1}[outtype]
    assert relative(spectrum, states(path, TOKENS, tmp_path)) <= close
    assert open_gguf(path).metadata["tokenizer.ggml.model"].data == "none"
    again = ggferry.convert(path, out=str(tmp_path / "again.gguf"))
    assert not [note for note in again.notes if "llama.cpp would" in note]
    ggferry.verify(str(made), path)
