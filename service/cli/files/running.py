"""The commands that compute with a model: forward, imatrix, tokenize."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named, open_file
from ggferry.formats.files.named_texts import lines_of
from ggferry.formats.files.opened_files import recorded
from ggferry.service.cli.files.texts import Texts, computed, dtype_of
from ggferry.service.cli.options import HeadedCommand, access_of, offers, print_json, say, tell

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@offers("forward")
def forward(
    file: Annotated[str, typer.Argument(parser=Named, help="Any model ggferry can read; a path or a URL.")],
    tokens: Annotated[str | None, typer.Option("--tokens", help="Token ids, comma-separated.")] = None,
    out: Annotated[str | None, typer.Option("--out", help="The .npy file to write.")] = None,
    npy_dtype: Annotated[str, typer.Option("--npy-dtype", help="f32, f16 or f64.")] = "f32",
    mel: Annotated[
        str | None, typer.Option("--mel", help="Whisper, and what hears: a .npy of a spectrum, channels × frames.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", help="What sees (mmproj): a picture, prepared as the model's processor does."),
    ] = None,
    audio: Annotated[str | None, typer.Option("--audio", help="What hears (mmproj): a WAV file at 16 kHz.")] = None,
    pixels: Annotated[
        str | None, typer.Option("--pixels", help="What sees: a .npy of normalized pixels, 3 × height × width.")
    ] = None,
    encoder: Annotated[bool, typer.Option("--encoder", help="The encoder's states, where the model has one.")] = False,
    embed: Annotated[
        bool, typer.Option("--embed", help="The vector of each --text, by a model of embeddings.")
    ] = False,
    text: Annotated[list[str] | None, typer.Option("--text", help="For --embed: a text; repeatable.")] = None,
    score: Annotated[
        str | None, typer.Option("--score", metavar="QUERY", help="The scores of --documents, by a reranker.")
    ] = None,
    documents: Annotated[
        str | None, typer.Option("--documents", metavar="FILE", help="For --score: a UTF-8 file, a document a line.")
    ] = None,
    **given: Any,
) -> None:
    """Run the reference forward pass: a row a token, logits of the vocabulary, or of an encoder alone its states.

    T5 reads the tokens and continues its decoder's start token by them; Whisper's decoder is given them, over the
    spectrum of --mel or a fixed one. What sees or hears (a second file, or a checkpoint with --image, --audio or
    --pixels) gives the rows that stand for the picture or the recording.

    --embed and --score read texts instead, and print JSON where --out names no .npy file.
    """
    if embed or score is not None or text or documents:
        if any(each is not None for each in (tokens, mel, image, audio, pixels)) or encoder:
            raise UsageError("--embed and --score read texts, and nothing else", hint="leave out --tokens and the like")
        computed(file, Texts(embed, tuple(text or ()), score, documents, out, npy_dtype), given)
        return
    if out is None:
        raise UsageError("nothing says where the rows go", expected="--out FILE")
    import numpy as np

    from ggferry.converters.conversion.request import request_of
    from ggferry.converters.forward.device import computing_on
    from ggferry.converters.forward.evaluate import forward as run
    from ggferry.converters.forward.evaluate import reads_tokens, result_of
    from ggferry.converters.forward.model import ENCODER_STATES
    from ggferry.converters.understand import graph_of
    from ggferry.formats.files.partial_files import check_target, write_file

    dtype = dtype_of(npy_dtype)
    sensed = {"image": image, "audio": audio, "pixels": pixels}
    if any(sensed.values()):
        _features(file, out, dtype, {**sensed, "spectrum": mel}, given)
        return
    ids = _ids(tokens or "")
    with access_of(file, given) as path:
        request = request_of(path, given)
        with recorded() as opened:
            graph = graph_of(path, request.hparams, request.arch, rerank=request.rerank)
            inputs = {} if mel is None else {"mel": _load_array(mel)}
        check_target(out, overwrite=given["force"], sources=opened.identities)
        for note in (*graph.checkpoint.notes, *graph.notes):
            say(f"note     {note}")
        if not reads_tokens(graph):
            inputs = {} if mel is None else {"spectrum": inputs["mel"]}
        result = ENCODER_STATES if encoder else result_of(graph).of(inputs)
        with computing_on(request.device):
            found = run(graph, ids, inputs=inputs, part="encode" if encoder else "logits").astype(dtype)
        graph.checkpoint.close()
        path.check_unchanged()
    write_file(out, lambda file: np.save(file, found), overwrite=given["force"], sources=opened.identities)
    if given["as_json"]:
        top1 = {"top1": found.argmax(-1).tolist()} if result.ranked else {}
        print_json({"path": out, "shape": list(found.shape), "dtype": npy_dtype, "what": str(result), **top1})
    else:
        tell(f"{out}: {found.shape[0]} × {found.shape[1]} {npy_dtype}, {result}")


def _features(file: str, out: str, dtype: str, sensed: dict[str, str | None], given: dict[str, Any]) -> None:
    """Write the rows that stand for a picture or a recording."""
    import numpy as np

    from ggferry.converters.conversion.request import open_source_of, request_of
    from ggferry.converters.forward.device import computing_on
    from ggferry.converters.forward.senses.features import PIXELS, SPECTRUM, features, senses_of
    from ggferry.formats.files.partial_files import check_target, write_file

    arrays = {name: _load_array(path) for name, path in sensed.items() if path and name in (PIXELS, SPECTRUM)}
    with access_of(file, given) as path:
        request = request_of(path, given)
        with recorded() as opened:
            checkpoint = open_source_of(request)
            graph = senses_of(checkpoint, request.hparams)
        check_target(out, overwrite=given["force"], sources=opened.identities)
        with computing_on(request.device):
            found, notes = features(graph, **{**sensed, **arrays})
        for note in (*checkpoint.notes, *graph.notes, *notes):
            say(f"note     {note}")
        checkpoint.close()
        path.check_unchanged()
    found = found.astype(dtype)
    write_file(out, lambda file: np.save(file, found), overwrite=given["force"], sources=opened.identities)
    if given["as_json"]:
        print_json({"path": out, "shape": list(found.shape), "dtype": dtype, "what": _ROWS})
    else:
        tell(f"{out}: {found.shape[0]} × {found.shape[1]}, {_ROWS}")


_ROWS = "rows that stand for what was seen or heard"


@commands.command(cls=HeadedCommand)
@offers("imatrix")
def imatrix(
    file: Annotated[
        str,
        typer.Argument(
            parser=Named, help="Any model ggferry can run; a path or a URL. With --show-statistics: a matrix."
        ),
    ],
    text: Annotated[
        list[str] | None, typer.Option("--text", help="A UTF-8 text file to run through the model; repeatable.")
    ] = None,
    out: Annotated[str, typer.Option("--outfile", "-o", help="The GGUF imatrix to write.")] = "imatrix.gguf",
    chunk_size: Annotated[int, typer.Option("--chunk-size", min=2, help="Tokens a chunk.")] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", min=1, help="At most so many chunks.")] = None,
    process_output: Annotated[bool, typer.Option("--process-output", help="Also output.weight.")] = False,
    in_file: Annotated[
        list[str] | None,
        typer.Option(
            "--in-file", help="An earlier matrix of this model, to whose sums the new ones are added; repeatable."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the same measurement where it was interrupted.")
    ] = False,
    show_statistics: Annotated[
        bool,
        typer.Option("--show-statistics", help="What a matrix says, as llama-imatrix prints it; FILE is the matrix."),
    ] = False,
    **given: Any,
) -> None:
    """Compute llama.cpp's importance matrix from a text."""
    from ggferry.converters.forward.device import computing_on
    from ggferry.service.cli.files.importance import Measurement, measured, statistics

    if show_statistics:
        statistics(file, given)
        return
    if not text and not in_file:
        raise UsageError("nothing to measure", hint="--text FILE, or --in-file MATRIX to add matrices up")
    asked = Measurement(tuple(text or ()), out, chunk_size, chunks, process_output, tuple(in_file or ()), resume)
    with access_of(file, given) as path, computing_on(given["device"]):
        count, number = measured(path, asked, given)
    if given["as_json"]:
        print_json({"path": out, "entries": count, "chunks": number, "chunk_size": chunk_size})
    else:
        tell(f"{out}: {count} weights, {number} chunks of {chunk_size} tokens")


@commands.command(cls=HeadedCommand)
@offers("tokenize")
def tokenize(
    file: Annotated[str, typer.Argument(parser=Named, help="A model or vocabulary file; a path or a URL.")],
    text: Annotated[list[str] | None, typer.Option("--text", help="Text to encode; may be repeated.")] = None,
    text_file: Annotated[str | None, typer.Option("--file", help="Encode each line of this UTF-8 file.")] = None,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Without the beginning-of-sequence token.")] = False,
    special: Annotated[bool, typer.Option("--special", help="Texts of control tokens become those tokens.")] = False,
    **given: Any,
) -> None:
    """Encode text by the file's own vocabulary: one JSON list of ids a line."""
    from ggferry.service.library.models import open_model

    texts = list(text or [])
    if text_file is not None:
        texts += lines_of(text_file)
    if not texts:
        raise UsageError("nothing to encode", hint="--text TEXT or --file FILE")
    asked = {name: value for name, value in given.items() if name != "follow_redirects"}
    with access_of(file, given, tensors=False) as path, open_model(path, **asked) as model:
        for line in texts:
            print_json(model.tokenize(line, bos=False if no_bos else None, special=special))


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
