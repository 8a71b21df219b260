"""Gemma 3n's vision encoder: a tiny MobileNetV5 by timm's names, and what timm makes of a picture, once more in torch.

Source: timm 1.0.31, timm/models/mobilenetv5.py, _efficientnet_blocks.py, layers/attention2d.py. timm itself is not
installed for tests, as torchvision, which it imports, is not; `RECORDED` is what it made of a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.published_towers import PublishedTower, Shapes, Tensors

TOWER, EMBEDDER = "model.vision_tower.timm_model.", "model.embed_vision."
EPS = 1e-6
_HEAD_2, _HEAD_3 = "mqa_h12_v2", "mqa_h16"
STAGES = (
    ("er_k3_e4",) * 3,
    ("uir_a3_k5_e6", "uir_a5_e4", "uir_a3_e4", "uir_a5_e4", "uir_a3_e4"),
    ("uir_a5_k5_e6", *("uir_a5_e4",) * 7, "uir_e1", *(_HEAD_2, "uir_e2") * 14),
    ("uir_a5_k5_e6", *(_HEAD_3, "uir_e2") * 19),
)
"""`_gen_mobilenet_v5`: a kernel before (a), between (k), how much wider (e); heads (h), a stride of keys (v)."""
PUBLISHED = (64, 8, 16, 40, 80), (64, 96), 2048
"""Widths of timm's own `mobilenetv5_300m_enc(channel_multiplier=0.0625)`: stem and stages, heads, states."""
TINY = (8, 8, 8, 16, 24), (4, 6), 48


def blocks() -> Iterator[tuple[int, int, str, dict[str, int]]]:
    """Stage, number, kind and numbers of every block."""
    for stage, words in enumerate(STAGES):
        for n, word in enumerate(words):
            kind, *parts = word.split("_")
            yield stage, n, kind, {part[0]: int(part[1:]) for part in parts}


def shapes(widths: tuple[int, ...], heads: tuple[int, int], states: int) -> Shapes:
    """The tensors of a tower of these widths."""
    found: Shapes = {}

    def conv(name: str, *shape: int, norm: str = "") -> None:
        found[f"{name}.weight"] = shape if len(shape) == 4 else (*shape, 1, 1)
        if norm:
            found[f"{norm}.weight"] = shape[:1]

    conv("conv_stem.conv", widths[0], 3, 3, 3, norm="conv_stem.bn")
    found["conv_stem.conv.bias"] = widths[:1]
    edges = list(pairwise(widths))
    for stage, n, kind, of in blocks():
        at, (before, width) = f"blocks.{stage}.{n}", edges[stage]
        before = width if n else before
        inner = of.get("e", 0) * before
        if kind == "er":
            conv(f"{at}.conv_exp", inner, before, 3, 3, norm=f"{at}.bn1")
            conv(f"{at}.conv_pwl", width, inner, norm=f"{at}.bn2")
            continue
        found[f"{at}.layer_scale.gamma"] = (width,)
        if kind == "mqa":
            head = heads[stage - 2]
            found[f"{at}.norm.weight"] = (width,)
            for part in ("key", "value"):
                conv(f"{at}.attn.{part}.proj", head, width)
                if "v" in of:
                    conv(f"{at}.attn.{part}.down_conv", width, 1, 3, 3, norm=f"{at}.attn.{part}.norm")
            conv(f"{at}.attn.query.proj", of["h"] * head, width)
            conv(f"{at}.attn.output.proj", width, of["h"] * head)
            continue
        for name, rows, kernel in (("dw_start", before, of.get("a")), ("dw_mid", inner, of.get("k"))):
            if kernel:
                conv(f"{at}.{name}.conv", rows, 1, kernel, kernel, norm=f"{at}.{name}.bn")
        conv(f"{at}.pw_exp.conv", inner, before, norm=f"{at}.pw_exp.bn")
        conv(f"{at}.pw_proj.conv", width, inner, norm=f"{at}.pw_proj.bn")
    both = widths[3] + widths[4]
    conv("msfa.ffn.pw_exp.conv", 2 * both, both, norm="msfa.ffn.pw_exp.bn")
    conv("msfa.ffn.pw_proj.conv", states, 2 * both, norm="msfa.ffn.pw_proj.bn")
    found["msfa.norm.weight"] = (states,)
    return found


