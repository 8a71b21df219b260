"""What every part of a forward pass works with: the weights, the conventions, the hparams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.schema.derivations import float32
from ggferry.converters.schema.recipe import Recipe, recipe_of
from ggferry.formats.errors import UnsupportedError, UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Places:
    """The positions of the tokens of a pass in their text.

    Attributes:
        positions: Position of each token, ascending; by default 0, 1, 2, …. Gaps let a few tokens span thousands.
        context: Length of the text, on which the scaling of rotary embeddings depends; by default it ends with the last
            token.
        rows: Indices of the tokens whose rows are wanted; by default all.
    """

    positions: tuple[int, ...] | None = None
    context: int | None = None
    rows: tuple[int, ...] | None = None


@dataclass(slots=True)
class Choices:
    """The experts that one pass chose.

    Attributes:
        chosen: Block → int64 `(tokens, n_expert_used)`.
        close: The first token for which a choice was so close that rounding may change it; infinity for none.
        earlier: The choices of another pass over the same tokens, taken over wherever they are as good.
    """

    chosen: dict[str, Tensor] = field(default_factory=dict)
    close: float = math.inf
    earlier: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What a computation returns for each token.

    Attributes:
        name: What the rows are.
        ranked: Whether the rows are logits, so that their order and their softmax have a meaning.
        inputs: What the model reads besides tokens.
        how: How the result comes about, where the name does not say it.
        how_given: The same where an input is given that is otherwise fixed.
    """

    name: str = "logits"
    ranked: bool = True
    inputs: tuple[str, ...] = ()
    how: str = ""
    how_given: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.how})" if self.how else self.name

    def of(self, inputs: Iterable[str]) -> Result:
        """Return the result as it is where these inputs are given."""
        return replace(self, how=self.how_given) if set(inputs) & set(self.inputs) else self


LOGITS = Result()
CODES = Result("logits of codes")
"""Of a model that reads texts and gives codes of sound, which are fewer than its tokens."""
ENCODER_STATES = Result("states of the encoder", ranked=False)
LAST_STATES = Result("states of the last block", ranked=False)


