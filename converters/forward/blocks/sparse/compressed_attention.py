"""DeepSeek V4's attention: to the last tokens, and to keys that many tokens were compressed into.

One key serves all heads and is its value, too, so that its rotation is taken back behind attention. Heads lead out by
groups, each by way of a low rank. A window of consecutive tokens becomes one key: a mean of what they leave, weighed
column by column; where an indexer chooses among the keys, what the window before it left for the next one is in it.
Definitions: transformers `modeling_deepseek_v4.py`; llama.cpp `src/models/deepseek4.cpp`, which also multiplies the
indexer's queries and keys by a Hadamard matrix: their products stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.rope import rotate_last, rotation
from ggferry.converters.forward.blocks.softmax_attention import attend, later
from ggferry.converters.forward.blocks.sparse.indexer import not_best
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation


@dataclass(frozen=True, slots=True)
class Windows:
    """The whole windows of a text: runs of `size` positions, of which at least one has a token.

    Attributes:
        size: How many positions are one window.
        numbers: The windows, ascending, int64 `(windows,)`.
        at: Position of each token, int64 `(tokens,)`.
    """

    size: int
    numbers: Tensor
    at: Tensor

    @classmethod
    def of(cls, at: Tensor, size: int) -> Windows:
        """Return the whole windows of tokens at these positions."""
        numbers = torch.unique(at // size)
        return cls(size, numbers[(numbers + 1) * size <= at[-1] + 1], at)

    @property
    def ahead(self) -> Tensor:
        """Which windows do not end at or before a token, bool `(tokens, windows)`."""
        return self.numbers[None, :] >= ((self.at + 1) // self.size)[:, None]

    def filled(self, values: Tensor, empty: float) -> Tensor:
        """Return values `(tokens, width)` by window, `(windows, size, width)`; `empty` where there is no token."""
        place = torch.searchsorted(self.numbers, self.at // self.size)
        inside = place < len(self.numbers)
        out = values.new_full((len(self.numbers), self.size, values.shape[-1]), empty)
        out[place[inside], (self.at % self.size)[inside]] = values[inside]
        return out

    def before(self, values: Tensor, empty: float) -> Tensor:
        """Return for each window what `filled` has for the one before it; `empty` where that has no token."""
        found = torch.full_like(values, empty)
        follows = (self.numbers[1:] == self.numbers[:-1] + 1).nonzero()[:, 0]
        found[follows + 1] = values[follows]
        return found


def compressed_attention(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the attention branch of a block: x and result `(tokens, n_embd)`."""
    sizes, count = model.sizes, len(x)
    ratio, at = sizes["ratio"], model.where(count)
    turn = rotation(model, count, windowed=not ratio)
    low_q, q = _queries(model, block, x, turn)
    k = own_keys(model, block, x, turn)
    hidden = later(at, sizes["n_swa"])
    if ratio:
        windows = Windows.of(at, ratio)
        hidden_keys = windows.ahead
        if model.has(f"{block}indexer.proj"):
            hidden_keys = _not_chosen(model, block, x, low_q, turn, windows)
        k = torch.cat((k, _keys(model, f"{block}attn_compressor", x, windows)))
        hidden = torch.cat((hidden, hidden_keys), -1)
    return _attended(model, block, q, k, hidden, turn)


def attention_to_keys(model: Model, block: str, x: Tensor, k: Tensor, hidden: Tensor, turn: Rotation) -> Tensor:
    """Return the attention branch over keys `(positions, 1, width)`: x and result `(tokens, n_embd)`.

    `hidden`, bool `(tokens, positions)`, says which keys a token does not see; `turn` is of the tokens.
    """
    return _attended(model, block, _queries(model, block, x, turn)[1], k, hidden, turn)


def own_keys(model: Model, block: str, x: Tensor, turn: Rotation) -> Tensor:
    """Return the key of each row of x `(rows, n_embd)`, rotated, `(rows, 1, width)`; it is the value, too."""
    return rotate_last(model.norm(f"{block}attn_kv_a_norm", model.linear(f"{block}attn_kv", x))[:, None], turn, "pairs")


def _queries(model: Model, block: str, x: Tensor, turn: Rotation) -> tuple[Tensor, Tensor]:
    """Return the low-rank vectors that queries are made of, and the queries, rotated, `(tokens, n_head, width)`."""
    low = model.norm(f"{block}attn_q_a_norm", model.linear(f"{block}attn_q_a", x))
    q = model.normed(model.linear(f"{block}attn_q_b", low).view(len(x), model.sizes["n_head"], -1))
    return low, rotate_last(q, turn, "pairs")


def _attended(model: Model, block: str, q: Tensor, k: Tensor, hidden: Tensor, turn: Rotation) -> Tensor:
    seen = attend(q, k, k, hidden=hidden, sinks=model.weights.vector(f"{block}attn_sinks.weight"))
    back = None if turn is None else (turn[0], -turn[1])
    return _led_out(model, block, rotate_last(seen.view(q.shape), back, "pairs"))


def _led_out(model: Model, block: str, heads: Tensor) -> Tensor:
    """Return heads `(tokens, n_head, width)` through the output's low ranks, a matrix a group, and back."""
    count = model.sizes["out_groups"]
    low = [
        model.weights.item_linear(f"{block}attn_output_a.weight", number, group, parts=count)
        for number, group in enumerate(heads.flatten(1).chunk(count, -1))
    ]
    return model.linear(f"{block}attn_output_b", torch.cat(low, -1))


def _not_chosen(model: Model, block: str, x: Tensor, low_q: Tensor, turn: Rotation, windows: Windows) -> Tensor:
    """Return the windows that are ahead of a token or that its indexer does not choose, bool `(tokens, windows)`."""
    q = model.linear(f"{block}indexer.attn_q_b", low_q).view(len(x), model.sizes["index_heads"], -1)
    k = _keys(model, f"{block}indexer_compressor", x, windows)[:, 0]
    return not_best(model, block, x, rotate_last(q, turn, "pairs"), k, windows.ahead)


def _keys(model: Model, name: str, x: Tensor, windows: Windows) -> Tensor:
    """Return one key for each window, rotated to its first position, `(windows, 1, width)`.

    `name`: how the names of the compressor's tensors begin.
    """
    places = model.weights.rows(f"{name}_ape.weight", range(windows.size))[windows.at % windows.size]
    values = windows.filled(model.linear(f"{name}_kv", x), 0.0)
    weights = windows.filled(model.linear(f"{name}_gate", x) + places, float("-inf"))
    if model.sizes["series"] > 1:
        values, weights = _overlapping(values, 0.0, windows), _overlapping(weights, float("-inf"), windows)
    mean = model.norm(f"{name}_norm", (weights.softmax(1) * values).sum(1))
    return rotate_last(mean[:, None], rotation(model, len(x), at=windows.numbers * windows.size), "pairs")


def _overlapping(values: Tensor, empty: float, windows: Windows) -> Tensor:
    """Return what is left for the windows' own keys, the second half, beneath what the windows before left for them."""
    for_next, own = values.chunk(2, -1)
    return torch.cat((windows.before(for_next, empty), own), 1)
