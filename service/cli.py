"""The command line. Data to stdout, everything else to stderr; exit codes of DESIGN §9; no traceback for a user."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ggferry.formats.errors import GgferryError, RefusedError, UsageError
from ggferry.service.cli_archive import commands as archive_commands

app = typer.Typer(
    name="ggferry",
    help="Carries language-model weights out of legacy and training formats into GGUF v3, and proves the result.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(archive_commands)
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
HParams = Annotated[
    list[str] | None,
    typer.Option(
        "--hparam", metavar="KEY=VALUE", help="A GGUF key without its architecture, e.g. attention.head_count=4."
    ),
]
Pre = Annotated[str | None, typer.Option("--pre", help="The pre-tokenizer by name, where it cannot be derived.")]
Arch = Annotated[
    str | None, typer.Option("--arch", metavar="NAME", help="Of a GGML-era file, where its bytes fit several.")
]
HfConfig = Annotated[
    str | None,
    typer.Option("--hf-config", metavar="DIR", help="config.json for what a GGML-era file does not hold."),
]
TokenizerSource = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="DIR", help="Folder or file of the tokenizer a GGML-era file lacks."),
]
TrimVocab = Annotated[bool, typer.Option("--trim-vocab", help="Drop pieces that have no embedding row.")]
RecipeFile = Annotated[str | None, typer.Option("--recipe", help="A recipe file (docs/recipes.md) instead of a name.")]
Pure = Annotated[bool, typer.Option("--pure", help="One type for all, no mixture.")]
ImatrixFile = Annotated[str | None, typer.Option("--imatrix", help="Importance matrix, GGUF or .dat.")]
IncludeWeights = Annotated[list[str] | None, typer.Option("--include-weights", help="Only these of its entries.")]
ExcludeWeights = Annotated[list[str] | None, typer.Option("--exclude-weights", help="All but these of its entries.")]
OutputTensorType = Annotated[str | None, typer.Option("--output-tensor-type", help="Type of output.weight.")]
TokenEmbeddingType = Annotated[str | None, typer.Option("--token-embedding-type", help="Type of the embeddings.")]
TensorType = Annotated[
    list[str] | None, typer.Option("--tensor-type", metavar="REGEX=TYPE", help="First match decides; repeatable.")
]
TensorTypeFile = Annotated[str | None, typer.Option("--tensor-type-file", help="REGEX=TYPE items in a file.")]
LeaveOutputTensor = Annotated[bool, typer.Option("--leave-output-tensor", help="Do not quantise output.weight.")]
AllowNonfinite = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Copy NaN and infinite weights, and say so; no type encodes them.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, max=256, help="Worker threads (default: one a core).")]


@app.command()
def convert(
    source: Annotated[str, typer.Argument(help="A model file, the first part of one, or a folder.")],
    out: Annotated[
        str | None, typer.Option("--outfile", "-o", help="File or folder (default: beside the source).")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="The format to write.")] = "gguf",
    outtype: Annotated[
        str,
        typer.Option("--outtype", help="keep, or any type of llama-quantize: f16, bf16, q8_0, q4_k_m, …"),
    ] = "keep",
    verify: Annotated[str, typer.Option("--verify", help="full: with forward passes; fast: without; none.")] = "full",
    expand: Annotated[
        str,
        typer.Option("--expand", help="f16, f32 or q8_0: for blocks GGUF has no counterpart of (Q4_2, Q4_3, QK_K=64)."),
    ] = "f16",
    recipe: RecipeFile = None,
    pure: Pure = False,
    imatrix: ImatrixFile = None,
    include_weights: IncludeWeights = None,
    exclude_weights: ExcludeWeights = None,
    output_tensor_type: OutputTensorType = None,
    token_embedding_type: TokenEmbeddingType = None,
    tensor_type: TensorType = None,
    tensor_type_file: TensorTypeFile = None,
    leave_output_tensor: LeaveOutputTensor = False,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Quantise what is quantised already.")
    ] = False,
    allow_nonfinite: AllowNonfinite = False,
    hparam: HParams = None,
    tokenizer_model: Annotated[
        str | None, typer.Option("--tokenizer-model", help="The original tokenizer.model; checked, and it wins.")
    ] = None,
    tokenizer: TokenizerSource = None,
    hf_config: HfConfig = None,
    arch: Arch = None,
    pre: Pre = None,
    huggingface_json: Annotated[
        bool, typer.Option("--huggingface-json", help="Carry tokenizer.json along as tokenizer.huggingface.json.")
    ] = False,
    trim_vocab: TrimVocab = False,
    no_vocab: Annotated[bool, typer.Option("--no-vocab", help="The tensors without a vocabulary.")] = False,
    model_name: Annotated[str | None, typer.Option("--model-name", help="general.name.")] = None,
    metadata: Annotated[str | None, typer.Option("--metadata", help="JSON file of general.* values.")] = None,
    base: Annotated[
        str | None, typer.Option("--base", metavar="DIR", help="Of an adapter: its base model, or config.json alone.")
    ] = None,
    ggla_permute: Annotated[
        bool, typer.Option("--ggla-permute", help="Q and K rows of a ggla file as training meant them.")
    ] = False,
    vocab_only: Annotated[bool, typer.Option("--vocab-only", help="The vocabulary without the tensors.")] = False,
    bigendian: Annotated[bool, typer.Option("--bigendian", help="Write for big-endian machines.")] = False,
    alignment: Annotated[int, typer.Option("--alignment", help="Bytes each tensor's data is aligned to.")] = 32,
    split_max_tensors: Annotated[int, typer.Option("--split-max-tensors", min=0, help="Tensors a shard.")] = 0,
    split_max_size: Annotated[
        str | None, typer.Option("--split-max-size", metavar="N(K|M|G)", help="Bytes of tensors a shard, decimal.")
    ] = None,
    no_tensor_first_split: Annotated[
        bool, typer.Option("--no-tensor-first-split", help="Metadata alone in the first shard.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, write nothing.")] = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Convert a model to GGUF v3 and prove it."""
    from ggferry.converters.convert import LEVELS, Request
    from ggferry.converters.load import VocabOptions
    from ggferry.converters.plan import Options

    if to != "gguf":
        raise UsageError("--to", found=to, expected="gguf")
    if verify not in LEVELS:
        raise UsageError("--verify", found=verify, expected=", ".join(LEVELS))
    options = Options(
        outtype=outtype,
        expand=expand.lower(),
        allow_requantize=allow_requantize,
        alignment=alignment,
        big_endian=bigendian,
        vocab_only=vocab_only,
        split_max_tensors=split_max_tensors,
        split_max_size=_bytes(split_max_size),
        tensor_first_split=not no_tensor_first_split,
        allow_nonfinite=allow_nonfinite,
        **_types(
            recipe, pure, output_tensor_type, token_embedding_type, tensor_type, tensor_type_file, leave_output_tensor
        ),
    )
    options.check()
    vocab = VocabOptions(tokenizer_model, pre, huggingface_json, trim_vocab, no_vocab, tokenizer)
    request = Request(
        source=source,
        out=out,
        options=options,
        hparams=_pairs(hparam),
        vocab=vocab,
        imatrix=imatrix,
        include_weights=tuple(include_weights or ()),
        exclude_weights=tuple(exclude_weights or ()),
        model_name=model_name,
        metadata=_json_file(metadata),
        level=verify,
        force=force,
        jobs=jobs,
        base=base,
        ggla_permute=ggla_permute,
        arch=arch,
        config=hf_config,
    )
    _convert(request, dry_run, as_json)