class Model:
    """A bound graph, ready to compute with. Tensors are named by role without '.weight': 'blk.0.attn_q'.

    Attributes:
        inputs: What the model reads besides tokens, by name ('mel').
        places: The positions of the tokens.
        choices: Records which experts were chosen.
        weights: Access to the tensors.
        sizes: The hparams by short name, numbers as GGUF holds them.
        recipe: The conventions of the forward pass.
        lists: Names of the hparams that have one value for each block.
        number: The block to which `sizes` belong; -1 for none.
        kept: What blocks leave for later ones in one pass.
    """

    def __init__(
        self,
        graph: ModelGraph,
        weights: Weights | None = None,
        inputs: Mapping[str, Any] | None = None,
        places: Places | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.inputs: Mapping[str, Any] = inputs or {}
        self.places, self.choices = places or Places(), choices
        self.weights = weights or Weights(graph)
        self.sizes: Mapping[str, Any] = {name: as_stored(value) for name, value in graph.sizes.items()}
        self.recipe: Recipe = recipe_of(graph.architecture.recipe, graph.dialect.conventions)
        lengths = {"n_layer", *graph.architecture.blocks.values()}
        self.lists = tuple(param.name for param in graph.architecture.hparams if param.length in lengths)
        self.number = -1
        self.kept: dict[Any, Any] = {}

    @property
    def gives_states(self) -> bool:
        """Whether the rows of a pass are states, of which texts get one vector each."""
        return self.recipe.rows == "states" or self.sizes.get("pooling") is not None

    def at(self, number: int) -> Model:
        """Return the model as block `number` sees it: hparams with one value for each block have that block's value.

        They have none for a block that predicts further tokens, where the list does not reach it.
        """
        found = copy(self)
        own = {name: value for name in self.lists if isinstance(value := self.sizes.get(name), tuple)}
        others = {name: value for name, value in self.sizes.items() if name not in own}
        found.sizes = others | {name: value[number] for name, value in own.items() if number < len(value)}
        found.number = number
        return found

    def beyond(self, first: int, count: int) -> Model:
        """Return the model as it reads the last `count` tokens of its pass alone, which `first` stand before."""
        found = copy(self)
        found.places = Places(tuple(self._where(first + count))[first:], self.context(first + count))
        found.kept = {}
        return found

    def tower(self, prefix: str) -> Model:
        """Return the model as the vision ('v_') or audio ('a_') tower has it: its hparams without the prefix.

        Its activation is the one that the file's two flags name; with neither, it is llama.cpp's quick GELU.
        """
        found = copy(self)
        own = {name.removeprefix(prefix): value for name, value in self.sizes.items() if name.startswith(prefix)}
        plain = self.recipe.activation if self.sizes.get("use_gelu") else "quick_gelu"
        named = "silu" if self.sizes.get("use_silu") else plain
        found.sizes = {**self.sizes, "activation": named, **own}
        return found

    @property
    def rope(self) -> str:
        """How queries and keys are rotated: 'pairs', 'halves' or 'none'."""
        if self.recipe.rope == "by_axes":
            return "halves" if any(self.sizes.get("rope_sections") or ()) else "pairs"
        return "halves" if self.sizes.get("rope_halves") else self.recipe.rope

    def has(self, name: str) -> bool:
        """Return whether the model has the weight of this name."""
        return self.weights.has(f"{name}.weight")

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return x `(tokens, columns)` through a matrix and its bias, if it has one: `(tokens, rows)`."""
        rotated = name.rpartition(".")[2] in self.recipe.transposed and not self.weights.is_linear(f"{name}.weight")
        apply = self.weights.rotated_linear if rotated else self.weights.linear
        y = self.biased(name, apply(f"{name}.weight", x))
        block, _, last = name.rpartition(".")
        switched = ADAPTERS in self.kept and self.weights.has(f"{block}.{JOINT.get(last, (last,))[0]}.lora_a")
        return y + self._switched(name, x, y.shape[-1]) if switched else y

    def _switched(self, name: str, x: Tensor, width: int) -> Tensor:
        """Return what the adapter of each token adds to a matrix, `(tokens, width)` (Granite Switch).

        A matrix of several parts has an adapter for each. A checkpoint has no matrices of zeros before the others.
        """
        block, _, last = name.rpartition(".")
        parts = JOINT[last] if last in JOINT and not (last == "ffn_up" and width == self.sizes["n_ff"]) else (last,)
        slots, out = self.kept[ADAPTERS], []
        for part in parts:
            (low,), (high,) = (self.weights.refs(f"{block}.{part}.lora_{side}") for side in "ab")
            stored, rows = len(low.shape) == 4, high.shape[-2]
            added = torch.zeros((len(x), rows), dtype=x.dtype)
            for slot in sorted(set(slots.tolist()) - {0}):
                item, count = (slot - 1, low.shape[0]) if stored else (slot, 0)
                y = x[slots == slot]
                for side in "ab":
                    y = self.weights.item_linear(f"{block}.{part}.lora_{side}", item, y, count)
                added[slots == slot] = y
            out.append(added)
        return torch.cat(out, -1)

    def scaled_linear(self, name: str, x: Tensor) -> Tensor:
        """Return x as `linear` does, times the number of the matrix, if it has one ('attn_output.scale', Talkie)."""
        y = self.linear(name, x)
        return y * self.weights.vector(f"{name}.scale") if self.weights.has(f"{name}.scale") else y

    def biased(self, name: str, y: Tensor) -> Tensor:
        """Return y plus the bias of this name, if the model has it."""
        return y + self.weights.vector(f"{name}.bias") if self.weights.has(f"{name}.bias") else y

    def where(self, count: int) -> Tensor:
        """Return the position of each of `count` tokens, int64 `(count,)`."""
        return torch.tensor(self._where(count))

    def _where(self, count: int) -> Sequence[int]:
        return range(count) if self.places.positions is None else self.places.positions

    def context(self, count: int) -> int:
        """Return the length of the text to which `count` tokens belong."""
        return self.places.context or 1 + self._where(count)[-1]

    def selected(self, x: Tensor) -> Tensor:
        """Return the rows of x `(tokens, …)` that the caller of the pass wants."""
        return x if self.places.rows is None else x[list(self.places.rows)]

    def positions(self, name: str, count: int) -> Tensor:
        """Return the learned position embeddings of `count` tokens, `(count, width)`.

        In a checkpoint they may begin at a later row (`first_position`). Raises UsageError beyond `n_ctx`.
        """
        known, at = self.sizes["n_ctx"], self._where(count)
        if at[-1] >= known:
            raise UsageError("tokens", found=at[-1] + 1, expected=f"at most {known}, the positions that were learned")
        first = self.recipe.position_offset + (self.sizes.get("first_position") or 0)
        return self.weights.rows(f"{name}.weight", [first + place for place in at])

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Return x normalized along its last axis, then weighted and biased as this model does it."""
        behind = name.rpartition(".")[2] in BEHIND
        y = self.normed(x, self.sizes.get("eps_behind") if behind else None)
        if not self.recipe.norm_weights:
            return y
        return self.biased(name, y * self.norm_weight(name))

    def normed(self, x: Tensor, eps: float | None = None) -> Tensor:
        """Return x normalized along its last axis, by RMSNorm or LayerNorm, without weights."""
        if self.sizes.get("norm", self.recipe.norm) == "layer":
            x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + float(self.sizes["eps"] if eps is None else eps))

    def has_norm(self, name: str) -> bool:
        """Return whether the model has this norm; in llama.cpp some have no '.weight' (Falcon-H1, PLaMo)."""
        return self.has(name) or self.weights.has(name)

    def norm_weight(self, name: str) -> Tensor:
        """Return the weights of a norm, with the offset that the recipe adds; float32, as GGUF holds the sum."""
        whole = f"{name}.weight" if self.has(name) else name
        offset = self._norm_offset(name.rpartition(".")[2])
        weights = self.weights.vector(whole)
        return (weights + offset).to(torch.float32) if offset else weights

    def _norm_offset(self, name: str) -> float:
        recipe = self.recipe
        if recipe.post_norms == "fifths" and name in BEHIND:
            return BEHIND[name]
        return 0.0 if recipe.offset_norms and name not in recipe.offset_norms else recipe.norm_offset

    def scale(self, name: str) -> float:
        """Return the hparam of this name, a factor of the computation; 1 where the model has none."""
        return float(self.sizes.get(name) or 1.0)

    def activate(self, x: Tensor) -> Tensor:
        """Return the model's activation function of x."""
        name = self.sizes.get("activation") or self.recipe.activation
        return self._xielu(x) if name == "xielu" else meaning("an activation", name, ACTIVATIONS)(x)

    def _xielu(self, x: Tensor) -> Tensor:
        """Return xIELU (Huang and Schlag, 2411.13010) of x, by this block's parameters, made positive here.

        Source: transformers `XIELUActivation`; llama.cpp `ggml_xielu`.
        """
        beta, eps = (float(self.sizes[name]) for name in ("xielu_beta", "xielu_eps"))
        above, below = (math.log1p(math.exp(float(self.sizes[f"xielu_alpha_{side}"]))) for side in "pn")
        below += beta
        bent = below * (torch.expm1(x.clamp(max=eps)) - x)
        return torch.where(x > 0, above * x * x, bent) + beta * x


