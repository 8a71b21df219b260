"""What every part of a forward pass works with: the weights, the conventions, the hparams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.schema.recipe import Recipe, recipe_of
from ggferry.formats.errors import UnsupportedError, UsageError
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of a pass stand in their text. `positions`: of each token, ascending, by default 0, 1, 2, …;
    with gaps, a few tokens reach as far as thousands. `context`: the length of the text, which decides how rotary
    embeddings are scaled; by default it ends with the last token. `rows`: the tokens, by index, whose rows are wanted;
    by default all."""

    positions: tuple[int, ...] | None = None
    context: int | None = None
    rows: tuple[int, ...] | None = None


@dataclass(slots=True)
class Choices:
    """The experts that one pass chose: `chosen` by block, int64 `(tokens, n_expert_used)`. `close`: the first token for
    which a choice was so close that rounding may decide it otherwise. `earlier`: of another pass over the same tokens;
    what that chose is taken where it is as good."""

    chosen: dict[str, Tensor] = field(default_factory=dict)
    close: float = math.inf
    earlier: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What a computation gives a row a token of: its name; how it comes about, where that is not plain, and how when an
    input is given that is fixed otherwise. `ranked`: rows are logits, so that their order and their softmax mean
    something. `inputs`: what else than tokens it reads."""

    name: str = "logits"
    ranked: bool = True
    inputs: tuple[str, ...] = ()
    how: str = ""
    how_given: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.how})" if self.how else self.name

    def of(self, inputs: Iterable[str]) -> Result:
        """What it is where `inputs` were given."""
        return replace(self, how=self.how_given) if set(inputs) & set(self.inputs) else self


LOGITS = Result()
ENCODER_STATES = Result("states of the encoder", ranked=False)


class Model:
    """A bound graph, ready to compute with. Tensors are named by role without '.weight': 'blk.0.attn_q'. `inputs`:
    what else than tokens goes into it, by name ('mel'). `number`: the block that the sizes are of, -1 for none.
    `kept`: what blocks leave for later ones in one pass. `places`: where the tokens stand.
    `choices`: where to note which experts were chosen."""

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
        self.sizes: Mapping[str, Any] = graph.sizes
        self.recipe: Recipe = recipe_of(graph.architecture.recipe, graph.dialect.conventions)
        self.lists = tuple(param.name for param in graph.architecture.hparams if param.many == "n_layer")
        self.number = -1
        self.kept: dict[Any, Any] = {}

    def at(self, number: int) -> Model:
        """The model as block `number` sees it: of a size that every block has of its own, this block's."""
        found = copy(self)
        own = {name: value for name in self.lists if isinstance(value := self.sizes.get(name), tuple)}
        found.sizes = {**self.sizes, **{name: value[number] for name, value in own.items()}}
        found.number = number
        return found

    def has(self, name: str) -> bool:
        return self.weights.has(f"{name}.weight")

    def linear(self, name: str, x: Tensor) -> Tensor:
        """x `(tokens, columns)` through a matrix and, where there is one, its bias: `(tokens, rows)`."""
        turned = name.rpartition(".")[2] in self.recipe.transposed
        apply = self.weights.turned_linear if turned else self.weights.linear
        return self.biased(name, apply(f"{name}.weight", x))

    def biased(self, name: str, y: Tensor) -> Tensor:
        return y + self.weights.vector(f"{name}.bias") if self.weights.has(f"{name}.bias") else y

    def where(self, count: int) -> Tensor:
        """Where each of `count` tokens stands, int64 `(count,)`."""
        return torch.arange(count) if self.places.positions is None else torch.tensor(self.places.positions)

    def context(self, count: int) -> int:
        """The length of the text that `count` tokens stand in."""
        return self.places.context or 1 + int(self.where(count)[-1])

    def wanted(self, x: Tensor) -> Tensor:
        """The rows of x `(tokens, …)` that are wanted."""
        return x if self.places.rows is None else x[list(self.places.rows)]

    def positions(self, name: str, count: int) -> Tensor:
        """The learned positions of `count` tokens, `(count, width)`. Raises UsageError beyond `n_ctx`."""
        known, at = self.sizes["n_ctx"], self.where(count).tolist()
        if at[-1] >= known:
            raise UsageError("tokens", found=at[-1] + 1, expected=f"at most {known}, the positions that were learned")
        return self.weights.rows(f"{name}.weight", at)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """x normed along its last axis, weighted as this model does it."""
        y = self.normed(x)
        if not self.recipe.norm_weights:
            return y
        return self.biased(name, y * self.norm_weight(name))

    def normed(self, x: Tensor) -> Tensor:
        if self.sizes.get("norm", self.recipe.norm) == "layer":
            x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + float(self.sizes["eps"]))

    def norm_weight(self, name: str) -> Tensor:
        whole = f"{name}.weight" if self.has(name) else name  # llama.cpp's Falcon-H1 has one without
        return self.weights.vector(whole) + self.recipe.norm_offset

    def scale(self, name: str) -> float:
        """What the model multiplies by at a place, of that name among the hparams, 1 where it has none."""
        return float(self.sizes.get(name) or 1.0)

    def activate(self, x: Tensor) -> Tensor:
        name = self.sizes.get("activation") or self.recipe.activation
        return self._xielu(x) if name == "xielu" else meaning("an activation", name, ACTIVATIONS)(x)

    def _xielu(self, x: Tensor) -> Tensor:
        """xIELU (Huang and Schlag, 2411.13010) with this block's numbers, made positive here (transformers
        `XIELUActivation`; llama.cpp `ggml_xielu`)."""
        beta, eps = (float(self.sizes[name]) for name in ("xielu_beta", "xielu_eps"))
        above, below = (math.log1p(math.exp(float(self.sizes[f"xielu_alpha_{side}"]))) for side in "pn")
        below += beta
        bent = below * (torch.expm1(x.clamp(max=eps)) - x)
        return torch.where(x > 0, above * x * x, bent) + beta * x


def meaning(what: str, word: Any, known: Mapping[Any, Any]) -> Any:
    """What `word`, which a file or a table says, stands for. Raises UnsupportedError where nobody knows it."""
    if word not in known:
        raise UnsupportedError(f"{what} that is not known", found=word, expected=", ".join(map(str, known)))
    return known[word]


def parts(x: Tensor, *widths: int) -> list[Tensor]:
    """x cut along its last axis."""
    ends = list(accumulate(widths))
    return [x[..., end - width : end] for width, end in zip(widths, ends, strict=True)]


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": lambda x: torch.relu(x),
    "relu_squared": lambda x: torch.relu(x).square(),
}
