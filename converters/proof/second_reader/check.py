"""Have the source read a second time by the libraries its format is made with, and compare.

Both sides of the other proofs share our readers, dequantizers and tables, so that their mistakes would be proved. Here
a sample of every tensor is read by safetensors, torch or gguf, samples of quantized matrices are computed by formulas
written a second time (`programs/dequantize.py`), and gguf says what it calls the tensors, in a process of their own
that works while the output is written. Settings and orders are inspected without our tables (`settings`, `order`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.recognize import configuration, method_of
from ggferry.converters.proof.second_reader.order import check_order
from ggferry.converters.proof.second_reader.process import MAX_FILES, Pending, ask
from ggferry.converters.proof.second_reader.samples import (
    MANY,
    Piece,
    Sample,
    digest,
    name_in_file,
    pieces_of,
    samples,
    some_matrices,
)
from ggferry.converters.proof.second_reader.settings import check_settings
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import VerificationError
from ggferry.formats.files.sources import LocalFile, Window
from ggferry.formats.reader import Kind, kind_of
from ggferry.quant.codec import types_of_forks
from ggferry.support.heavy import np
from ggferry.support.printable import printable
from ggferry.support.records import dataclass

ROWS = 8
"""Rows of a quantized matrix that are computed a second time, from either end."""
COLUMNS = 512
"""Their columns, from either end."""
NEAR = 1e-6
"""How far two orders of the same float32 operations may differ, relative to the largest value of a row."""
SHOWN = 3
CONTAINERS = frozenset({"safetensors", "pytorch", "pytorch-meta", "gguf"})
"""What the libraries read (`programs/library_reader.py`)."""
_NO_PROCESS = "no process for other libraries can be started"


@dataclass(frozen=True, slots=True)
class SecondReading:
    """What the libraries found.

    Attributes:
        libraries: Their names and versions.
        tensors: How many tensors, or parts of them in one file each, were read alike.
        matrices: Of how many quantized matrices rows were computed alike.
        names: How many tensors the package gguf gives the same names.
        settings: How many values of config.json were found to be what they were taken for.
        unread: What they did not read, in words.
        none: Why no library was asked; '' where one was.
    """

    libraries: tuple[str, ...] = ()
    tensors: int = 0
    matrices: int = 0
    names: int = 0
    settings: int = 0
    unread: tuple[str, ...] = ()
    none: str = ""

    @property
    def requested(self) -> bool:
        """Whether a second reading was wanted."""
        return self != SecondReading()

    @property
    def line(self) -> str:
        """What it showed, as a part of a line; '' where it showed nothing."""
        if not self.tensors:
            return ""
        rows = f", rows of {self.matrices} quantized matrices computed alike a second way" if self.matrices else ""
        return f"samples of {self.tensors} tensors read alike by {' and '.join(self.libraries)}{rows}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for a user: what a library was asked for and did not read."""
        return tuple(f"not read by a second library: {line}" for line in self.unread)