ADAPTERS = "adapters"
"""Where a pass keeps the number of the adapter that each token passes through (`Model.kept`), 0 for none."""
JOINT = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}
"""Matrices that checkpoints have in one, whose parts have adapters of their own."""


def as_stored(value: Any) -> Any:
    """Return the value of an hparam with its fractions as GGUF holds them, float32.

    A source may state a base of rotary embeddings that float32 has not: at position 100,000 its rounding turns a head
    further than two sound passes differ.
    """
    if isinstance(value, tuple):
        return tuple(map(as_stored, value))
    if not isinstance(value, float) or not abs(value) <= MOST:
        return value
    return float32(value)


def meaning(what: str, word: Any, known: Mapping[Any, Any]) -> Any:
    """Return what `word`, which a file or a table states, stands for. Raises UnsupportedError for an unknown word."""
    if word not in known:
        raise UnsupportedError(f"{what} that is not known", found=word, expected=", ".join(map(str, known)))
    return known[word]


def parts(x: Tensor, *widths: int) -> list[Tensor]:
    """Split x along its last axis into parts of these widths."""
    ends = list(accumulate(widths))
    return [x[..., end - width : end] for width, end in zip(widths, ends, strict=True)]


def silu(x: Tensor) -> Tensor:
    """Return x · sigmoid(x)."""
    return x * torch.sigmoid(x)


MOST = 2.0**127
"""Rounding to float32 keeps what is not larger finite."""
BEHIND = {"post_attention_norm": 1 / 5, "post_ffw_norm": 1 / 5**1.5}
"""What PLaMo adds to the weights of the norms behind a branch (`Recipe.post_norms`)."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": lambda x: torch.relu(x),
    "relu_squared": lambda x: torch.relu(x).square(),
}
