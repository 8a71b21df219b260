"""What the library answers with: small frozen records, and an open model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.grades import Grade, Route
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.metadata import KeyProof
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer, vocabulary_rows
from ggferry.converters.tokenizers.tokenizer import Encoder, encoder
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import NotFoundError, RefusedError
from ggferry.formats.gguf.values import Value
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
else:
    np = lazy("numpy")


@dataclass(frozen=True, slots=True)
class Assumption:
    """A hyper-parameter that nothing stated: the default that stood in for it, and the reason for that value."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """A finished conversion.

    `output`: path of the GGUF file, of several the first; `outputs`: of all. `receipt`: the document at `receipt_path`.
    `proof`: what was compared (None of its parts for `verify="none"`). `assumed`: what the source left open. `notes`:
    what a user should know. `summary`: the three lines that a command line prints.
    """

    output: str
    outputs: tuple[str, ...]
    receipt: Mapping[str, Any]
    receipt_path: str
    proof: Proof
    assumed: tuple[Assumption, ...]
    notes: tuple[str, ...]
    summary: tuple[str, str, str]

    @property
    def grades(self) -> dict[Grade, int]:
        """How many tensors have each grade, by what was compared."""
        found: dict[Grade, int] = {}
        for tensor in self.proof.tensors:
            found[tensor.grade] = found.get(tensor.grade, 0) + 1
        return found


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """What will become of one tensor. `sources`: names in the source; `shape`: of the output, outermost first;
    `bytes`: of the output; `why`: the reason where the type is not the one asked for."""

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    source_type: str
    type: str
    route: Route
    grade: Grade
    bytes: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class PlannedKey:
    """A key of the output: its value, GGUF's type of it in small letters, and where the value came from."""

    value: Any
    type: str
    origin: str


@dataclass(frozen=True, slots=True)
class DroppedTensor:
    """A tensor that is not carried over. `loses`: the output holds less than the source for want of it."""

    name: str
    reason: str
    loses: bool


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion would do. `keys`: of the output, in order. Sizes in bytes."""

    source: str
    architecture: str
    tensors: tuple[PlannedTensor, ...]
    keys: Mapping[str, PlannedKey]
    dropped: tuple[DroppedTensor, ...]
    assumed: tuple[Assumption, ...]
    notes: tuple[str, ...]
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor of a file: block type ('F16', 'Q4_K', …), shape (outermost first), bytes."""

    type: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file holds, by its headers. `era`: when and by what such bytes were written. `architecture`, `runtimes`:
    the family and the programs of today that run it; None and () where no table describes it. `metadata`: GGUF's keys
    or the configuration beside a checkpoint. `files`: paths and bytes."""

    path: str
    container: str
    version: int | None
    era: str | None
    architecture: str | None
    runtimes: tuple[str, ...]
    files: Mapping[str, int]
    header: Mapping[str, Any]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorFacts]
    dropped: tuple[DroppedTensor, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """A proof made again. `keys`: of the output, compared with the plan made again. `summary`: the line that
    says it."""

    proof: Proof
    keys: KeyProof
    notes: tuple[str, ...]
    summary: str


class Model:
    """An open model: its tensors as float32, its forward pass, its tokenizer. Close it, or use it in a `with`.

    Nothing but headers is read before it is asked for. Made by `ggferry.open_model`.
    """

    def __init__(self, checkpoint: Checkpoint, hparams: Mapping[str, str], vocab: VocabOptions) -> None:
        self._checkpoint, self._given, self._vocab = checkpoint, hparams, vocab

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its files."""
        self._checkpoint.close()

    @cached_property
    def _graph(self) -> ModelGraph:
        return understand(self._checkpoint, self._given, vocab_only=not self._checkpoint.tensors)

    @cached_property
    def _encoder(self) -> Encoder:
        tokenizer = load_tokenizer(self._checkpoint, vocabulary_rows(self._checkpoint), self._vocab)
        if tokenizer is None:
            raise RefusedError("the file has no vocabulary", path=self.path)
        return encoder(tokenizer)

    @property
    def path(self) -> str:
        """Path of its first file."""
        return self._checkpoint.path

    @property
    def architecture(self) -> str:
        """GGUF's `general.architecture` for it."""
        return self._graph.architecture.name

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Programs of today that run this very model from GGUF."""
        return self._graph.runtimes

    @property
    def hparams(self) -> dict[str, Any]:
        """The keys of its architecture that GGUF states for it, without their prefix: 'block_count' → 32."""
        prefix = f"{self.architecture}."
        return {key.removeprefix(prefix): value.data for key, value, _ in self._graph.written()}

    @property
    def tensors(self) -> dict[str, TensorFacts]:
        """Its tensors by GGUF's names, with shapes as GGUF has them, and the types and bytes that its file has."""
        return {
            node.name: TensorFacts(node.inputs[0].type.name, node.shape, sum(ref.nbytes for ref in node.inputs))
            for node in self._graph.nodes
        }

    def tensor(self, name: str) -> Floats:
        """Return a tensor's values as float32, by GGUF's name and in GGUF's row order, shape outermost first.

        Raises NotFoundError for a name it does not have, BadValueError or CorruptError for damaged data.
        """
        node = self._graph.by_name.get(name)
        if node is None:
            raise NotFoundError("no such tensor", path=self.path, found=name)
        count = 1
        for size in node.shape[:-1]:
            count *= size
        values = rows.laid_out_values(self._graph.checkpoint, node, 0, count)
        return np.ascontiguousarray(values, dtype=np.float32).reshape(node.shape)

    def forward(self, tokens: Iterable[int], *, mel: npt.ArrayLike | None = None, encoder: bool = False) -> Floats:
        """Return what `ggferry.forward` returns. Raises as it does."""
        inputs = {} if mel is None else {"mel": np.asarray(mel, np.float32)}
        found: Floats = forward(self._graph, list(tokens), inputs=inputs, part="encode" if encoder else "logits")
        return found

    def tokenize(self, text: str, *, bos: bool | None = None, special: bool = False) -> list[int]:
        """Return what `ggferry.tokenize` returns. Raises as it does."""
        return list(self._encoder.encode(text, bos=bos, special=special))


def plain(value: Any) -> Any:
    """Return what a metadata value holds: numbers, texts, tuples of them."""
    if not isinstance(value, Value):
        return value
    data = value.data
    return tuple(map(plain, data)) if isinstance(data, Sequence) and not isinstance(data, str) else data
