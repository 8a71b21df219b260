"""What the library returns: small frozen records, and an open model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion_plan.grades import Grade, Route
from ggferry.converters.forward.device import computing_on
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.texts import scores, vectors
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.metadata import KeyProof
from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows
from ggferry.converters.tokenizers.tokenizer import Encoder, Tokenizer, encoder
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import NotFoundError, RefusedError
from ggferry.formats.files.sources import known_by
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.heavy import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A hyper-parameter that nothing stated.

    Attributes:
        name: Name of the hyper-parameter.
        value: The default that was used.
        reason: Why it has this value.
    """

    name: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """A finished conversion.

    Attributes:
        output: Path of the GGUF file; of several files, the first.
        outputs: Paths of all files.
        receipt: The document at `receipt_path`.
        receipt_path: Path of the receipt.
        proof: What was compared; its parts are None for `verify="none"`.
        assumed: What the source left open.
        notes: What a user should know.
        summary: The three lines that the command line prints.
        mmproj: The mmproj file, which was written beside it; None where there is none.
    """

    output: str
    outputs: tuple[str, ...]
    receipt: Mapping[str, Any]
    receipt_path: str
    proof: Proof
    assumed: tuple[Assumption, ...]
    notes: tuple[str, ...]
    summary: tuple[str, str, str]
    mmproj: Conversion | None = None

    @property
    def grades(self) -> dict[Grade, int]:
        """Return how many tensors have each grade, according to what was compared."""
        found: dict[Grade, int] = {}
        for tensor in self.proof.tensors:
            found[tensor.grade] = found.get(tensor.grade, 0) + 1
        return found


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """What will become of one tensor.

    Attributes:
        name: Name in the output.
        sources: Names in the source.
        shape: Shape in the output, outermost first.
        source_type: Block type in the source.
        type: Block type in the output.
        route: How it is made.
        grade: How exact it is.
        bytes: Bytes in the output.
        why: The reason, where the type is not the one asked for.
    """

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
    """A key of the output.

    Attributes:
        value: Its value.
        type: GGUF's type of the value, in lower case.
        origin: Where the value came from.
    """

    value: Any
    type: str
    origin: str


