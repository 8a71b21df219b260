"""Importance matrices from our own forward pass: for each weight matrix, the sums of its inputs and of their squares.

A chunk is `chunk_size` consecutive tokens of the text. The text is tokenized as a whole; where the tokenizer adds a
beginning-of-sequence token, that token then replaces the first one of every chunk. `imatrix_files` writes the sums.

Chunks pass through the model in groups, as large as ACTIVATIONS allows, so that the weights are read and decoded once
for each group instead of once for each chunk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.device import CPU
from ggferry.converters.forward.evaluate import forward, result_of
from ggferry.converters.forward.weights import Factor, Product, Weights, in_a_thread, is_large
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.errors import ShapeError, UnsupportedError, UsageError
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.quant.rounding.directions import signs
from ggferry.support.heavy import np, torch

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

OUTPUT = "output.weight"
HEADS = (OUTPUT, "token_embd.weight")
"""The matrices that make the logits: a model without an output matrix uses its embeddings."""
ACTIVATIONS = 1 << 30
"""Bytes of activations that the chunks of a group may hold between two matrices."""

PADDED = 64
"""Rows of bfloat16 are filled up to a multiple of this: oneDNN compiles a product for every number of rows."""
SHARED = re.compile(r"\.ffn_(gate|up|gate_up)_(ch)?exps\.")
"""Experts' matrices that read rows of the model itself, each some of them. One sketch of all rows gave as low a
divergence as one for each expert (a small Mixtral, Q2_K: 0.39 and 0.40 times that of stock rounding, by means 0.69)."""
STACKED = 8
"""Directions of the sketch of a matrix in another stack: 16 gave 0.39 where 8 gave 0.41, and take twice the room."""
CACHED = 64
"""Rows that are squared at once: as float64 they fit into a core's cache."""


