"""`ggferry forward --embed` and `--score`: what a model makes of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.files.named_texts import lines_of
from ggferry.formats.files.opened_files import recorded
from ggferry.service.cli.options import access_of, print_json, say, tell

NPY_DTYPES = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}


def dtype_of(name: str) -> str:
    """Return numpy's name of a value of --npy-dtype. Raises UsageError."""
    if name not in NPY_DTYPES:
        raise UsageError("--npy-dtype", found=name, expected=", ".join(NPY_DTYPES))
    return NPY_DTYPES[name]


@dataclass(frozen=True, slots=True)
class Texts:
    """What was asked.

    Attributes:
        embed: Whether vectors are asked for.
        texts: Of what.
        query: Else the query, for whose documents scores are asked for.
        documents: The file of the documents.
        out: The .npy to write; None for JSON.
        npy_dtype: Its type.
    """

    embed: bool
    texts: tuple[str, ...]
    query: str | None
    documents: str | None
    out: str | None
    npy_dtype: str

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.embed and self.query is not None:
            raise UsageError("--embed and --score are two questions", expected="one of them")
        if self.embed and (not self.texts or self.documents is not None):
            raise UsageError("--embed reads --text", hint="--embed --text TEXT")
        if not self.embed and (self.query is None or self.documents is None or self.texts):
            raise UsageError("--score reads --documents", hint="--score QUERY --documents FILE")


def computed(file: str, asked: Texts, given: Mapping[str, Any]) -> None:
    """Print vectors or scores as JSON, or write them as a .npy.

    Raises UsageError for options that do not go together, and what computing raises.
    """
    import numpy as np

    from ggferry.converters.conversion.request import request_of
    from ggferry.converters.forward.device import computing_on
    from ggferry.converters.forward.texts import scores, segments_note, vectors
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.partial_files import check_target, write_file

    asked.check()
    dtype = dtype_of(asked.npy_dtype)
    documents = list(lines_of(asked.documents)) if asked.documents is not None else []
    with access_of(file, given) as path:
        request = request_of(path, given)
        with recorded() as opened:
            graph = graph_of(path, request.hparams, request.arch, rerank=request.rerank)
            tokenizer = load_tokenizer(graph.checkpoint, vocabulary_rows(graph.checkpoint), request.vocab)
        if tokenizer is None:
            raise RefusedError("the file has no vocabulary", path=graph.checkpoint.path)
        if asked.out is not None:
            check_target(asked.out, overwrite=given["force"], sources=opened.identities)
        notes = [*graph.checkpoint.notes, *graph.notes]
        if asked.query is not None:
            notes.append(segments_note(graph, tokenizer))
        for note in filter(None, notes):
            say(f"note     {note}")
        with computing_on(request.device):
            if asked.query is None:
                found = vectors(graph, tokenizer, asked.texts)
            else:
                found = scores(graph, tokenizer, asked.query, documents)
        graph.checkpoint.close()
        path.check_unchanged()
    if asked.out is None:
        print_json(found.tolist() if asked.query is None else _listed(documents, found))
        return
    array = found.astype(dtype)
    write_file(asked.out, lambda file: np.save(file, array), overwrite=given["force"], sources=opened.identities)
    what = "vectors" if asked.query is None else "scores"
    if given["as_json"]:
        print_json({"path": asked.out, "shape": list(array.shape), "dtype": asked.npy_dtype, "what": what})
    else:
        tell(f"{asked.out}: {' × '.join(map(str, array.shape))} {asked.npy_dtype}, {what}")


def _listed(documents: list[str], found: Any) -> list[dict[str, Any]]:
    """Return the documents in their order, each with its place in the file and its score."""
    return [
        {"index": number, "score": float(score), "document": text}
        for number, (text, score) in enumerate(zip(documents, found, strict=True))
    ]
