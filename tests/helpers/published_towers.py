"""Towers that transformers has no class for: tiny models under their publishers' names, and what the published code
makes of a picture, written once more in plain torch.

Where each definition stands is said at its function. They share nothing with ggferry's pass but names of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from helpers.multimodal import MEAN, STD

Tensors = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]
WIDTH, INNER, LAYERS, HEADS, PATCH, TEXT = 36, 56, 3, 3, 6, 48


@dataclass(frozen=True, slots=True)
class PublishedTower:
    """A tiny model that sees.

    Attributes:
        config: What its config.json says.
        shapes: Its tower's tensors.
        rows: Returns the published rows of tensors and a picture `(3, height, width)`, in float64.
        size: Height and width of a picture in pixels.
        preprocessor: What its processor states besides.
    """

    config: dict[str, Any]
    shapes: Shapes
    rows: Callable[[Tensors, Tensor], Tensor]
    size: tuple[int, int] = (48, 60)
    preprocessor: dict[str, Any] = field(default_factory=dict)

    def tensors(self, seed: int = 3) -> dict[str, Tensor]:
        """Random values that leave no convention unseen: norms near one, everything else near zero."""
        torch.manual_seed(seed)
        return {name: _random(name, shape) for name, shape in self.shapes.items()}

    def saved(self, folder: Path, more: Tensors | None = None, config: Mapping[str, Any] | None = None) -> Path:
        """Write the model, with other tensors besides or in place of its own, and other members of its config."""
        folder.mkdir(exist_ok=True)
        save_file({**self.tensors(), **(more or {})}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**self.config, **(config or {})}))
        settings = {"image_mean": MEAN, "image_std": STD, **self.preprocessor}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        return folder

    def expected(self, picture: Any) -> Any:
        """The published rows of the model as saved, float64."""
        doubled = {name: value.double() for name, value in self.tensors().items()}
        with torch.no_grad():
            return self.rows(doubled, torch.from_numpy(picture).double()).numpy()


def _random(name: str, shape: tuple[int, ...]) -> Tensor:
    normed = name.endswith(".weight") and len(shape) == 1
    return torch.randn(shape) * (0.2 if normed else 0.15) + (1.0 if normed else 0.0)


def _linear(x: Tensor, t: Tensors, name: str) -> Tensor:
    return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def _norm(x: Tensor, t: Tensors, name: str, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], eps)


def _rms(x: Tensor, t: Tensors, name: str, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], t[f"{name}.weight"], eps)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of `(n, heads, width)` each: `(n, heads · width)`."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)


def _linears(at: str, **sizes: tuple[int, ...]) -> Shapes:
    """Weights and biases of matrices `(rows, columns)`; a norm has one size."""
    found: Shapes = {}
    for name, shape in sizes.items():
        found |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
    return found


def _convolved(picture: Tensor, t: Tensors, name: str) -> Tensor:
    """Patches `(rows · columns, width)` of a convolution, in the order of reading."""
    x = F.conv2d(picture[None], t[f"{name}.weight"], t[f"{name}.bias"], stride=PATCH)
    return x[0].flatten(1).T


# Kimi-VL: vllm-project/vllm at 055e47c2, vllm/model_executor/models/moonvit.py, kimi_vl.py.


def _kimi_rotated(x: Tensor, rows: int, columns: int) -> Tensor:
    """`Rope2DPosEmb`: complex pair 2i turns with the column, pair 2i + 1 with the row, at rate 10000^(-4i / width)."""
    n, heads, width = x.shape
    rate = 10000.0 ** (-torch.arange(0, width, 4, dtype=torch.float64) / width)
    at = torch.arange(n)
    angles = torch.stack(((at % columns)[:, None] * rate, (at // columns)[:, None] * rate), -1).flatten(1)
    turned = torch.view_as_complex(x.reshape(n, heads, -1, 2)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(turned).flatten(-2)


def kimi_vl(t: Tensors, picture: Tensor) -> Tensor:
    rows, columns = (size // PATCH for size in picture.shape[1:])
    table = t["vision_tower.patch_embed.pos_emb.weight"].permute(2, 0, 1)[None]
    positions = F.interpolate(table, size=(rows, columns), mode="bicubic")[0].flatten(1).T
    x = _convolved(picture, t, "vision_tower.patch_embed.proj") + positions
    for n in range(LAYERS):
        at = f"vision_tower.encoder.blocks.{n}."
        qkv = _linear(_norm(x, t, f"{at}norm0", 1e-5), t, f"{at}wqkv").view(len(x), 3, HEADS, -1)
        q, k = (_kimi_rotated(part, rows, columns) for part in (qkv[:, 0], qkv[:, 1]))
        x = x + _linear(_attention(q, k, qkv[:, 2]), t, f"{at}wo")
        hidden = F.gelu(_linear(_norm(x, t, f"{at}norm1", 1e-5), t, f"{at}mlp.fc0"), approximate="tanh")
        x = x + _linear(hidden, t, f"{at}mlp.fc1")
    x = _norm(x, t, "vision_tower.encoder.final_layernorm", 1e-5)
    squares = x.view(rows // 2, 2, columns // 2, 2, -1).permute(0, 2, 1, 3, 4).reshape(-1, 4, WIDTH)
    merged = _norm(squares, t, "multi_modal_projector.pre_norm", 1e-5).view(-1, 4 * WIDTH)
    hidden = F.gelu(_linear(merged, t, "multi_modal_projector.linear_1"))
    return _linear(hidden, t, "multi_modal_projector.linear_2")


_KIMI: Shapes = {
    **_linears("vision_tower.patch_embed.", proj=(WIDTH, 3, PATCH, PATCH)),
    "vision_tower.patch_embed.pos_emb.weight": (8, 8, WIDTH),
    **_linears("vision_tower.encoder.", final_layernorm=(WIDTH,)),
    **_linears(
        "multi_modal_projector.", pre_norm=(WIDTH,), linear_1=(4 * WIDTH, 4 * WIDTH), linear_2=(TEXT, 4 * WIDTH)
    ),
}
for _n in range(LAYERS):
    _at = f"vision_tower.encoder.blocks.{_n}."
    _KIMI |= _linears(_at, norm0=(WIDTH,), norm1=(WIDTH,), wqkv=(3 * WIDTH, WIDTH), wo=(WIDTH, WIDTH))
    _KIMI |= _linears(f"{_at}mlp.", fc0=(INNER, WIDTH), fc1=(WIDTH, INNER))


# Youtu-VL: Blaizzy/mlx-vlm at 2a0d1c48, mlx_vlm/models/youtu_vl/vision.py.

WINDOW, WHOLE = 24, [1]


def _squares(x: Tensor, rows: int, columns: int) -> Tensor:
    """`(rows · columns, …)` in the order of reading as squares of four: `(squares, 4, …)`."""
    cut = x.view(rows // 2, 2, columns // 2, 2, *x.shape[1:]).transpose(1, 2)
    return cut.reshape(rows * columns // 4, 4, *x.shape[1:])


def _window_index(rows: int, columns: int) -> tuple[list[int], list[int]]:
    """`get_window_index`: squares by windows, and where each window ends, counted in patches."""
    side, order, ends = WINDOW // 2 // PATCH, list[int](), list[int]()
    high, wide = rows // 2, columns // 2
    for top in range(0, high, side):
        for left in range(0, wide, side):
            order += [
                y * wide + x for y in range(top, min(top + side, high)) for x in range(left, min(left + side, wide))
            ]
            ends.append(4 * len(order))
    return order, ends


def youtu_vl(t: Tensors, picture: Tensor) -> Tensor:
    rows, columns = (size // PATCH for size in picture.shape[1:])
    pixels = picture.view(3, rows, PATCH, columns, PATCH).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
    at = torch.arange(rows * columns)
    places = torch.stack((at // columns, at % columns), -1)
    order, ends = _window_index(rows, columns)
    x, places = (_squares(part, rows, columns)[order].flatten(0, 1) for part in (pixels, places))
    x = _linear(x, t, "siglip2.vision_model.embeddings.patch_embedding")
    width = WIDTH // HEADS
    rate = 1 / 10000 ** (torch.arange(0, width // 2, 2, dtype=torch.float64) / (width // 2))
    freqs = (places[..., None] * rate).flatten(1)
    turn = torch.cat((freqs, freqs), -1)[:, None]

    def rotated(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return y * turn.cos() + torch.cat((-second, first), -1) * turn.sin()

    for n in range(LAYERS):
        name = f"siglip2.vision_model.encoder.layers.{n}."
        normed = _norm(x, t, f"{name}layer_norm1", 1e-6)
        q, k, v = (_linear(normed, t, f"{name}self_attn.{part}_proj").view(len(x), HEADS, -1) for part in "qkv")
        q, k = rotated(q), rotated(k)
        cuts = [len(x)] if n in WHOLE else ends
        pieces = [
            _attention(q[start:end], k[start:end], v[start:end]) for start, end in zip([0, *cuts], cuts, strict=False)
        ]
        x = x + _linear(torch.cat(pieces), t, f"{name}self_attn.out_proj")
        hidden = _linear(_norm(x, t, f"{name}layer_norm2", 1e-6), t, f"{name}mlp.fc1")
        x = x + _linear(F.gelu(hidden, approximate="tanh"), t, f"{name}mlp.fc2")
    x = x.view(-1, 4, WIDTH)[torch.argsort(torch.tensor(order))].flatten(0, 1)
    x = _norm(x, t, "siglip2.vision_model.post_layernorm", 1e-6)
    x = _rms(x, t, "merger.ln_q", 1e-6).view(-1, 4 * WIDTH)
    return _linear(F.gelu(_linear(x, t, "merger.mlp.0")), t, "merger.mlp.2")


def _siglip(at: str, layers: int) -> Shapes:
    found = _linears(at, **{"embeddings.patch_embedding": (WIDTH, 3 * PATCH * PATCH), "post_layernorm": (WIDTH,)})
    for n in range(layers):
        name = f"{at}encoder.layers.{n}."
        found |= _linears(name, layer_norm1=(WIDTH,), layer_norm2=(WIDTH,))
        found |= _linears(f"{name}self_attn.", **{f"{x}_proj": (WIDTH, WIDTH) for x in ("q", "k", "v", "out")})
        found |= _linears(f"{name}mlp.", fc1=(INNER, WIDTH), fc2=(WIDTH, INNER))
    return found


_YOUTU: Shapes = {
    **_siglip("siglip2.vision_model.", LAYERS),
    "merger.ln_q.weight": (WIDTH,),
    **_linears("merger.mlp.", **{"0": (4 * WIDTH, 4 * WIDTH), "2": (TEXT, 4 * WIDTH)}),
}


# Phi-4-reasoning-vision: vllm-project/vllm, vllm/model_executor/models/phi4siglip.py, whose tower is transformers'.


def phi4_vision(t: Tensors, picture: Tensor) -> Tensor:
    """transformers' `Siglip2VisionModel`, read at hidden_states[-2], and two matrices."""
    import transformers

    config = transformers.Siglip2VisionConfig(**PHI4_VISION)
    tower = transformers.Siglip2VisionModel(config).double().eval()
    prefix = "model.vision_tower.vision_tower.vision_model."
    kept = {name.removeprefix(prefix): value for name, value in t.items() if name.startswith(prefix)}
    missing, unexpected = tower.load_state_dict(kept, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    rows, columns = (size // PATCH for size in picture.shape[1:])
    pixels = picture.view(3, rows, PATCH, columns, PATCH).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
    states = tower(
        pixel_values=pixels,
        pixel_attention_mask=torch.ones(1, rows * columns, dtype=torch.int64),
        spatial_shapes=torch.tensor([[rows, columns]]),
        output_hidden_states=True,
    ).hidden_states
    hidden = F.gelu(_linear(states[-2][0], t, "model.mm_projector.0"))
    return _linear(hidden, t, "model.mm_projector.2")


PHI4_VISION = {
    "model_type": "siglip2_vision_model",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "patch_size": PATCH,
    "num_patches": 64,
    "vision_use_head": False,
}
_PHI4: Shapes = {
    **_siglip("model.vision_tower.vision_tower.vision_model.", LAYERS),
    "model.vision_tower.vision_tower.vision_model.embeddings.position_embedding.weight": (64, WIDTH),
    **_linears("model.mm_projector.", **{"0": (TEXT, WIDTH), "2": (TEXT, TEXT)}),
}


# Ling 3: vllm-project/vllm at 54fc980c, vllm/model_executor/models/bailing_moe_v3_vl.py, whose tower is Qwen3-VL's.


def ling3_vl(t: Tensors, picture: Tensor) -> Tensor:
    """transformers' `Qwen3VLVisionModel` up to its last block, its merger's norm, and two matrices."""
    from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

    config = qwen3.Qwen3VLVisionConfig(**LING3_VISION)
    tower = qwen3.Qwen3VLVisionModel(config).double().eval()
    kept = {name.removeprefix("model.visual."): value for name, value in t.items() if name.startswith("model.visual.")}
    missing, unexpected = tower.load_state_dict(kept, strict=False)
    assert not unexpected and all(name.startswith("merger.linear_fc") for name in missing), (missing, unexpected)
    rows, columns = (size // PATCH for size in picture.shape[1:])
    cut = picture.view(3, rows // 2, 2, PATCH, columns // 2, 2, PATCH).permute(1, 4, 2, 5, 0, 3, 6)
    frames = cut.reshape(rows * columns, 3, 1, PATCH, PATCH).repeat(1, 1, 2, 1, 1).flatten(1)
    states = tower(frames, grid_thw=torch.tensor([[1, rows, columns]])).last_hidden_state
    merged = _norm(states, t, "model.visual.merger.norm", 1e-6).reshape(-1, 4 * WIDTH)
    return _linear(F.gelu(_linear(merged, t, "linear_proj.0")), t, "linear_proj.2")


LING3_VISION = {
    "model_type": "qwen3_vl_vision",
    "depth": LAYERS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_heads": HEADS,
    "patch_size": PATCH,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [],
    "out_hidden_size": 4 * WIDTH,
    "hidden_act": "gelu_pytorch_tanh",
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_LING3: Shapes = {
    **_linears("model.visual.", **{"patch_embed.proj": (WIDTH, 3, 2, PATCH, PATCH), "merger.norm": (WIDTH,)}),
    "model.visual.pos_embed.weight": (64, WIDTH),
    **_linears("linear_proj.", **{"0": (TEXT, 4 * WIDTH), "2": (TEXT, TEXT)}),
}
for _n in range(LAYERS):
    _at = f"model.visual.blocks.{_n}."
    _LING3 |= _linears(_at, norm1=(WIDTH,), norm2=(WIDTH,))
    _LING3 |= _linears(f"{_at}attn.", qkv=(3 * WIDTH, WIDTH), proj=(WIDTH, WIDTH))
    _LING3 |= _linears(f"{_at}mlp.", linear_fc1=(INNER, WIDTH), linear_fc2=(WIDTH, INNER))


# CogVLM: InternLM/lmdeploy at 31fc433a, lmdeploy/pytorch/models/cogvlm.py.


def cogvlm(t: Tensors, picture: Tensor) -> Tensor:
    first = t["model.vision.patch_embedding.cls_embedding"]
    x = torch.cat((first, _convolved(picture, t, "model.vision.patch_embedding.proj")))
    x = x + t["model.vision.patch_embedding.position_embedding.weight"]
    for n in range(LAYERS):
        at = f"model.vision.transformer.layers.{n}."
        qkv = _linear(x, t, f"{at}attention.query_key_value").view(len(x), 3, HEADS, -1)
        seen = _linear(_attention(*qkv.unbind(1)), t, f"{at}attention.dense")
        x = x + _norm(seen, t, f"{at}input_layernorm", COG_EPS)
        hidden = _linear(F.gelu(_linear(x, t, f"{at}mlp.fc1")), t, f"{at}mlp.fc2")
        x = x + _norm(hidden, t, f"{at}post_attention_layernorm", COG_EPS)
    at = "model.vision.linear_proj."
    x = F.gelu(_norm(_linear(x[1:], t, f"{at}linear_proj"), t, f"{at}norm1", 1e-5))
    x = F.silu(_linear(x, t, f"{at}gate_proj")) * _linear(x, t, f"{at}dense_h_to_4h")
    ends = (t[f"model.vision.{name}"][0] for name in ("boi", "eoi"))
    return torch.cat((next(ends), _linear(x, t, f"{at}dense_4h_to_h"), next(ends)))


COG_EPS, COG_INNER = 1e-6, 88
_COG: Shapes = {
    **_linears("model.vision.patch_embedding.", proj=(WIDTH, 3, PATCH, PATCH)),
    "model.vision.patch_embedding.cls_embedding": (1, WIDTH),
    "model.vision.patch_embedding.position_embedding.weight": (65, WIDTH),
    **_linears("model.vision.linear_proj.", norm1=(TEXT,)),
    "model.vision.linear_proj.linear_proj.weight": (TEXT, WIDTH),
    "model.vision.linear_proj.dense_h_to_4h.weight": (COG_INNER, TEXT),
    "model.vision.linear_proj.gate_proj.weight": (COG_INNER, TEXT),
    "model.vision.linear_proj.dense_4h_to_h.weight": (TEXT, COG_INNER),
    "model.vision.boi": (1, 1, TEXT),
    "model.vision.eoi": (1, 1, TEXT),
}
for _n in range(LAYERS):
    _at = f"model.vision.transformer.layers.{_n}."
    _COG |= _linears(_at, input_layernorm=(WIDTH,), post_attention_layernorm=(WIDTH,))
    _COG |= _linears(f"{_at}attention.", query_key_value=(3 * WIDTH, WIDTH), dense=(WIDTH, WIDTH))
    _COG |= _linears(f"{_at}mlp.", fc1=(INNER, WIDTH), fc2=(WIDTH, INNER))

# DeepSeek V4: sgl-project/sglang at 1320a811, python/sglang/srt/models/deepseek_v4_vit.py, deepseek_v4_vl.py, and the
# publisher's build_image_block as brontoguana/krasis has it (python/krasis/deepseek_v4_vision.py).


def _deepseek_rotated(x: Tensor, rows: int, columns: int) -> Tensor:
    """`get_vision_cos_sin`, `apply_vision_rotary`: angles of the row, then of the column, turn halves of a head."""
    dim = x.shape[-1] // 2
    rate = 1.0 / (10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    high = torch.arange(rows).unsqueeze(1).expand(rows, columns)
    wide = torch.arange(columns).unsqueeze(0).expand(rows, columns)
    freqs = (torch.stack([high, wide], dim=-1).reshape(-1, 2, 1) * rate).flatten(1)
    cos, sin = freqs.cos()[:, None], freqs.sin()[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _image_block(high: int, wide: int) -> tuple[Tensor, Tensor]:
    """Types of the rows of a block (0 start, 1 filler, 2 square, 3 end of a line, 4 end) and the order of squares."""
    odd, length = high % 2, wide + 1
    count = high + odd
    types = torch.tensor(([2] * wide + [3]) * high + [1] * (length * odd))
    order = torch.arange(count * length).view(count // 2, 2, length).transpose(1, 2).reshape(-1)
    numbers = torch.full((count * length,), -1)
    numbers.view(count, length)[:high, :wide] = torch.arange(high * wide).view(high, wide)
    kept = numbers[order]
    missing = count // 2 * length % 2 * 2
    return torch.tensor([0, *types[order].tolist(), *[1] * missing, 4]), kept[kept >= 0]


def deepseek4(t: Tensors, picture: Tensor) -> Tensor:
    rows, columns = (size // PATCH for size in picture.shape[1:])
    cut = picture.reshape(3, rows, PATCH, columns, PATCH).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    x = _linear(cut, t, "vision.patch_embed.proj")
    for n in range(LAYERS):
        at = f"vision.blocks.{n}."
        qkv = _linear(_rms(x, t, f"{at}norm1", 1e-6), t, f"{at}attn.wqkv").view(len(x), 3, HEADS, -1)
        q, k = (_deepseek_rotated(part, rows, columns) for part in (qkv[:, 0], qkv[:, 1]))
        x = x + _linear(_attention(q, k, qkv[:, 2]), t, f"{at}attn.wo")
        gate, up = _linear(_rms(x, t, f"{at}norm2", 1e-6), t, f"{at}mlp.w1").chunk(2, dim=-1)
        x = x + _linear(F.silu(gate) * up, t, f"{at}mlp.w2")
    grid = _rms(x, t, "vision.norm", 1e-6).view(rows, columns, -1).permute(2, 0, 1)
    grid = F.pad(grid, (0, -columns % 3, 0, -rows % 3))
    squares = F.unfold(grid.unsqueeze(0), 3, stride=3).squeeze(0).transpose(0, 1)
    made = _linear(F.gelu(_linear(squares, t, "aligner.w1")), t, "aligner.w2")
    types, order = _image_block(grid.shape[1] // 3, grid.shape[2] // 3)
    names = ("image_start", "image_pad", "image_pad", "image_newline", "image_end")
    block = torch.stack([t[name] for name in names])[types]
    block[types == 2] = made[order]
    return block


_DEEPSEEK: Shapes = {
    **_linears("vision.", **{"patch_embed.proj": (WIDTH, 3 * PATCH * PATCH)}),
    "vision.norm.weight": (WIDTH,),
    **_linears("aligner.", w1=(TEXT, 9 * WIDTH), w2=(TEXT, TEXT)),
    **{f"image_{name}": (TEXT,) for name in ("start", "end", "newline", "pad")},
}
for _n in range(LAYERS):
    _at = f"vision.blocks.{_n}."
    _DEEPSEEK |= {f"{_at}norm{i}.weight": (WIDTH,) for i in (1, 2)}
    _DEEPSEEK |= _linears(f"{_at}attn.", wqkv=(3 * WIDTH, WIDTH), wo=(WIDTH, WIDTH))
    _DEEPSEEK |= {f"{_at}mlp.w1.weight": (2 * INNER, WIDTH), f"{_at}mlp.w2.weight": (WIDTH, INNER)}

_TOWER = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "patch_size": PATCH}
PUBLISHED_TOWERS = {
    "kimivl": PublishedTower(
        {
            "architectures": ["KimiVLForConditionalGeneration"],
            "model_type": "kimi_vl",
            "text_config": {"hidden_size": TEXT},
            "vision_config": {
                **_TOWER,
                "model_type": "moonvit",
                "num_attention_heads": HEADS,
                "init_pos_emb_height": 8,
                "init_pos_emb_width": 8,
                "merge_kernel_size": [2, 2],
            },
        },
        _KIMI,
        kimi_vl,
        preprocessor={"in_token_limit": 4096, "num_pooled_tokens": 1024, "pad_input": True},
    ),
    "youtuvl": PublishedTower(
        {
            "architectures": ["YoutuVLForConditionalGeneration"],
            "model_type": "youtu_vl",
            "hidden_size": TEXT,
            "vision_config": {
                **_TOWER,
                "model_type": "siglip2_vision_model",
                "num_attention_heads": HEADS,
                "num_patches": 64,
                "out_hidden_size": TEXT,
                "window_size": WINDOW,
                "fullatt_block_indexes": WHOLE,
                "spatial_merge_size": 2,
                "hidden_act": "gelu_pytorch_tanh",
                "layer_norm_eps": 1e-6,
                "num_channels": 3,
            },
        },
        _YOUTU,
        youtu_vl,
        size=(48, 84),
    ),
    "phi4": PublishedTower(
        {
            "architectures": ["Phi4ForCausalLMV"],
            "model_type": "phi4-siglip",
            "hidden_size": TEXT,
            "mm_hidden_size": WIDTH,
            "mm_vision_select_layer": -2,
            "mm_projector_type": "mlp2x_gelu",
            "min_num_patches": 4,
            "max_num_patches": 3600,
            "vision_config": PHI4_VISION,
        },
        _PHI4,
        phi4_vision,
        preprocessor={"patch_size": PATCH, "min_num_patches": 4, "max_num_patches": 3600},
    ),
    "ling3vl": PublishedTower(
        {
            "architectures": ["BailingMoeV3VLForConditionalGeneration"],
            "model_type": "bailing_moe_v3_vl",
            "text_config": {"hidden_size": TEXT, "rms_norm_eps": 1e-5},
            "vision_config": {**LING3_VISION, "model_type": "qwen3_moe_vit", "disable_merger_proj": True},
        },
        _LING3,
        ling3_vl,
    ),
    "cogvlm": PublishedTower(
        {
            "architectures": ["CogVLMForCausalLM"],
            "hidden_size": TEXT,
            "intermediate_size": COG_INNER,
            "vision_config": {
                **_TOWER,
                "num_heads": HEADS,
                "image_size": 8 * PATCH,
                "num_positions": 65,
                "in_channels": 3,
                "hidden_act": "gelu",
                "layer_norm_eps": COG_EPS,
                "dropout_prob": 0.0,
            },
        },
        _COG,
        cogvlm,
        size=(48, 48),
    ),
    "deepseek4v": PublishedTower(
        {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "hidden_size": TEXT,
            "vision_n_layers": LAYERS,
            "vision_dim": WIDTH,
            "vision_n_heads": HEADS,
            "vision_inter_dim": INNER,
            "vision_patch_size": PATCH,
            "vision_rope_theta": 10000.0,
            "vision_downsample_ratio": 3,
            "vision_max_n_token": 384,
            "vision_min_pixels": 4 * PATCH**2,
            "vision_max_wh_ratio": 8,
        },
        _DEEPSEEK,
        deepseek4,
        size=(48, 60),
    ),
}