class Recorder(Weights):
    """Weights that sum, in float64, what is multiplied with each of their columns, and its squares.

    The matrix that makes the logits is recorded but not multiplied: the logits are zeros.

    With `precision` bf16, both factors of a product are rounded to bfloat16, its sums made in float32, and rounded once
    more (oneDNN's product). llama.cpp rounds the inputs of a BF16 matrix so, too, and those of Q8_0 to eight bits.

    Attributes:
        bfloat16: Whether products are computed so.
        sums: Name → number of the matrix in its stack → float64 `(columns,)`, of the squares.
        plain: The same of the inputs themselves.
        sketch: Directions of the sketches of second moments that are made; of each matrix in a stack at most STACKED.
        sketches: Name → number of the matrix in its stack → float64 `(directions, columns)`, the sums of (x Ω)ᵀ x
            (`quant.rounding.directions.signs`). Experts that read what one router shares out have one, number 0.
        counts: Name → number of the matrix in its stack → tokens seen, each as often as its text weighs.
        seen: The same without the weights of texts.
        kept: Names whose entries are written whatever they are, as an earlier matrix has them.
        squares_only: Names of which an earlier matrix has no sums of the inputs themselves.
        weight: How often a token counts.
    """

    def __init__(self, graph: ModelGraph, precision: str = "auto", sketch: int = 0) -> None:
        """Open a model. Raises UsageError for bf16 on a GPU, whose products are float32."""
        super().__init__(graph)
        if precision == "bf16" and self.device != CPU:
            raise UsageError("--precision bf16 is of products on the processor", found=self.device, expected=CPU)
        fast = precision == "auto" and self.device == CPU and is_large(graph) and _multiplies_bfloat16()
        self.bfloat16 = precision == "bf16" or fast
        self.sums: dict[str, dict[int, Any]] = {}
        self.plain: dict[str, dict[int, Any]] = {}
        self.sketch = sketch
        self.sketches: dict[str, dict[int, Any]] = {}
        self.counts: dict[str, dict[int, float]] = {}
        self.seen: dict[str, dict[int, int]] = {}
        self.kept: set[str] = set()
        self.squares_only: set[str] = set()
        self.weight = 1.0
        self._summed: tuple[torch.Tensor, Any, Any] | None = None
        self._sketched: tuple[torch.Tensor, Any] | None = None
        self._signs: dict[int, torch.Tensor] = {}
        self._added: tuple[Any, dict[int, tuple[Any, Any]]] = (None, {})
        self._rounded: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, earlier: Imatrix, chunk_size: int) -> None:
        """Add the sums of an earlier matrix of the same model, as llama-imatrix's --in-file does.

        A .dat file counts chunks instead of tokens, and its sums are means times chunks.

        Raises ShapeError for an entry that is no weight of this model, and UsageError for chunks of another size.
        """
        if earlier.chunk_size not in (0, chunk_size):
            raise UsageError(
                "the earlier matrix was measured on chunks of another size",
                path=earlier.path,
                found=chunk_size,
                expected=earlier.chunk_size,
                hint=f"--chunk-size {earlier.chunk_size}",
            )
        tokens = chunk_size if earlier.legacy else 1
        for name, entry in earlier.entries.items():
            node = self.graph.by_name.get(name)
            matrices, columns = (math.prod(node.shape[-3:-2]), node.shape[-1]) if node else (0, 0)
            if node is None or entry.values != matrices * columns or len(entry.counts) not in (1, matrices):
                raise ShapeError(
                    f"{name!r}: measured on another model",
                    path=earlier.path,
                    offset=entry.offset,
                    found=f"{entry.values} values",
                    expected=f"{matrices} × {columns}",
                )
            self.kept.add(name)
            sums = earlier.sums(name).astype(np.float64).reshape(matrices, columns) * tokens
            inputs, plain = earlier.activations(name), np.zeros_like(sums)
            if inputs is None:
                self.squares_only.add(name)
            else:
                plain += inputs.reshape(matrices, columns)
            for item in range(matrices):
                count = entry.counts[item if len(entry.counts) > 1 else 0] * tokens
                if count:
                    self._plus(name, item, (sums[item], plain[item]), count)
            if self._directions(name):
                alike = entry.shared == is_shared(name) and len(entry.counts) == matrices
                for item in (0,) if is_shared(name) else self.sums.get(name, ()):
                    self._add_sketch(name, item, columns, earlier.sketch(name, item) if alike else None)

    def product(self, factor: Factor, x: torch.Tensor) -> Product:
        """Return the product, and add what is multiplied to the sums."""
        add = partial(self._add, factor.name, factor.item or 0, x)
        if factor.name in HEADS:
            zeros = torch.zeros(1, 1, device=x.device).expand(len(x), self.refs(factor.name)[0].rows)
            return Product((add,), zeros)
        if self.bfloat16 and (self._rounded is None or self._rounded[0] is not x):
            self._rounded = x, _rounded(x)
        product = super().product(factor, x)
        return Product((add, *product.parts), product.result)

    def _multiply_rows(self, rows: Floats, x: torch.Tensor, whole: torch.Tensor, at: int) -> None:
        if not self.bfloat16:
            super()._multiply_rows(rows, x, whole, at)
            return
        known = self._rounded
        left = known[1] if known is not None and known[0] is x else _rounded(x)
        whole[:, at : at + len(rows)] = torch.matmul(left, torch.from_numpy(rows).bfloat16().T)[: len(x)]

    def _add_sketch(self, name: str, item: int, columns: int, earlier: Floats | None) -> None:
        """Add an earlier sketch of a matrix: as many directions as both have, none where it has none."""
        sketches = self.sketches.setdefault(name, {})
        known = sketches.get(item, np.zeros((self._directions(name), columns)))
        more = np.zeros((0, columns)) if earlier is None else earlier
        count = min(len(more), len(known))
        sketches[item] = known[:count] + more[:count]

    def _add(self, name: str, item: int, x: torch.Tensor) -> None:
        if self._summed is None or self._summed[0] is not x:  # queries, keys and values are made of the same rows
            with in_a_thread():
                parts = [(part.square().sum(0), part.sum(0)) for part in map(_double, torch.split(x, CACHED))]
                squares, plain = (torch.stack(each).sum(0).cpu().numpy() for each in zip(*parts, strict=True))
                self._summed = x, squares * self.weight, plain * self.weight
        self._plus(name, item, self._summed[1:], len(x))
        if count := self._directions(name):
            if self._sketched is None or self._sketched[0] is not x or len(self._sketched[1]) != count:
                with in_a_thread():
                    self._sketched = x, self._sketch(x, count)
            self._plus_sketch(self.sketches.setdefault(name, {}), 0 if is_shared(name) else item, self._sketched[1])

    def _plus_sketch(self, sketches: dict[int, Any], item: int, sketch: Any) -> None:
        """Add to the sketch of a matrix. Matrices that have read the same rows so far share one array."""
        known = sketches.get(item)
        if known is None:
            sketches[item] = sketch
            return
        if self._added[0] is not sketch:
            self._added = sketch, {}
        sums = self._added[1]
        if id(known) not in sums:
            sums[id(known)] = known, known + sketch[: len(known)]
        sketches[item] = sums[id(known)][1]

    def _directions(self, name: str) -> int:
        """Return how many directions the sketches of a weight have."""
        if name in HEADS:
            return 0
        alone = is_shared(name) or math.prod(self.graph.by_name[name].shape[:-2]) == 1
        return self.sketch if alone else min(self.sketch, STACKED)

    def _sketch(self, x: torch.Tensor, count: int) -> Any:
        """Return (x Ω)ᵀ x, float64 `(count, columns)`, weighed as the text."""
        columns = x.shape[1]
        if columns not in self._signs:
            self._signs[columns] = torch.from_numpy(signs(columns, self.sketch)).float().to(x.device)
        total = torch.zeros(count, columns, dtype=torch.float64, device=x.device)
        for part in torch.split(x, CACHED):
            total += (part @ self._signs[columns][:, :count]).T @ part
        return total.cpu().numpy() * self.weight

    def _plus(self, name: str, item: int, summed: tuple[Any, Any], count: int) -> None:
        for of, more in zip((self.sums, self.plain), summed, strict=True):
            rows = of.setdefault(name, {})
            rows[item] = rows[item] + more if item in rows else more
        counts, seen = self.counts.setdefault(name, {}), self.seen.setdefault(name, {})
        counts[item] = counts.get(item, 0) + count * self.weight
        seen[item] = seen.get(item, 0) + count


