"""BitNet's weights as they are trained: floats, of which the layers make −1, 0 and 1 times a scale as they compute.

The scale is the mean magnitude of the matrix; levels are `round(w / scale)` within ±1, and what a layer multiplies with
is cast to the type of the weights. Sources: transformers `integrations/bitnet.py` (`WeightQuant`, `AutoBitLinear`;
`quantization_mode` "online"); 1bitLLM's `weight_quant` (microsoft/BitBLAS 22c12d79,
`integration/BitNet/utils_quant.py`); llama.cpp `conversion/bitnet.py` (b11549). All three sum in float32, in an order
that torch chooses by threads and device. Here the sum is float64 and the mean is rounded to float32 once.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from ggferry.converters.model_graph.rows import CHUNK, values_of
from ggferry.converters.prequantized.exact_blocks import Groups, Levels
from ggferry.converters.prequantized.schemes._common import DEQUANTIZE, Config, Found, Matrix, rounded
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import BadValueError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

LEAST = 1e-5
"""The least scale: `clamp(min=1e-5)`."""
FLOATS = frozenset({"F32", "F16", "BF16"})
_LINEAR = re.compile(r"(?:^|\.)layers\.\d+\..*_proj\.weight$")
_OUTPUT = "lm_head"
_LITERAL = re.compile(r"[\w.]+")


class Scale:
    """The scale of a matrix, computed when it is first wanted, by one pass over all its rows."""

    def __init__(self, checkpoint: Checkpoint, weight: TensorRef) -> None:
        """Read nothing yet."""
        self.checkpoint, self.weight = checkpoint, weight
        self._lock = threading.Lock()
        self._inverse: Floats | None = None

    def inverse(self) -> Floats:
        """Return what weights are multiplied by before they are rounded, float32 `()`. Raises BadValueError."""
        with self._lock:
            if self._inverse is None:
                mean = np.maximum(np.float32(self._total() / self.weight.elements), np.float32(LEAST))
                if not np.isfinite(mean):
                    raise BadValueError(
                        f"mean magnitude of {self.weight.name!r}",
                        path=self.checkpoint.path,
                        found=float(mean),
                        expected="finite weights",
                    )
                self._inverse = np.float32(1) / mean
            return self._inverse

    def value(self) -> Floats:
        """Return what a level of 1 means, float32 `()`, rounded to the type of the weights."""
        return rounded(np.float32(1) / self.inverse(), self.weight.type.name)

    def _total(self) -> float:
        step = max(1, CHUNK // (8 * self.weight.columns))
        total = 0.0
        for start in range(0, self.weight.rows, step):
            rows = values_of(self.checkpoint, self.weight, start, min(self.weight.rows, start + step))
            total += float(np.abs(rows).sum(dtype=np.float64))
        return total


@dataclass(frozen=True, slots=True)
class Rounded:
    """Rows of a matrix as its layer computes with them."""

    checkpoint: Checkpoint
    weight: TensorRef
    scale: Scale

    def __call__(self, start: int, stop: int) -> Floats:
        found: Floats = self._levels(start, stop) * self.scale.value()
        return found

    def groups(self) -> Groups:
        """One scale for all."""
        return Groups(-1, 1, self.weight.columns, self._read)

    def _read(self, start: int, stop: int, every: int) -> Levels:
        return Levels(self._levels(start, stop).astype(np.int8), self.scale.value().reshape(1, 1))

    def _levels(self, start: int, stop: int) -> Floats:
        values = values_of(self.checkpoint, self.weight, start, stop) * self.scale.inverse()
        np.rint(values, out=values)
        np.clip(values, -1, 1, out=values)
        return values


def rounded_while_running(checkpoint: Checkpoint, config: Config) -> Found:
    """Return the matrices that layers round as they compute: those within blocks, but for those that are listed.

    Raises UnsupportedError where which they are cannot be told.
    """
    found = Found("BitNet, made ternary by the mean magnitude of each matrix")
    plain = _left_as_they_are(checkpoint, config)
    for name, ref in checkpoint.tensors.items():
        module = name.removesuffix(".weight")
        if len(ref.shape) != 2 or module == name or ref.type.name not in FLOATS:
            continue
        if not _LINEAR.search(name) or ".experts." in name:
            if module.endswith(("embed_tokens", _OUTPUT)):
                continue
            raise UnsupportedError(
                f"whether {name!r} is rounded to three values while the model runs",
                path=checkpoint.path,
                expected="matrices *_proj.weight in blocks",
                hint=DEQUANTIZE,
            )
        if not any(module == one or module.startswith(f"{one}.") or module.endswith(one) for one in plain):
            rows = Rounded(checkpoint, ref, Scale(checkpoint, ref))
            found.matrices[name] = Matrix(name, ref.shape, rows, groups=rows.groups(), form="ternary")
    return found


def _left_as_they_are(checkpoint: Checkpoint, config: Config) -> tuple[str, ...]:
    """Return the names of modules that are not rounded (transformers `should_convert_module`); the output is none."""
    listed = config.get("modules_to_not_convert")
    if listed is None:
        return (_OUTPUT,)
    if not isinstance(listed, list) or not all(isinstance(one, str) and _LITERAL.fullmatch(one) for one in listed):
        raise UnsupportedError(
            "modules_to_not_convert of BitNet", path=checkpoint.path, found=listed, expected="names of modules"
        )
    if _OUTPUT not in listed:
        raise UnsupportedError(
            "BitNet whose output matrix is rounded, too (modules_to_not_convert)",
            path=checkpoint.path,
            found=listed,
            expected=f"{_OUTPUT!r} among them",
        )
    return tuple(listed)