class Reading:
    """A second reading that goes on in the background."""

    def __init__(self, checkpoint: Checkpoint, graph: ModelGraph, *, idle: bool = False) -> None:
        """Begin.

        Args:
            checkpoint: The source as its reader returned it.
            graph: What was understood of it.
            idle: Whether to read nothing, because nothing is proved.
        """
        self.checkpoint, self.graph, self.understood, self.idle = checkpoint, graph, graph.checkpoint, idle
        self.pieces: list[list[tuple[Piece, list[Sample]]]] = [[] for _ in checkpoint.files]
        self.matrices: list[tuple[TensorRef, tuple[int, int], tuple[int, int]]] = []
        self.why = ""
        self.pending = None if idle else self._ask()

    def _ask(self) -> Pending | None:
        files = [file for file in self.checkpoint.files if isinstance(file, LocalFile)]
        if self.checkpoint.container not in CONTAINERS:
            self.why = "no other library reads such files"
        elif any(isinstance(file, Window) for file in self.checkpoint.files):
            self.why = "the model is inside an archive"
        elif len(files) != len(self.checkpoint.files):
            self.why = "the source is not on this machine"
        elif len(files) > MAX_FILES:
            self.why = f"more than {MAX_FILES} files"
        elif other := types_of_forks(ref.type for ref in self.checkpoint.tensors.values()):
            self.why = f"the package gguf does not know the block types of {', '.join(other)}"
        if self.why or not files:
            return None
        found = pieces_of(self.checkpoint)
        for piece in found:
            chosen = list(samples(piece.shape, piece.ref.type.elements, few=len(found) > MANY))
            self.pieces[piece.ref.spans[piece.number].file].append((piece, chosen))
        scheme, settings = self._scheme()
        question = {
            "files": [[[name_in_file(piece.ref), chosen] for piece, chosen in own] for own in self.pieces],
            "matrices": [[ref.name, *down, *across] for ref, down, across in self.matrices],
            "names": self._names(),
            "architecture": self.graph.architecture.name,
            "blocks": int(self.graph.sizes.get("n_layer") or 1),
            "scheme": scheme,
            "settings": settings,
            "bytes": sum(file.size for file in files),
        }
        pending = ask(question, [file.fileno() for file in files])
        self.why = "" if pending else _NO_PROCESS
        return pending

    def _names(self) -> list[tuple[str, str]]:
        """Return what tensors of a text model are called in the source and in the output."""
        training = kind_of(self.checkpoint.container) is Kind.TRAINING
        if not training or self.graph.architecture.projector or not self.graph.architecture.hparams:
            return []
        return [(ref.name, node.name) for node in self.graph.nodes for ref in node.inputs[:1]]

    def _scheme(self) -> tuple[str, Mapping[str, Any]]:
        """Choose the parts of quantized matrices; return what the configuration calls their scheme, and itself.

        With it goes the shape of each matrix, which the model's own configuration has confirmed: `shapes`; and how many
        ranks MiMo-V2.5's queries, keys and values are cut for (SGLang, `get_mimo_v2_fused_qkv_expected_tp_size`).
        """
        settings = configuration(self.checkpoint) or {}
        derived = [
            ref for ref in self.understood.tensors.values() if ref.derived is not None and not ref.derived.merged
        ]
        if not derived:
            return "", {}
        for ref in some_matrices(derived):
            for down in sorted({(0, min(ref.rows, ROWS)), (max(0, ref.rows - ROWS), ref.rows)}):
                for across in sorted({(0, min(ref.columns, COLUMNS)), (max(0, ref.columns - COLUMNS), ref.columns)}):
                    self.matrices.append((ref, down, across))
        shapes = {ref.name: ref.shape for ref, _, _ in self.matrices}
        config = self.checkpoint.metadata
        ranks = config.get("num_key_value_heads") if config.get("architectures") == ["MiMoV2ForCausalLM"] else None
        return method_of(settings, self.checkpoint.tensors), {**settings, "shapes": shapes, "ranks": ranks}

    def check(self) -> SecondReading:
        """Wait for the answer and compare. Raises VerificationError where a library reads something else."""
        if self.idle:
            return SecondReading()
        check_order(self.graph)
        settings = check_settings(self.graph)
        if self.pending is None:
            return SecondReading(settings=settings, none=self.why)
        answers, self.pending = self.pending.answer(), None
        if isinstance(answers, str):
            return SecondReading(settings=settings, unread=(printable(answers),))
        libraries, unread, count = [], [], 0
        for number, (answer, own) in enumerate(zip(answers["files"], self.pieces, strict=True)):
            if "error" in answer:
                name = os.path.basename(self.checkpoint.files[number].path)
                unread.append(f"{printable(name)}: {printable(answer['error'])}")
                continue
            libraries.append(answer["library"])
            odd = self._read_alike(answer, own)
            count += len(own) - len(odd)
            unread += odd[:SHOWN] + ([f"and {len(odd) - SHOWN} more tensors"] if odd[SHOWN:] else [])
            self._all_seen(number, answer)
        matrices = self._matrices(answers.get("matrices", ()), unread) if not unread else 0
        names = self._named_alike(answers["names"]) if "names" in answers else 0
        return SecondReading(tuple(dict.fromkeys(libraries)), count, matrices, names, settings, tuple(unread))

    def _named_alike(self, answer: Mapping[str, Any]) -> int:
        """Check that no tensor has the place of another by the names of the package gguf; return how many agree."""
        ours = {node.name: {ref.name for ref in node.inputs} for node in self.graph.nodes}
        for theirs, name, found in answer["otherwise"]:
            if theirs in ours.get(found, (theirs,)):  # it stands there, too: rows of it are a reranker's classifier
                continue
            if not found.startswith("cls"):  # the heads of classifiers, named by what follows them
                raise VerificationError(
                    f"tensor {theirs!r} in the place of another",
                    path=self.checkpoint.path,
                    found=name,
                    expected=f"{found}, by {answer['library']}",
                )
        return int(answer["alike"])

    def _read_alike(self, answer: Mapping[str, Any], own: Sequence[tuple[Piece, list[Sample]]]) -> list[str]:
        """Compare what a library read of one file; return a line for each tensor that it did not read."""
        unread = []
        for (piece, chosen), found in zip(own, answer["tensors"], strict=True):
            if len(found) == 1:
                unread.append(f"{piece.ref.name}: {printable(found[0])}")
                continue
            kind, shape, theirs = found
            for what, one, other in (
                ("type", kind, piece.ref.type.name),
                ("shape", list(shape), list(piece.shape)),
                ("bytes", theirs, None),
            ):
                expected = digest(self.checkpoint, piece, chosen) if other is None else other
                if one != expected:
                    raise VerificationError(
                        f"tensor {piece.ref.name!r}: {answer['library']} reads another {what} than we do"
                        if what != "bytes"
                        else f"tensor {piece.ref.name!r}: {answer['library']} reads other bytes",
                        path=self.checkpoint.files[piece.ref.spans[piece.number].file].path,
                        found=expected,
                        expected=one,
                    )
        return unread

    def _all_seen(self, number: int, answer: Mapping[str, Any]) -> None:
        """Check that the library knows no tensor of a file that our reader has not seen."""
        empty = {ref.name for ref in self.checkpoint.tensors.values() if not ref.elements}
        more = [name for name in answer["more"] if name not in empty]
        if more and answer["library"].startswith("safetensors"):
            raise VerificationError(
                f"{answer['library']} reads tensors that we do not",
                path=self.checkpoint.files[number].path,
                found="none",
                expected=", ".join(map(printable, more[:SHOWN])),
            )

    def _matrices(self, answers: Sequence[Sequence[Any]], unread: list[str]) -> int:
        """Compare the values of quantized matrices; return of how many."""
        alike = set()
        for (ref, down, across), (found,) in zip(self.matrices, answers, strict=True):
            if isinstance(found, str):
                unread.append(f"{ref.name}: {printable(found)}")
                continue
            ours = values_of(self.understood, ref, *down)[:, slice(*across)]
            theirs = np.array(found, np.float32).reshape(ours.shape)
            unlike = np.abs(ours - theirs) > NEAR * np.abs(theirs).max(initial=0)
            unlike |= np.isnan(ours) != np.isnan(theirs)
            if unlike.any():
                row, column = (int(place[0]) for place in np.nonzero(unlike))
                raise VerificationError(
                    f"tensor {ref.name!r}, row {down[0] + row}, column {across[0] + column}: not what its scheme means",
                    path=self.understood.path,
                    found=float(ours[row, column]),
                    expected=float(theirs[row, column]),
                )
            alike.add(ref.name)
        return len(alike)

    def close(self) -> None:
        """Give up waiting."""
        if self.pending is not None:
            self.pending.close()
