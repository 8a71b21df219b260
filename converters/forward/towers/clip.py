"""CLIP whole: what its two encoders make of a text and of a picture, in the space that both project to.

A row holds the embedding of the text that ends with that token, which sees only what is before it, and beside it that
of the picture. Definition: Radford et al. (2103.00020); transformers `modeling_clip.py` (`get_text_features`,
`get_image_features`), which give the text's row at its end-of-text token. Neither is given unit length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.softmax_attention import attention
from ggferry.converters.forward.inputs import fixed
from ggferry.converters.forward.model import Model, Result
from ggferry.converters.forward.towers import _vision as vision
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PICTURE, CHANNELS = "picture", 3
RESULT = Result(
    "embeddings of text and picture", False, (PICTURE,), how="of a fixed picture", how_given="of the given picture"
)


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the embedding of the text up to each token, and of the picture: float32 `(tokens, 2 · projection)`."""
    texts, picture = _texts(model, tokens, progress), encode(model, tokens, progress)
    return torch.cat((texts, picture.expand(len(texts), -1)), -1)


def encode(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the embedding of the picture in `model.inputs`, or else of the fixed one, float32 `(1, projection)`."""
    tower = model.tower("v_")
    patches = vision.patch_embed(tower, _picture(tower)).flatten(0, 1)
    x = torch.cat((tower.weights.vector("v.class_embd")[None], patches))
    x = tower.norm("v.pre_ln", x + tower.weights.rows("v.position_embd.weight", range(len(x))))
    x = _blocks(tower, "v.blk.", x, progress)
    return tower.linear("visual_projection", tower.norm("v.post_ln", x[:1]))


def _texts(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    model = vision.with_activation(model, "gelu" if model.sizes["use_gelu"] else "quick_gelu")
    x = model.weights.rows("t.token_embd.weight", tokens) + model.positions("t.position_embd", len(tokens))
    x = _blocks(model, "t.blk.", x, progress, causal=True)
    return model.linear("text_projection", model.norm("t.post_ln", x))


def _picture(tower: Model) -> Tensor:
    """Return the picture, whose edges are those that the positions were learned for."""
    edge, given = int(tower.sizes["image_size"]), tower.inputs.get(PICTURE)
    if given is None:
        return fixed(CHANNELS * edge, edge).view(CHANNELS, edge, edge)
    picture = torch.as_tensor(given, dtype=torch.float32)
    if tuple(picture.shape) != (CHANNELS, edge, edge):
        found = " × ".join(map(str, picture.shape))
        raise UsageError("a picture", found=found, expected=f"{CHANNELS} × {edge} × {edge}")
    return picture


def _blocks(side: Model, series: str, x: Tensor, progress: Callable[[int], None], causal: bool = False) -> Tensor:
    for number in range(side.sizes["n_layer"]):
        block = f"{series}{number}."
        read = side.norm(f"{block}ln1", x)
        x = x + attention(side, f"{block}attn", read, read, side.sizes["n_head"], causal=causal, output="out")
        inner = side.activate(side.linear(f"{block}ffn_down", side.norm(f"{block}ln2", x)))  # the first matrix's name
        x = x + side.linear(f"{block}ffn_up", inner)
        progress(1)
    return x