@app.command()
def quantize(
    source: Annotated[str, typer.Argument(help="A GGUF file, or a shard of one.")],
    out: Annotated[str, typer.Argument(help="The file to write, or a folder.")],
    outtype: Annotated[str, typer.Argument(metavar="TYPE", help="q4_k_m, q8_0, … or copy.")],
    threads: Annotated[int | None, typer.Argument(help="Worker threads (default: one a core).")] = None,
    recipe: RecipeFile = None,
    pure: Pure = False,
    imatrix: ImatrixFile = None,
    include_weights: IncludeWeights = None,
    exclude_weights: ExcludeWeights = None,
    output_tensor_type: OutputTensorType = None,
    token_embedding_type: TokenEmbeddingType = None,
    tensor_type: TensorType = None,
    tensor_type_file: TensorTypeFile = None,
    leave_output_tensor: LeaveOutputTensor = False,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Quantise what is quantised already.")
    ] = False,
    allow_nonfinite: AllowNonfinite = False,
    override_kv: Annotated[
        list[str] | None, typer.Option("--override-kv", metavar="KEY=TYPE:VALUE", help="TYPE int, float, bool or str.")
    ] = None,
    prune_layers: Annotated[str | None, typer.Option("--prune-layers", metavar="L,L", help="Blocks to drop.")] = None,
    keep_split: Annotated[bool, typer.Option("--keep-split", help="The same shards as the source.")] = False,
    verify: Annotated[str, typer.Option("--verify", help="full: with forward passes; fast: without; none.")] = "full",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Types and sizes, nothing written.")] = False,
    as_json: Json = False,
) -> None:
    """Quantise a GGUF model of any architecture."""
    from ggferry.converters.convert import LEVELS, Request
    from ggferry.converters.open import open_checkpoint
    from ggferry.converters.plan import Options

    if verify not in LEVELS:
        raise UsageError("--verify", found=verify, expected=", ".join(LEVELS))
    checkpoint = open_checkpoint(source)
    alignment, big_endian = checkpoint.alignment, checkpoint.big_endian
    checkpoint.close()
    if checkpoint.container != "gguf":
        raise UsageError("quantize takes GGUF files", path=source, found=checkpoint.container, hint="ggferry convert")
    options = Options(
        outtype=outtype,
        allow_requantize=allow_requantize,
        alignment=alignment,
        big_endian=big_endian,
        keep_split=keep_split,
        allow_nonfinite=allow_nonfinite,
        **_types(
            recipe, pure, output_tensor_type, token_embedding_type, tensor_type, tensor_type_file, leave_output_tensor
        ),
    )
    options.check()
    request = Request(
        source=source,
        out=out,
        options=options,
        prune=prune_layers,
        override_keys=tuple(override_kv or ()),
        imatrix=imatrix,
        include_weights=tuple(include_weights or ()),
        exclude_weights=tuple(exclude_weights or ()),
        level=verify,
        force=force,
        jobs=threads,
    )
    _convert(request, dry_run, as_json)