def _same(x: Tensor, kernel: Tensor, stride: int, groups: int = 1) -> Tensor:
    """`conv2d_same`: TensorFlow's padding, the odd pixel behind."""
    size = kernel.shape[-1]
    pads = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in (x.shape[3], x.shape[2])]
    x = F.pad(x, [p for pad in pads for p in (pad // 2, pad - pad // 2)])
    return F.conv2d(x, kernel, stride=stride, groups=groups)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    """`RmsNorm2d`."""
    return F.rms_norm(x.permute(0, 2, 3, 1), weight.shape, weight, EPS).permute(0, 3, 1, 2)


def _act(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _block(t: Tensors, at: str, kind: str, of: dict[str, int], x: Tensor, stride: int) -> Tensor:
    def conv(name: str, y: Tensor, stride: int = 1, alone: bool = False) -> Tensor:
        return _same(y, t[f"{at}.{name}.weight"], stride, y.shape[1] if alone else 1)

    def norm(name: str, y: Tensor) -> Tensor:
        return _norm(y, t[f"{at}.{name}.weight"])

    y = x
    if kind == "er":
        y = _act(norm("bn1", conv("conv_exp", y, stride)))
        y = norm("bn2", conv("conv_pwl", y))
    elif kind == "uir":
        if "a" in of:
            y = norm("dw_start.bn", conv("dw_start.conv", y, 1, alone=True))
        y = _act(norm("pw_exp.bn", conv("pw_exp.conv", y)))
        if "k" in of:
            y = _act(norm("dw_mid.bn", conv("dw_mid.conv", y, stride, alone=True)))
        y = norm("pw_proj.bn", conv("pw_proj.conv", y))
    else:
        y = norm("norm", y)
        shared = []
        for part in ("key", "value"):
            z = y
            if "v" in of:
                z = norm(f"attn.{part}.norm", conv(f"attn.{part}.down_conv", z, of["v"], alone=True))
            shared.append(conv(f"attn.{part}.proj", z).flatten(2).transpose(1, 2)[:, None])
        q = conv("attn.query.proj", y).flatten(2).unflatten(1, (of["h"], -1)).transpose(2, 3)
        key, value = (part.expand(-1, of["h"], -1, -1) for part in shared)
        found = F.scaled_dot_product_attention(q, key, value)
        y = conv("attn.output.proj", found.transpose(2, 3).flatten(1, 2).unflatten(2, y.shape[2:]))
    if kind != "er":
        y = y * t[f"{at}.layer_scale.gamma"].view(-1, 1, 1)
    return x + y if stride == 1 and x.shape[1] == y.shape[1] else y


def encoded(t: Tensors, picture: Tensor) -> Tensor:
    """`MobileNetV5Encoder.forward`: states `(states, 16, 16)` of a picture; tensors by timm's names."""
    x = _same(picture[None], t["conv_stem.conv.weight"], 2) + t["conv_stem.conv.bias"].view(-1, 1, 1)
    x = _act(_norm(x, t["conv_stem.bn.weight"]))
    ends: dict[int, Tensor] = {}
    for stage, n, kind, of in blocks():
        x = ends[stage] = _block(t, f"blocks.{stage}.{n}", kind, of, x, 1 if n else 2)
    size = ends[2].shape[-2:]
    x = torch.cat((ends[2], F.interpolate(ends[3], size=size, mode="nearest")), 1)
    x = _act(_norm(_same(x, t["msfa.ffn.pw_exp.conv.weight"], 1), t["msfa.ffn.pw_exp.bn.weight"]))
    x = _norm(_same(x, t["msfa.ffn.pw_proj.conv.weight"], 1), t["msfa.ffn.pw_proj.bn.weight"])
    return _norm(F.avg_pool2d(x, size[0] // 16), t["msfa.norm.weight"])[0]


PLACES = [0, 500, 1000, 1500, 2047], [0, 5, 8, 10, 15], [15, 3, 8, 7, 0]
RECORDED = -0.3412973889445182, -0.22429997858331752, 0.6691813417901737, 0.19494637722607938, 0.5139637919309541
"""Channels, rows and columns, and what timm 1.0.31 itself has there, in float64 (`recorded_inputs`)."""


def recorded_inputs() -> tuple[Tensors, Tensor]:
    """The tensors, by timm's names, and the picture that `RECORDED` was made of."""
    random = np.random.default_rng(5)
    named = sorted(shapes(*PUBLISHED).items())
    t = {name: torch.from_numpy(random.standard_normal(shape) * 0.2 + (len(shape) == 1)) for name, shape in named}
    return t, torch.from_numpy(random.standard_normal((3, 256, 256)))


def rows(t: Tensors, picture: Tensor) -> Tensor:
    """transformers' rows of timm's states: `Gemma3nModel.get_image_features`, with its own class of the projector."""
    from transformers import Gemma3nTextConfig, Gemma3nVisionConfig
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nMultimodalEmbedder

    states = encoded({name.removeprefix(TOWER): value for name, value in t.items()}, picture)
    width = len(states)
    own = {name.removeprefix(EMBEDDER): value for name, value in t.items() if name.startswith(EMBEDDER)}
    vision = Gemma3nVisionConfig(hidden_size=width, vocab_size=len(own["embedding.weight"]))
    module = Gemma3nMultimodalEmbedder(vision, Gemma3nTextConfig(hidden_size=len(own["embedding_projection.weight"])))
    module.load_state_dict(own, strict=False)
    found: Tensor = module.double()(inputs_embeds=states.reshape(1, width, -1).permute(0, 2, 1) * width**0.5)[0]
    return found


def _tiny(text: int = 48, hard: int = 5) -> Shapes:
    states = TINY[-1]
    found = {f"{TOWER}{name}": shape for name, shape in shapes(*TINY).items()}
    found |= {
        f"{EMBEDDER}embedding.weight": (hard, states),
        f"{EMBEDDER}hard_embedding_norm.weight": (states,),
        f"{EMBEDDER}soft_embedding_norm.weight": (states,),
        f"{EMBEDDER}embedding_projection.weight": (text, states),
        "model.audio_tower.conformer.0.norm.weight": (8,),
        "model.embed_audio.embedding_projection.weight": (text, 8),
    }
    return found


_CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3nForConditionalGeneration"],
    "model_type": "gemma3n",
    "text_config": {"hidden_size": 48},
    "vision_config": {
        "architecture": "mobilenetv5_300m_enc",
        "hidden_size": TINY[-1],
        "vocab_size": 5,
        "rms_norm_eps": 1e-6,
        "do_pooling": False,
        "model_args": None,
        "model_type": "gemma3n_vision",
    },
    "vision_soft_tokens_per_image": 256,
}


class Gemma3n(PublishedTower):
    """The tiny model: kernels of single maps have values that float16 holds, as files have them in no longer type."""

    def tensors(self, seed: int = 3) -> dict[str, Tensor]:
        found = super().tensors(seed)
        for name, value in found.items():
            if value.dim() == 4 and value.shape[1] == 1:
                found[name] = value.half().float()
            if name.endswith("gamma"):
                found[name] = value * 0.3
        return found


GEMMA_3N = Gemma3n(
    config=_CONFIG,
    shapes=_tiny(),
    rows=rows,
    size=(256, 256),
    preprocessor={"size": {"height": 256, "width": 256}, "do_normalize": False, "image_seq_length": 256},
)
