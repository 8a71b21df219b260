"""The commands that compute with a model: forward, imatrix, tokenize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named, open_file
from ggferry.formats.files.opened_files import recorded
from ggferry.service.cli.files import importance
from ggferry.service.cli.files.texts import computed, dtype_of
from ggferry.service.cli.options import HeadedCommand, print_json, say, takes, tell
from ggferry.service.operation import open_source
from ggferry.service.operations.forward import ForwardCommand, model_options
from ggferry.service.operations.imatrix import ImatrixCommand
from ggferry.service.operations.tokenize import TokenizeCommand, encode_all

if TYPE_CHECKING:
    from ggferry.service.operations._json_forms import WrittenRows

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(ForwardCommand)
def forward(request: ForwardCommand) -> None:
    """Write the rows of a forward pass, or what a model makes of texts."""
    if request.embed or request.score is not None or request.texts or request.documents:
        inputs = (request.tokens, request.mel, request.image, request.audio, request.pixels)
        if any(each is not None for each in inputs) or request.encoder:
            raise UsageError("--embed and --score read texts, and nothing else", hint="leave out --tokens and the like")
        computed(request)
    elif request.out is None:
        raise UsageError("nothing says where the rows go", expected="--out FILE")
    elif request.image or request.audio or request.pixels:
        _features(request, request.out)
    else:
        _forward(request, request.out)


def _forward(request: ForwardCommand, out: str) -> None:
    import numpy as np

    from ggferry.converters.conversion.request import request_of
    from ggferry.converters.forward.device import computing_on
    from ggferry.converters.forward.evaluate import forward as run
    from ggferry.converters.forward.evaluate import reads_tokens, result_of
    from ggferry.converters.forward.model import ENCODER_STATES
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.partial_files import check_target, write_file

    dtype, mel = dtype_of(request.npy_dtype), request.mel
    ids = _ids(request.tokens or "")
    with open_source(request.path, request.cache) as path:
        conversion = request_of(path, model_options(request))
        with recorded() as opened:
            graph = graph_of(path, conversion.hparams, conversion.arch, rerank=conversion.rerank)
            inputs = {} if mel is None else {"mel": _load_array(mel)}
        check_target(out, overwrite=request.force, sources=opened.identities)
        for note in (*graph.checkpoint.notes, *graph.notes):
            say(f"note     {note}")
        if not reads_tokens(graph):
            inputs = {} if mel is None else {"spectrum": inputs["mel"]}
        result = ENCODER_STATES if request.encoder else result_of(graph).of(inputs)
        with computing_on(conversion.device):
            found = run(graph, ids, inputs=inputs, part="encode" if request.encoder else "logits").astype(dtype)
        graph.checkpoint.close()
        path.check_unchanged()
    write_file(out, lambda file: np.save(file, found), overwrite=request.force, sources=opened.identities)
    if request.as_json:
        written: WrittenRows = {
            "path": out,
            "shape": list(found.shape),
            "dtype": request.npy_dtype,
            "what": str(result),
        }
        if result.ranked:
            written["top1"] = found.argmax(-1).tolist()
        print_json(written)
    else:
        tell(f"{out}: {found.shape[0]} × {found.shape[1]} {request.npy_dtype}, {result}")


def _features(request: ForwardCommand, out: str) -> None:
    """Write the rows that stand for a picture or a recording."""
    import numpy as np

    from ggferry.converters.conversion.request import open_source_of, request_of
    from ggferry.converters.forward.device import computing_on
    from ggferry.converters.forward.senses.features import PIXELS, SPECTRUM, features, senses_of
    from ggferry.formats.files.partial_files import check_target, write_file

    dtype = dtype_of(request.npy_dtype)
    sensed = {"image": request.image, "audio": request.audio, PIXELS: request.pixels, SPECTRUM: request.mel}
    arrays = {name: _load_array(path) for name, path in sensed.items() if path and name in (PIXELS, SPECTRUM)}
    with open_source(request.path, request.cache) as path:
        conversion = request_of(path, model_options(request))
        with recorded() as opened:
            checkpoint = open_source_of(conversion)
            graph = senses_of(checkpoint, conversion.hparams)
        check_target(out, overwrite=request.force, sources=opened.identities)
        with computing_on(conversion.device):
            found, notes = features(graph, **{**sensed, **arrays})
        for note in (*checkpoint.notes, *graph.notes, *notes):
            say(f"note     {note}")
        checkpoint.close()
        path.check_unchanged()
    found = found.astype(dtype)
    write_file(out, lambda file: np.save(file, found), overwrite=request.force, sources=opened.identities)
    if request.as_json:
        written: WrittenRows = {
            "path": out,
            "shape": list(found.shape),
            "dtype": request.npy_dtype,
            "what": _ROWS,
        }
        print_json(written)
    else:
        tell(f"{out}: {found.shape[0]} × {found.shape[1]}, {_ROWS}")


_ROWS = "rows that stand for what was seen or heard"


@commands.command(cls=HeadedCommand)
@takes(ImatrixCommand)
def imatrix(request: ImatrixCommand) -> None:
    """Compute a matrix, or show what one says."""
    if request.show_statistics:
        importance.statistics(request)
    else:
        importance.compute(request)


@commands.command(cls=HeadedCommand)
@takes(TokenizeCommand)
def tokenize(request: TokenizeCommand) -> None:
    """Print the ids of each text."""
    for ids in encode_all(request):
        print_json(ids)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise UsageError("--tokens", found=text, expected="integers separated by commas") from None


def _load_array(path: str) -> Any:
    """Load a .npy of finite numbers; nothing in it is run."""
    import numpy as np

    try:
        with open(open_file(Named(path)), "rb") as file:
            array = np.load(file, allow_pickle=False)
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and np.isfinite(array).all():
            return array
    except (OSError, ValueError, EOFError):
        pass
    raise UsageError("not a .npy of finite numbers", path=path)
