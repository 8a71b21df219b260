"""Run the reference forward pass of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, fields
from typing import TYPE_CHECKING, Annotated, Any

from ggferry.converters.conversion.options import Kind, option
from ggferry.service.operation import (
    AsJson,
    Cache,
    Device,
    FollowRedirects,
    Force,
    StrPath,
    argument,
    declare,
    library_function,
)
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ggferry.service.library.answers import Floats
else:
    ArrayLike = object  # numpy is not loaded for the help of a command

_PATH = argument("Any model ggferry can read; a path or a URL.")
_ENCODER = declare(Kind.FLAG, "The encoder's states, where the model has one.")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What a file does not say of the model, and where it is computed."""

    _: KW_ONLY
    arch: Annotated[str | None, option("arch")] = None
    hparams: Annotated[Mapping[str, str] | None, option("hparams")] = None
    rerank: Annotated[str, option("rerank")] = "auto"
    device: Device = "cpu"


@dataclass(frozen=True, slots=True)
class ForwardRequest(ModelOptions):
    """The inputs of a forward pass."""

    path: Annotated[StrPath, _PATH]
    tokens: Annotated[Iterable[int], "Ids of the vocabulary."]
    _: KW_ONLY
    mel: Annotated[
        ArrayLike | None,
        "For Whisper, a spectrum, float32 `(channels, frames)`; a fixed one is used where none is given.",
    ] = None
    encoder: Annotated[bool, _ENCODER] = False


@dataclass(frozen=True, slots=True)
class ForwardCommand(ModelOptions):
    """Run the reference forward pass: a row of logits for each token; of a model that is an encoder alone, of states.

    T5 encodes the tokens, and its decoder is given them behind its start token; Whisper's decoder is given them, over
    the spectrum of --mel or a fixed one. A vision or audio encoder (an mmproj file, or a checkpoint with --image,
    --audio or --pixels) gives the rows that stand for the picture or the recording.

    --embed and --score read texts instead, and print JSON where --out names no .npy file.
    """

    path: Annotated[StrPath, _PATH]
    _: KW_ONLY
    tokens: Annotated[str | None, declare(Kind.TEXT, "Token ids, comma-separated.", metavar="N,N")] = None
    out: Annotated[str | None, declare(Kind.TEXT, "The .npy file to write.", metavar="FILE")] = None
    npy_dtype: Annotated[str, declare(Kind.TEXT, "f32, f16 or f64.",
            metavar="TYPE", choices=("f32", "f16", "f64"))] = "f32"
    mel: Annotated[
        str | None, declare(Kind.TEXT, "For Whisper and audio encoders: a .npy of a spectrum, channels × frames.",
                metavar="FILE")
    ] = None
    image: Annotated[
        str | None,
        declare(Kind.TEXT, "For vision encoders (mmproj): a picture, prepared as the model's processor does.",
                metavar="FILE"),
    ] = None
    audio: Annotated[str | None, declare(Kind.TEXT, "For audio encoders (mmproj): a WAV file at 16 kHz.",
            metavar="FILE")] = None
    pixels: Annotated[
        str | None, declare(Kind.TEXT, "For vision encoders: a .npy of normalized pixels, 3 × height × width.",
                metavar="FILE")
    ] = None
    encoder: Annotated[bool, _ENCODER] = False
    embed: Annotated[bool, declare(Kind.FLAG, "The vector of each --text, by a model of embeddings.")] = False
    texts: Annotated[Sequence[str], declare(Kind.TEXTS, "For --embed: a text; repeatable.", "--text")] = ()
    score: Annotated[str | None, declare(Kind.TEXT, "The scores of --documents, by a reranker.", metavar="QUERY")] = (
        None
    )
    documents: Annotated[
        str | None, declare(Kind.TEXT, "For --score: a UTF-8 file, a document a line.", metavar="FILE")
    ] = None
    force: Force = False
    cache: Cache = None
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False


def model_options(request: ModelOptions) -> dict[str, Any]:
    """Return the options of a request that say something of the model, by name."""
    return {field.name: getattr(request, field.name) for field in fields(ModelOptions)}


def run(request: ForwardRequest) -> Floats:
    """Run the reference forward pass of a model of any container (torch, float32).

    Returns:
        float32 `(len(tokens), n_vocab)`, the logits at every position. For a model that is an encoder alone, and with
        `encoder`, its states, a row for each token or frame.

    Raises:
        UsageError: A token id is outside the vocabulary, or the model does not take such an input.
        UnsupportedError: No forward pass is known for the architecture.
        GgferryError: As `open_model`.

    Example:
        >>> ggferry.forward("new.gguf", [1, 300, 17]).shape
        (3, 512)
    """
    from ggferry.service.library.models import open_model

    with open_model(request.path, **model_options(request)) as model:
        return model.forward(request.tokens, mel=request.mel, encoder=request.encoder)


forward = library_function("forward", ForwardRequest, run)