@app.command()
def inspect(
    file: Annotated[str, typer.Argument(help="Any model container ggferry knows.")],
    arch: Arch = None,
    full: Annotated[bool, typer.Option("--full", help="Arrays and long texts of the metadata whole.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a file holds, without reading its tensor data."""
    from ggferry.converters.open import open_checkpoint
    from ggferry.service.inspect import describe, lines

    checkpoint = open_checkpoint(file, arch)
    facts = describe(checkpoint, full)
    checkpoint.close()
    if as_json:
        _print_json(facts)
    else:
        print("\n".join(lines(facts)))


@app.command()
def verify(
    source: Annotated[str, typer.Argument(help="What was converted.")],
    output: Annotated[str, typer.Argument(help="The GGUF file made of it.")],
    level: Annotated[str, typer.Option("--level", help="full or fast (no forward passes).")] = "full",
    hparam: HParams = None,
    tokenizer_model: Annotated[str | None, typer.Option("--tokenizer-model", help="As given to convert.")] = None,
    base: Annotated[str | None, typer.Option("--base", help="As given to convert.")] = None,
    tokenizer: TokenizerSource = None,
    hf_config: HfConfig = None,
    arch: Arch = None,
    pre: Pre = None,
    trim_vocab: TrimVocab = False,
    no_vocab: Annotated[bool, typer.Option("--no-vocab", help="As given to convert.")] = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Compare a source with its conversion: accounting, hparams, every tensor, tokenizer, logits."""
    from dataclasses import asdict

    from ggferry.converters.load import VocabOptions
    from ggferry.converters.reverify import reverify
    from ggferry.service.progress import byte_progress

    report = reverify(
        source, output, level=level, hparams=_pairs(hparam), jobs=jobs,
        vocab=VocabOptions(tokenizer_model, pre, trim=trim_vocab, none=no_vocab, source=tokenizer),
        stage=lambda title, total: byte_progress(title, total, wanted=not as_json), base=base, arch=arch,
        config=hf_config,
    )  # fmt: skip
    if as_json:
        _print_json({"verified": True, **asdict(report.proof), "notes": report.notes})
        return
    for note in report.notes:
        _say(f"note     {note}")
    print(report.line)


@app.command()
def forward(
    file: Annotated[str, typer.Argument(help="Any model ggferry can read.")],
    tokens: Annotated[str, typer.Option("--tokens", help="Token ids, comma-separated.")],
    out: Annotated[str, typer.Option("--out", help="The .npy file to write.")],
    npy_dtype: Annotated[str, typer.Option("--npy-dtype", help="f32, f16 or f64.")] = "f32",
    mel: Annotated[str | None, typer.Option("--mel", help="Whisper: a .npy of a spectrum, channels × frames.")] = None,
    encoder: Annotated[bool, typer.Option("--encoder", help="The encoder's states, where the model has one.")] = False,
    hparam: HParams = None,
    arch: Arch = None,
    as_json: Json = False,
) -> None:
    """Run the reference forward pass: a row a token, logits of the vocabulary, or of an encoder alone its states.

    T5 reads the tokens and continues its decoder's start token by them; Whisper's decoder is given them, over the
    spectrum of --mel or a fixed one.
    """
    from ggferry.converters.convert import graph_of
    from ggferry.converters.forward.evaluate import forward as run
    from ggferry.converters.forward.evaluate import result_of

    dtypes = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}
    if npy_dtype not in dtypes:
        raise UsageError("--npy-dtype", found=npy_dtype, expected=", ".join(dtypes))
    ids = _ids(tokens)
    graph = graph_of(file, _pairs(hparam), arch)
    for note in (*graph.checkpoint.notes, *graph.notes):
        _say(f"note     {note}")
    result = result_of(graph)
    inputs = {} if mel is None else {"mel": _load_array(mel)}
    found = run(graph, ids, inputs=inputs, part="encode" if encoder else "logits").astype(dtypes[npy_dtype])
    graph.checkpoint.close()
    _save_array(out, found)
    what, ranked = ("states of the encoder", False) if encoder else (result.what, result.ranked)
    what = what if mel is None else what.replace("a fixed spectrum", "the given spectrum")
    if as_json:
        top1 = {"top1": found.argmax(-1).tolist()} if ranked else {}
        _print_json({"path": out, "shape": list(found.shape), "dtype": npy_dtype, "what": what, **top1})
    else:
        print(f"{out}: {found.shape[0]} × {found.shape[1]} {npy_dtype}, {what}")


@app.command()
def imatrix(
    file: Annotated[str, typer.Argument(help="Any model ggferry can run.")],
    text: Annotated[str, typer.Option("--text", help="A UTF-8 text file to run through the model.")],
    out: Annotated[str, typer.Option("--outfile", "-o", help="The GGUF imatrix to write.")] = "imatrix.gguf",
    chunk_size: Annotated[int, typer.Option("--chunk-size", min=2, help="Tokens a chunk.")] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", min=1, help="At most so many chunks.")] = None,
    process_output: Annotated[bool, typer.Option("--process-output", help="Also output.weight.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Measure which columns of the weights matter for a text: llama.cpp's importance matrix."""
    from ggferry.converters.convert import graph_of
    from ggferry.converters.importance import chunks_of, measure, write_imatrix
    from ggferry.converters.load import load_tokenizer, vocabulary_rows
    from ggferry.service.progress import byte_progress

    graph = graph_of(file)
    tokenizer = load_tokenizer(graph.checkpoint, vocabulary_rows(graph.checkpoint))
    if tokenizer is None:
        raise RefusedError("the file has no vocabulary", path=file)
    parts = chunks_of(tokenizer, _text(text), chunk_size, chunks)
    with byte_progress("tokens", sum(map(len, parts)), wanted=not as_json) as progress:
        recorder = measure(graph, parts, progress)
    count = write_imatrix(out, recorder, parts, os.path.basename(text), output=process_output, force=force)
    graph.checkpoint.close()
    if as_json:
        _print_json({"path": out, "entries": count, "chunks": len(parts), "chunk_size": chunk_size})
    else:
        print(f"{out}: {count} weights, {len(parts)} chunks of {chunk_size} tokens")


@app.command()
def tokenize(
    file: Annotated[str, typer.Argument(help="A model or vocabulary file.")],
    text: Annotated[list[str] | None, typer.Option("--text", help="Text to encode; may be repeated.")] = None,
    text_file: Annotated[str | None, typer.Option("--file", help="Encode each line of this UTF-8 file.")] = None,
    no_bos: Annotated[bool, typer.Option("--no-bos", help="Without the beginning-of-sequence token.")] = False,
    special: Annotated[bool, typer.Option("--special", help="Texts of control tokens become those tokens.")] = False,
    tokenizer_model: Annotated[
        str | None, typer.Option("--tokenizer-model", help="The original tokenizer.model.")
    ] = None,
    pre: Pre = None,
) -> None:
    """Encode text by the file's own vocabulary: one JSON list of ids a line."""
    from ggferry.converters.load import VocabOptions, load_tokenizer, open_checkpoint, vocabulary_rows
    from ggferry.converters.tokenizers.base import encoder

    texts = list(text or [])
    if text_file is not None:
        texts += _text_lines(text_file)
    if not texts:
        raise UsageError("nothing to encode", hint="--text TEXT or --file FILE")
    checkpoint = open_checkpoint(file)
    tokenizer = load_tokenizer(checkpoint, vocabulary_rows(checkpoint), VocabOptions(tokenizer_model, pre))
    if tokenizer is None:
        raise RefusedError("the file has no vocabulary", path=file)
    encode = encoder(tokenizer).encode
    for line in texts:
        print(json.dumps(encode(line, bos=False if no_bos else None, special=special)))


def _convert(request: Any, dry_run: bool, as_json: bool) -> None:
    """Carry a request out and say what was done, or print its plan."""
    from ggferry.converters.convert import convert as run
    from ggferry.service.progress import byte_progress

    if dry_run:
        _print_plan(request, as_json)
        return
    result = run(request, lambda title, total: byte_progress(title, total, wanted=not as_json))
    if as_json:
        _print_json({"path": result.path, "receipt": result.receipt})
        return
    for note in result.receipt["notes"]:
        _say(f"note     {note}")
    for name, param in result.receipt["hparams"].items():
        if param["origin"].startswith("default"):
            _say(f"assumed  {name} = {param['value']} ({param['origin'].removeprefix('default: ')})")
    for line in result.lines:
        print(line)


def _print_plan(request: Any, as_json: bool) -> None:
    from ggferry.converters.convert import make_plan
    from ggferry.converters.load import open_checkpoint

    checkpoint = open_checkpoint(request.source, request.arch, request.config)
    plan, _ = make_plan(request, checkpoint)
    checkpoint.close()
    facts = plan.as_dict()
    if as_json:
        _print_json(facts)
        return
    for t in facts["tensors"]:
        shape = "×".join(map(str, t["shape"]))
        what = f"{t['source_type']} → {t['type']}  {t['route']}, {t['grade']}"
        print(f"{t['name']:<32}  {shape:<14}  {what}  {t['bytes']:,}")
    for drop in facts["dropped"]:
        print(f"{drop['name']:<32}  not carried over: {drop['reason']}")
    print(
        f"{len(facts['tensors'])} tensors, {facts['bytes_read']:,} bytes read, {facts['bytes_written']:,} bytes written"
    )


def _types(
    recipe: str | None,
    pure: bool,
    output: str | None,
    embedding: str | None,
    patterns: list[str] | None,
    patterns_file: str | None,
    leave_output: bool,
) -> dict[str, Any]:
    """The options of llama-quantize that choose types, as fields of `plan.Options`."""
    from ggferry.quant.recipe_file import parse_tensor_type, parse_tensor_types
    from ggferry.quant.types import BlockError

    try:
        pairs = [parse_tensor_type(item) for item in patterns or ()]
        if patterns_file is not None:
            pairs += parse_tensor_types("\n".join(_text_lines(patterns_file)))
    except BlockError as error:
        raise UsageError(f"--tensor-type: {error}") from None
    return {
        "recipe_text": None if recipe is None else "\n".join(_text_lines(recipe)),
        "pure": pure,
        "output_tensor_type": output,
        "token_embedding_type": embedding,
        "tensor_types": tuple(pairs),
        "leave_output_tensor": leave_output,
    }


def _pairs(items: list[str] | None) -> dict[str, str]:
    pairs = {}
    for item in items or ():
        key, sign, value = item.partition("=")
        if not sign or not key or not value:
            raise UsageError("--hparam", found=item, expected="KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _bytes(text: str | None) -> int:
    """'2G' → 2 000 000 000, as llama-gguf-split and convert_hf_to_gguf count."""
    if text is None:
        return 0
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    factor = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}.get(unit)
    if factor is None or not number.isdecimal() or not int(number):
        raise UsageError("--split-max-size", found=text, expected="a number with K, M or G")
    return int(number) * factor


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise UsageError("--tokens", found=text, expected="integers separated by commas") from None


def _json_file(path: str | None) -> dict[str, Any] | None:
    from ggferry.formats.folder import load_json

    return None if path is None else load_json(path)


def _text_lines(path: str) -> list[str]:
    return _text(path).removesuffix("\n").split("\n")


def _text(path: str) -> str:
    from ggferry.formats.errors import EncodingError, NotFoundError

    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError as error:
        raise EncodingError("not UTF-8 text", path=path, offset=error.start) from None


def _save_array(path: str, array: Any) -> None:
    import numpy as np

    partial = f"{path}.partial"
    try:
        with open(partial, "wb") as file:
            np.save(file, array)
        os.replace(partial, path)
    except OSError as error:
        raise GgferryError(f"cannot be written: {error.strerror}", path=path) from None


def _load_array(path: str) -> Any:
    """A .npy of finite numbers; nothing in it is run."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and np.isfinite(array).all():
            return array
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path) from None
    except (ValueError, EOFError):
        pass
    raise UsageError("not a .npy of finite numbers", path=path)


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=True, allow_nan=False))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _run(arguments: list[str]) -> int:
    """The exit code of a command line, with every error as one line on stderr (and as JSON with `--json`)."""
    from ggferry import __version__
    from ggferry.quant.kernels import on_compilation

    on_compilation(lambda: _say("note     compiling the encoders for this processor: seconds a type, once a machine"))
    if arguments[:1] == ["--version"]:
        print(f"ggferry {__version__}")
        return 0
    try:
        app(args=arguments, prog_name="ggferry", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except GgferryError as error:
        if "--json" in arguments:
            _print_json({"error": error.as_dict()})
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted; nothing was left behind")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        _say("error: out of memory")
        return 1
    except Exception as error:
        if os.environ.get("GGFERRY_TRACEBACK"):
            raise
        _say(f"error: internal: {type(error).__name__}: {error} (GGFERRY_TRACEBACK=1 shows where; please report it)")
        return INTERNAL_ERROR
    return 0


def _exit(run: Callable[[], int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code = run()
    sys.stdout.flush()
    sys.exit(code)


def main() -> None:
    """The command `ggferry`."""
    _exit(lambda: _run(sys.argv[1:]))


def convert_main() -> None:
    """The command `convert`: `convert old.bin --to gguf`."""
    _exit(lambda: _run(["convert", *sys.argv[1:]] if sys.argv[1:2] != ["--version"] else ["--version"]))
