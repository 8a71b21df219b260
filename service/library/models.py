"""`inspect`, `open_model`, `forward` and `tokenize`: what a model holds and computes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Unpack

from ggferry.converters.analysis.companion_file import other_half
from ggferry.converters.conversion.request import open_source_of
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError
from ggferry.formats.files.sources import known_by
from ggferry.service.library.answers import Inspection, Model, TensorFacts, plain
from ggferry.service.library.conversions import dropped
from ggferry.service.library.keywords import Computing, Opening, StrPath, Tokenizing, request, request_from, signed
from ggferry.service.sources.local_source import local_source

if TYPE_CHECKING:
    import numpy.typing as npt

    from ggferry.service.library.answers import Floats


def inspect(path: StrPath, *, arch: str | None = None) -> Inspection:
    """Return what a file or folder holds, according to its headers.

    Args:
        path: Any container ggferry reads; a path or a URL.
        arch: The architecture of a GGML-era file, where its bytes fit several.

    Returns:
        Container, architecture, metadata and tensors. No tensor data is read.

    Raises:
        GgferryError: NotFoundError, UnsupportedError, CorruptError or one of their subclasses.

    Example:
        >>> ggferry.inspect("old.bin").tensors["output.weight"].type
        'Q4_0_V1'
    """
    with local_source(os.fspath(path), tensors=False) as here:
        checkpoint = open_checkpoint(here, arch)
        try:
            return _inspection(checkpoint)
        finally:
            checkpoint.close()


def _inspection(checkpoint: Checkpoint) -> Inspection:
    try:
        graph = understand(checkpoint, vocab_only=True)
    except GgferryError:
        graph = None
    known = graph if graph is not None and graph.architecture.hparams else None
    return Inspection(
        path=known_by(checkpoint.path),
        container=checkpoint.container,
        version=checkpoint.version,
        era=checkpoint.era,
        architecture=known.architecture.name if known else None,
        runtimes=known.runtimes if known else (),
        files={known_by(file.path): file.size for file in checkpoint.files},
        header=dict(checkpoint.header),
        metadata={key: plain(value) for key, value in checkpoint.metadata.items()},
        tensors={ref.name: TensorFacts(ref.type.name, ref.shape, ref.nbytes) for ref in checkpoint.tensors.values()},
        dropped=dropped(checkpoint.dropped),
        notes=checkpoint.notes,
        other_half=other_half(checkpoint) if known else None,
    )


@signed("open_model")
def open_model(path: StrPath, **options: Unpack[Opening]) -> Model:
    """Open a model of any container for its tensors, its forward pass and its tokenizer.

    Args:
        path: A model file, the first part of one, or a folder; a path or a URL.
        options: As for `convert`.

    Returns:
        The open model; use it in a `with`, or close it.

    Raises:
        GgferryError: As `inspect`.
        TypeError: There is no such option.

    Example:
        >>> with ggferry.open_model("llama") as model:
        ...     model.tensor("output_norm.weight").shape
        (64,)
    """
    with ExitStack() as stack:
        here = stack.enter_context(local_source(os.fspath(path)))
        asked = request("open_model", here, options)
        checkpoint = open_source_of(asked)
        stack.callback(checkpoint.close)
        return Model(checkpoint, asked, stack.pop_all())


@signed("forward")
def forward(
    path: StrPath,
    tokens: Iterable[int],
    *,
    mel: npt.ArrayLike | None = None,
    encoder: bool = False,
    **options: Unpack[Computing],
) -> Floats:
    """Run the reference forward pass of a model of any container (torch, float32).

    Args:
        path: As for `open_model`.
        tokens: Ids of the vocabulary.
        mel: For Whisper, a spectrum, float32 `(channels, frames)`; a fixed one is used where none is given.
        encoder: Whether to return the encoder's states, where the model has an encoder.
        options: As for `convert`.

    Returns:
        float32 `(len(tokens), n_vocab)`, the logits at every position. For a model that is an encoder alone, and with
        `encoder`, its states, a row for each token or frame.

    Raises:
        UsageError: A token id is outside the vocabulary, or the model does not take such an input.
        UnsupportedError: No forward pass is known for the architecture.
        GgferryError: As `open_model`.
        TypeError: There is no such option.

    Example:
        >>> ggferry.forward("new.gguf", [1, 300, 17]).shape
        (3, 512)
    """
    with open_model(path, **request_from("forward", options)) as model:
        return model.forward(tokens, mel=mel, encoder=encoder)


@signed("tokenize")
def tokenize(
    path: StrPath, text: str, *, bos: bool | None = None, special: bool = False, **options: Unpack[Tokenizing]
) -> list[int]:
    """Encode a text with a model's own vocabulary.

    For many texts, open the model once (`open_model`).

    Args:
        path: A model or vocabulary file, or a folder.
        text: Any text.
        bos: Whether the beginning-of-sequence token comes first; None: as the file says.
        special: Whether texts of control tokens become those tokens.
        options: As for `convert`.

    Returns:
        Token ids.

    Raises:
        RefusedError: The file has no vocabulary.
        GgferryError: As `open_model`.
        TypeError: There is no such option.

    Example:
        >>> ggferry.tokenize("new.gguf", "The cat")[0]
        1
    """
    with open_model(path, **request_from("tokenize", options)) as model:
        return model.tokenize(text, bos=bos, special=special)