def is_shared(name: str) -> bool:
    """Return whether all matrices of a stack have one sketch."""
    return SHARED.search(name) is not None


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Return x in bfloat16, `(tokens rounded up to a multiple of PADDED, columns)`."""
    return torch.nn.functional.pad(x.bfloat16(), (0, 0, 0, -len(x) % PADDED))


def _multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for it: elsewhere torch's products of bfloat16 are slow ones."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public names for these
    return any(getattr(torch.cpu, test, bool)() for test in tests)


def _double(rows: torch.Tensor) -> torch.Tensor:
    return rows.double()


def chunks_of(tokenizer: Tokenizer, text: str, size: int, most: int | None = None) -> list[list[int]]:
    """Return the token ids of the text in chunks of `size`, at most `most`; an incomplete last chunk is left out.

    Raises UsageError for a text that does not fill one chunk.
    """
    return cut(tokenizer, encoder(tokenizer).encode(text), size, most)


def cut(tokenizer: Tokenizer, ids: Sequence[int], size: int, most: int | None = None) -> list[list[int]]:
    """Return ids in chunks as `chunks_of` does. Raises UsageError for less than one chunk."""
    chunks = [list(ids[start : start + size]) for start in range(0, len(ids) - size + 1, size)][:most]
    if not chunks:
        raise UsageError("the text is too short", found=f"{len(ids)} tokens", expected=f"at least {size}")
    if tokenizer.flags.get("add_bos") and "bos" in tokenizer.ids:
        chunks = [[tokenizer.ids["bos"], *chunk[1:]] for chunk in chunks]
    return chunks


def measure(
    graph: ModelGraph,
    chunks: Sequence[Sequence[int]],
    progress: Callable[[int], None] | None = None,
    *,
    recorder: Recorder | None = None,
    done: int = 0,
    weights: Sequence[float] = (),
    kept: Callable[[int], None] | None = None,
) -> Recorder:
    """Run every chunk through the model and return the sums.

    Args:
        graph: The model; it reads nothing but tokens.
        chunks: Token ids.
        progress: Called after each group of chunks, with the number of its tokens.
        recorder: What to add the sums to; by default a new one.
        done: How many of the chunks are in it already.
        weights: How often the tokens of each chunk count; once by default.
        kept: Called after each group but the last, with the number of chunks that are done.

    Raises UnsupportedError for a model that reads more than tokens.
    """
    if result_of(graph).inputs:
        raise UnsupportedError(
            "an importance matrix is measured on texts, and this model reads more than tokens",
            path=graph.checkpoint.path,
            found=", ".join(result_of(graph).inputs),
        )
    recorder = recorder or Recorder(graph)
    size = group_size(graph, max(map(len, chunks), default=1))
    size = -(-len(chunks) // -(-len(chunks) // size)) if chunks else size  # as many in each group, the last one, too
    counted = weights or [1.0] * len(chunks)
    start = done
    while start < len(chunks):
        end, most = start + 1, min(start + size, len(chunks))
        while end < most and counted[end] == counted[start]:
            end += 1
        group = chunks[start:end]
        recorder.weight = counted[start]
        batched([(recorder, [partial(read_chunk, graph, chunk) for chunk in group])])
        start = end
        if progress:
            progress(sum(map(len, group)))
        if kept and start < len(chunks):
            kept(start)
    return recorder


def read_chunk(graph: ModelGraph, chunk: Sequence[int], weights: Weights) -> None:
    """Let the model read a chunk, for what `weights` do when they are multiplied with."""
    forward(graph, chunk, weights=weights)


def group_size(graph: ModelGraph, tokens: int, activations: int | None = None) -> int:
    """Return how many chunks of `tokens` tokens pass through the model together, within so many bytes of activations.

    By default that is ACTIVATIONS.

    A waiting pass holds its residual, the rows it wants multiplied and the result: less than eight times the widest
    rows.
    """
    widest = max((max(node.shape[-2:]) for node in graph.nodes if node.role.per_block), default=1)
    return max(1, (activations or ACTIVATIONS) // (8 * 4 * widest * tokens))
