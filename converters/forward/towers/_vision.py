"""What vision towers have in common: patches, their positions, the blocks of a vision transformer."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.softmax_attention import attend
from ggferry.converters.forward.model import Model, parts
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Rotation = Callable[[Tensor], Tensor]
    """Rotates queries or keys of all patches, `(patches, heads, width)`."""


def patch_embed(tower: Model, picture: Tensor) -> Tensor:
    """Return the embeddings of the patches of a picture `(3, height, width)`: `(rows, columns, n_embd)`.

    Height and width are multiples of the patch.
    """
    size = int(tower.sizes["patch_size"])
    flat = tower.weights.vector("v.patch_embd.weight")
    if tower.recipe.patches == "pixels":
        kernel = flat.view(-1, size, size, len(picture)).permute(0, 3, 1, 2)
    else:
        kernel = flat.view(-1, len(picture), size, size)
    x = torch.nn.functional.conv2d(picture[None], kernel, stride=size)[0].permute(1, 2, 0)
    return tower.biased("v.patch_embd", x)


def patches_of_one_size(tower: Model) -> tuple[int, int]:
    """Return rows and columns of the patches of a picture, for towers whose pictures have always the same size."""
    across = int(tower.sizes["image_size"]) // int(tower.sizes["patch_size"])
    return across, across


def embed_one_size(tower: Model, picture: Tensor) -> Tensor:
    """Return what `patch_embed` does. Raises UsageError for a picture of another size than the model's."""
    x = patch_embed(tower, picture)
    if tuple(x.shape[:2]) != patches_of_one_size(tower):
        size = int(tower.sizes["image_size"])
        found = f"{x.shape[0]} × {x.shape[1]} patches"
        raise UsageError("a picture", found=found, expected=f"3 × {size} × {size}")
    return x


def table_positions(tower: Model, rows: int, columns: int, first: int = 0) -> Tensor:
    """Return the learned positions of patches, `(rows, columns, n_embd)`.

    They are those of the upper left part of the whole picture, whose first patch has row `first` of the table.
    """
    across = int(tower.sizes["image_size"]) // int(tower.sizes["patch_size"])
    at = [first + row * across + column for row in range(rows) for column in range(columns)]
    return tower.weights.rows("v.position_embd.weight", at).view(rows, columns, -1)


def blocks(
    tower: Model, x: Tensor, progress: Callable[[int], None], turn: Rotation | None = None, hidden: Tensor | None = None
) -> Tensor:
    """Return the states of all blocks, `(n, n_embd)`: each attends and feeds forward, with a norm before either.

    Args:
        tower: The tower.
        x: The embeddings of patches, `(n, n_embd)`.
        progress: Called with the number of blocks done.
        turn: Rotates queries and keys.
        hidden: What attention does not see, bool `(n, n)`.
    """
    for number in range(tower.sizes["n_layer"]):
        x = block(tower, f"v.blk.{number}.", x, turn, hidden)
        progress(1)
    return x


def block(tower: Model, name: str, x: Tensor, turn: Rotation | None = None, hidden: Tensor | None = None) -> Tensor:
    """Return the states of one block, `(n, n_embd)`; branches are scaled where the model has scales (`ls1`, `ls2`)."""
    seen = self_attention(tower, name, tower.norm(f"{name}ln1", x), turn, hidden)
    x = x + _scaled(tower, f"{name}ls1", seen)
    return x + _scaled(tower, f"{name}ls2", feed_forward(tower, name, tower.norm(f"{name}ln2", x)))


def _scaled(tower: Model, name: str, x: Tensor) -> Tensor:
    return x * tower.weights.vector(f"{name}.weight") if tower.has(name) else x


def self_attention(
    tower: Model, name: str, x: Tensor, turn: Rotation | None = None, hidden: Tensor | None = None
) -> Tensor:
    """Return the attention branch of a block: x and result `(n, n_embd)`."""
    q, k, v = queries_keys_values(tower, name, x)
    if turn is not None:
        q, k = turn(q), turn(k)
    return tower.linear(f"{name}attn_out", attend(q, k, v, hidden=hidden))


def queries_keys_values(tower: Model, name: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, `(n, heads, width)` each, normalized where the model has norms for them."""
    if tower.has(f"{name}attn_qkv"):
        flat = _parts(tower, tower.linear(f"{name}attn_qkv", x))
    elif tower.recipe.qkv == "fused":  # a source whose queries are cut out of a matrix of all three
        flat = tower.linear(f"{name}attn_q", x).chunk(3, -1)
    else:
        flat = tuple(tower.linear(f"{name}attn_{part}", x) for part in "qkv")
    wide = flat[0].shape[-1]
    q, k = (_normed(tower, f"{name}attn_{part}_norm", y, wide) for part, y in zip("qk", flat, strict=False))
    return q, k, _heads(tower, flat[2], wide)


def _parts(tower: Model, x: Tensor) -> tuple[Tensor, ...]:
    """Return the queries, keys and values of one matrix; heads may share keys and values (`n_head_kv`)."""
    heads, groups = tower.sizes["n_head"], tower.sizes.get("n_head_kv") or tower.sizes["n_head"]
    width = x.shape[-1] // (heads + 2 * groups)
    return tuple(parts(x, heads * width, groups * width, groups * width))


def _heads(tower: Model, x: Tensor, wide: int) -> Tensor:
    """Return x `(n, columns)` by heads `(n, heads, width)`, as wide as those of queries of `wide` columns."""
    return x.reshape(len(x), -1, wide // tower.sizes["n_head"])


def _normed(tower: Model, name: str, x: Tensor, wide: int) -> Tensor:
    if not tower.has(name):
        return _heads(tower, x, wide)
    if tower.recipe.qk_norm == "full":  # InternViT's are RMSNorm whatever the others are
        return _heads(tower, rms_norm(tower, name, x), wide)
    return tower.norm(name, _heads(tower, x, wide))


def with_epsilon(tower: Model, epsilon: float) -> Model:
    """Return the tower with another epsilon in its norms."""
    found = copy(tower)
    found.sizes = {**tower.sizes, "eps": epsilon}
    return found


def with_activation(tower: Model, name: str) -> Model:
    """Return the tower with another activation in its networks."""
    found = copy(tower)
    found.sizes = {**tower.sizes, "activation": name}
    return found


def rms_norm(tower: Model, name: str, x: Tensor) -> Tensor:
    """Return x by RMSNorm with the weights of this name, in a tower whose own norms are others."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + float(tower.sizes["eps"]))
    return y * tower.norm_weight(name)


def layer_norm(tower: Model, name: str, x: Tensor, epsilon: float) -> Tensor:
    """Return x by LayerNorm with the weights of this name, in a tower whose own norms are others."""
    x = x - x.mean(-1, keepdim=True)
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return tower.biased(name, y * tower.norm_weight(name))


def network(tower: Model, first: str, second: str, x: Tensor) -> Tensor:
    """Return x through two matrices with an exact GELU between them: the network of most projectors."""
    return tower.linear(second, torch.nn.functional.gelu(tower.linear(first, x)))


def shuffled(x: Tensor, scale: int) -> Tensor:
    """Return squares of `scale` × `scale` states as one row each: `(rows, columns, n)` → `(squares, scale² · n)`.

    Within a row, the states of a square are in the order of reading.
    """
    rows, columns, width = x.shape
    cut = x.view(rows // scale, scale, columns // scale, scale, width).transpose(1, 2)
    return cut.reshape(rows * columns // scale**2, scale**2 * width)
