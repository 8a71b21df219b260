"""`ggferry forward --embed` and `--score`: what a model makes of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.formats.errors import RefusedError, UsageError
from ggferry.formats.files.named_texts import lines_of
from ggferry.formats.files.opened_files import recorded
from ggferry.service.cli.options import print_json, say, tell
from ggferry.service.operation import open_source
from ggferry.service.operations.forward import ForwardCommand, model_options

if TYPE_CHECKING:
    from ggferry.service.operations._json_forms import ScoredText, WrittenRows

NPY_DTYPES = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}


def dtype_of(name: str) -> str:
    """Return numpy's name of a value of --npy-dtype. Raises UsageError."""
    if name not in NPY_DTYPES:
        raise UsageError("--npy-dtype", found=name, expected=", ".join(NPY_DTYPES))
    return NPY_DTYPES[name]


def _check(request: ForwardCommand) -> None:
    """Raise UsageError for options that do not go together."""
    if request.embed and request.score is not None:
        raise UsageError("--embed and --score exclude each other")
    if request.embed and (not request.texts or request.documents is not None):
        raise UsageError("--embed reads --text", hint="--embed --text TEXT")
    if not request.embed and (request.score is None or request.documents is None or request.texts):
        raise UsageError("--score reads --documents", hint="--score QUERY --documents FILE")


def computed(request: ForwardCommand) -> None:
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

    _check(request)
    dtype = dtype_of(request.npy_dtype)
    documents = list(lines_of(request.documents)) if request.documents is not None else []
    with open_source(request.path, request.cache) as path:
        conversion = request_of(path, model_options(request))
        with recorded() as opened:
            graph = graph_of(path, conversion.hparams, conversion.arch, rerank=conversion.rerank)
            tokenizer = load_tokenizer(graph.checkpoint, vocabulary_rows(graph.checkpoint), conversion.vocab)
        if tokenizer is None:
            raise RefusedError("the file has no vocabulary", path=graph.checkpoint.path)
        if request.out is not None:
            check_target(request.out, overwrite=request.force, sources=opened.identities)
        notes = [*graph.checkpoint.notes, *graph.notes]
        if request.score is not None:
            notes.append(segments_note(graph, tokenizer))
        for note in filter(None, notes):
            say(f"note     {note}")
        with computing_on(conversion.device):
            if request.score is None:
                found = vectors(graph, tokenizer, request.texts)
            else:
                found = scores(graph, tokenizer, request.score, documents)
        graph.checkpoint.close()
        path.check_unchanged()
    if request.out is None:
        print_json(found.tolist() if request.score is None else _listed(documents, found))
        return
    array = found.astype(dtype)
    write_file(request.out, lambda file: np.save(file, array), overwrite=request.force, sources=opened.identities)
    what = "vectors" if request.score is None else "scores"
    if request.as_json:
        written: WrittenRows = {
            "path": request.out,
            "shape": list(array.shape),
            "dtype": request.npy_dtype,
            "what": what,
        }
        print_json(written)
    else:
        tell(f"{request.out}: {' × '.join(map(str, array.shape))} {request.npy_dtype}, {what}")


def _listed(documents: list[str], found: Any) -> list[ScoredText]:
    """Return the documents in their order, each with its place in the file and its score."""
    return [
        {"index": number, "score": float(score), "document": text}
        for number, (text, score) in enumerate(zip(documents, found, strict=True))
    ]