@dataclass(frozen=True, slots=True)
class DroppedTensor:
    """A tensor that is not copied.

    Attributes:
        name: Name in the source.
        reason: Why it is dropped.
        loses: Whether the output holds less information than the source because of that.
    """

    name: str
    reason: str
    loses: bool


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion would do.

    Attributes:
        source: Path of the source.
        architecture: GGUF's `general.architecture`.
        tensors: The tensors of the output.
        keys: The keys of the output, in order.
        dropped: Tensors that are not copied.
        assumed: What the source left open.
        notes: What a user should know.
        bytes_read: Bytes that the conversion will read.
        bytes_written: Bytes that it will write.
        mmproj: The plan of the mmproj file; None where there is none.
        further: The plans of the other outputs, where several types are asked for, in their order.
    """

    source: str
    architecture: str
    tensors: tuple[PlannedTensor, ...]
    keys: Mapping[str, PlannedKey]
    dropped: tuple[DroppedTensor, ...]
    assumed: tuple[Assumption, ...]
    notes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    mmproj: ConversionPlan | None = None
    further: tuple[ConversionPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor of a file.

    Attributes:
        type: Block type ('F16', 'Q4_K', …).
        shape: Elements along each axis, outermost first.
        bytes: Bytes in the file.
    """

    type: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a file holds, according to its headers.

    Attributes:
        path: Path of the first file.
        container: Name of the container.
        version: Version of the container; None where it has none.
        era: When and by which program such bytes were written.
        architecture: The family of the model; None where no table describes it.
        runtimes: The current programs that run it; () where no table describes it.
        files: Path → bytes.
        header: The fixed header fields as found.
        metadata: GGUF's keys, or the configuration of a training checkpoint.
        tensors: Tensors by name.
        dropped: Tensors that the reader found and does not copy.
        notes: What a user should know.
        other_half: Of a multimodal model: what that half is and where, or the text model of a file of it.
    """

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
    other_half: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """A proof that was made again.

    Attributes:
        proof: What was compared.
        keys: The keys of the output, compared with those of the plan, which was made again.
        notes: What a user should know.
        summary: The result in one line.
    """

    proof: Proof
    keys: KeyProof
    notes: tuple[str, ...]
    summary: str


class Model:
    """An open model: its tensors as float32, its forward pass, its tokenizer. Close it, or use it in a `with`.

    Opening reads only headers; everything else is read when it is asked for. `ggferry.open_model` opens one.
    """

    def __init__(self, checkpoint: Checkpoint, request: Request, opened: ExitStack) -> None:
        self._checkpoint, self._request, self._opened = checkpoint, request, opened

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its files."""
        self._opened.close()

    @cached_property
    def _graph(self) -> ModelGraph:
        bare = not self._checkpoint.tensors
        return understand(self._checkpoint, self._request.hparams, vocab_only=bare, rerank=self._request.rerank)

    @cached_property
    def _vocabulary(self) -> Tokenizer:
        tokenizer = load_tokenizer(self._checkpoint, vocabulary_rows(self._checkpoint), self._request.vocab)
        if tokenizer is None:
            raise RefusedError("the file has no vocabulary", path=self.path)
        return tokenizer

    @cached_property
    def _encoder(self) -> Encoder:
        return encoder(self._vocabulary)

    @property
    def path(self) -> str:
        """Path of its first file."""
        return known_by(self._checkpoint.path)

    @property
    def architecture(self) -> str:
        """The architecture, as GGUF's `general.architecture` names it."""
        return self._graph.architecture.name

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The current programs that run this very model from GGUF."""
        return self._graph.runtimes

    @property
    def hparams(self) -> JSONObject:
        """The keys that GGUF has for this architecture, without their prefix, with their values: 'block_count' → 32."""
        prefix = f"{self.architecture}."
        return {key.removeprefix(prefix): value.data for key, value, _ in self._graph.written()}

    @property
    def tensors(self) -> dict[str, TensorFacts]:
        """Its tensors by their names in GGUF: shapes as in GGUF, types and bytes as in its own file."""
        return {
            node.name: TensorFacts(node.inputs[0].type.name, node.shape, sum(ref.nbytes for ref in node.inputs))
            for node in self._graph.nodes
        }

    def tensor(self, name: str) -> Floats:
        """Return the values of a tensor as float32.

        Args:
            name: Its name in GGUF.

        Returns:
            float32 in GGUF's shape (outermost first) and row order.

        Raises:
            NotFoundError: The model has no such tensor.
            GgferryError: BadValueError or CorruptError, for damaged data.
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
        """Return what `ggferry.forward` returns for this model. Raises as it does."""
        inputs = {} if mel is None else {"mel": np.asarray(mel, np.float32)}
        with computing_on(self._request.device):
            found: Floats = forward(self._graph, list(tokens), inputs=inputs, part="encode" if encoder else "logits")
        return found

    def features(
        self,
        *,
        image: str | os.PathLike[str] | None = None,
        audio: str | os.PathLike[str] | None = None,
        pixels: npt.ArrayLike | None = None,
        spectrum: npt.ArrayLike | None = None,
    ) -> Floats:
        """Return the rows that the text model reads in place of a picture or a recording.

        The model is an mmproj file (mmproj), or a multimodal checkpoint. A file is prepared as the model's
        processor does it, whole: tiles are not cut.

        Args:
            image: A picture that Pillow reads.
            audio: A WAV file at 16 kHz.
            pixels: Instead of a picture its normalized pixels, float32 `(3, height, width)`.
            spectrum: Instead of a recording its spectrum, float32 `(bins, frames)`.

        Returns:
            float32 `(rows, width of the text model)`.

        Raises:
            UsageError: None or several are given, or the model does not take such a thing.
            UnsupportedError: The family's pictures or recordings are prepared otherwise, or Pillow is not installed.
            CorruptError: A file is no picture or no recording.
        """
        from ggferry.converters.forward.senses.features import features

        files = {name: os.fspath(path) if path else None for name, path in (("image", image), ("audio", audio))}
        with computing_on(self._request.device):
            found: Floats = features(self._senses, **files, pixels=pixels, spectrum=spectrum)[0]
        return found

    @cached_property
    def _senses(self) -> ModelGraph:
        from ggferry.converters.forward.senses.features import senses_of

        return senses_of(self._checkpoint, self._request.hparams)

    def embed(self, texts: str | Iterable[str]) -> Floats:
        """Return the vectors of texts, by a model of embeddings.

        Args:
            texts: One text or several, with the prompts that the model wants before them.

        Returns:
            float32 `(texts, width)`: pooled, multiplied and of unit length as the model states; of unit length, too,
            where nothing is stated.

        Raises:
            UnsupportedError: The model makes no vectors of texts.
            RefusedError: Nothing says how the states of a text become one vector, or there is no vocabulary.
            GgferryError: As `forward`.
        """
        with computing_on(self._request.device):
            found: Floats = vectors(self._graph, self._vocabulary, [texts] if isinstance(texts, str) else list(texts))
        return found

    def score(self, query: str, documents: Iterable[str]) -> Floats:
        """Return how well documents fit a query, by a reranker or another classifier of pairs of texts.

        Args:
            query: The query.
            documents: The documents.

        Returns:
            float32 `(documents,)`, in their order: what `llama-server --reranking` gives; of several labels the first.

        Raises:
            UnsupportedError: The model has no classifier.
            GgferryError: As `embed`.
        """
        given = [documents] if isinstance(documents, str) else list(documents)
        with computing_on(self._request.device):
            found: Floats = scores(self._graph, self._vocabulary, query, given)
        return found

    def tokenize(self, text: str, *, bos: bool | None = None, special: bool = False) -> list[int]:
        """Return what `ggferry.tokenize` returns for this model. Raises as it does."""
        return list(self._encoder.encode(text, bos=bos, special=special))

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        """Return the text of each token by itself; bytes that are no text are escaped."""
        return [self._encoder.decode([each], special=True).decode("utf-8", "backslashreplace") for each in tokens]


def plain(value: Any) -> Any:
    """Return the content of a metadata value: a number, a text, or a tuple of them."""
    if not isinstance(value, Value):
        return value
    data = value.data
    return tuple(map(plain, data)) if isinstance(data, Sequence) and not isinstance(data, str) else data
