"""The commands that write GGUF files and prove them: convert, quantize, verify."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import (
    AllowNonfinite,
    AllowRequantize,
    Arch,
    BaseModel,
    ExcludeWeights,
    Force,
    HfConfig,
    HParams,
    HuggingFaceJson,
    ImatrixFile,
    IncludeWeights,
    Jobs,
    Json,
    LeaveOutputTensor,
    MetadataFile,
    ModelName,
    NoVocab,
    OutputTensorType,
    OverrideKv,
    Pre,
    PruneLayers,
    Pure,
    RecipeFile,
    TensorType,
    TensorTypeFile,
    TokenEmbeddingType,
    TokenizerModel,
    TokenizerSource,
    TrimVocab,
    Verify,
    json_file,
    key_values,
    print_json,
    say,
    size_of,
    tell,
    text_lines,
)

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def convert(
    source: Annotated[str, typer.Argument(parser=Named, help="A model file, the first part of one, or a folder.")],
    out: Annotated[
        str | None, typer.Option("--outfile", "-o", help="File or folder (default: beside the source).")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="The format to write.")] = "gguf",
    outtype: Annotated[
        str,
        typer.Option("--outtype", help="keep, or any type of llama-quantize: f16, bf16, q8_0, q4_k_m, …"),
    ] = "keep",
    verify: Verify = "full",
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
    allow_requantize: AllowRequantize = False,
    allow_nonfinite: AllowNonfinite = False,
    hparam: HParams = None,
    tokenizer_model: TokenizerModel = None,
    tokenizer: TokenizerSource = None,
    hf_config: HfConfig = None,
    arch: Arch = None,
    pre: Pre = None,
    huggingface_json: HuggingFaceJson = False,
    trim_vocab: TrimVocab = False,
    no_vocab: NoVocab = False,
    model_name: ModelName = None,
    metadata: MetadataFile = None,
    base: BaseModel = None,
    ggla_permute: Annotated[
        bool, typer.Option("--ggla-permute", help="Q and K rows of a ggla file as training meant them.")
    ] = False,
    vocab_only: Annotated[bool, typer.Option("--vocab-only", help="The vocabulary without the tensors.")] = False,
    bigendian: Annotated[bool, typer.Option("--bigendian", help="Write for big-endian machines.")] = False,
    alignment: Annotated[int, typer.Option("--alignment", help="Bytes each tensor's data is aligned to.")] = 32,
    split_max_tensors: Annotated[int, typer.Option("--split-max-tensors", min=0, help="Tensors a shard.")] = 0,
    split_max_size: Annotated[
        str | None,
        typer.Option("--split-max-size", metavar="SIZE", help="Bytes of tensors a shard: 4G is 4·10⁹, 4GiB is 4·2³⁰."),
    ] = None,
    no_tensor_first_split: Annotated[
        bool, typer.Option("--no-tensor-first-split", help="Metadata alone in the first shard.")
    ] = False,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, write nothing.")] = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Convert a model to GGUF v3 and prove it."""
    from ggferry.converters.conversion_plan.steps import Options
    from ggferry.converters.convert import LEVELS, Request
    from ggferry.converters.tokenizers.of_checkpoint import VocabOptions

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
        split_max_size=0 if split_max_size is None else size_of(split_max_size, "--split-max-size"),
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
        hparams=key_values(hparam),
        vocab=vocab,
        imatrix=imatrix,
        include_weights=tuple(include_weights or ()),
        exclude_weights=tuple(exclude_weights or ()),
        model_name=model_name,
        metadata=json_file(metadata),
        level=verify,
        force=force,
        jobs=jobs,
        base=base,
        ggla_permute=ggla_permute,
        arch=arch,
        config=hf_config,
    )
    _convert(request, dry_run, as_json)


@commands.command()
def quantize(
    source: Annotated[str, typer.Argument(parser=Named, help="A GGUF file, or a shard of one.")],
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
    allow_requantize: AllowRequantize = False,
    allow_nonfinite: AllowNonfinite = False,
    override_kv: OverrideKv = None,
    prune_layers: PruneLayers = None,
    keep_split: Annotated[bool, typer.Option("--keep-split", help="The same shards as the source.")] = False,
    verify: Verify = "full",
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Types and sizes, nothing written.")] = False,
    as_json: Json = False,
) -> None:
    """Quantize a GGUF model of any architecture."""
    from ggferry.converters.conversion_plan.steps import Options
    from ggferry.converters.convert import LEVELS, Request
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

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


@commands.command()
def verify(
    source: Annotated[str, typer.Argument(parser=Named, help="What was converted.")],
    output: Annotated[str, typer.Argument(parser=Named, help="The GGUF file made of it.")],
    level: Annotated[str, typer.Option("--level", help="full or fast (no forward passes).")] = "full",
    allow_keys: Annotated[
        list[str] | None, typer.Option("--allow-keys", metavar="GLOB", help="Keys that may differ; repeatable.")
    ] = None,
    hparam: HParams = None,
    tokenizer_model: TokenizerModel = None,
    base: BaseModel = None,
    tokenizer: TokenizerSource = None,
    hf_config: HfConfig = None,
    imatrix: ImatrixFile = None,
    include_weights: IncludeWeights = None,
    exclude_weights: ExcludeWeights = None,
    arch: Arch = None,
    pre: Pre = None,
    huggingface_json: HuggingFaceJson = False,
    trim_vocab: TrimVocab = False,
    no_vocab: NoVocab = False,
    model_name: ModelName = None,
    metadata: MetadataFile = None,
    override_kv: OverrideKv = None,
    prune_layers: PruneLayers = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Compare a source with its conversion: accounting, every key, every tensor, the vocabulary, logits.

    The options of the conversion are taken from the receipt beside the output, where there is one.
    """
    from dataclasses import asdict

    from ggferry.converters.convert import Request
    from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
    from ggferry.converters.verify import reverify
    from ggferry.service.cli.progress_bar import progress

    request = Request(
        source, hparams=key_values(hparam), base=base, arch=arch, config=hf_config, imatrix=imatrix,
        vocab=VocabOptions(tokenizer_model, pre, huggingface_json, trim_vocab, no_vocab, tokenizer),
        include_weights=tuple(include_weights or ()), exclude_weights=tuple(exclude_weights or ()),
        model_name=model_name, metadata=json_file(metadata), override_keys=tuple(override_kv or ()),
        prune=prune_layers, level=level, jobs=jobs,
    )  # fmt: skip
    report = reverify(
        request, output, lambda title, total: progress(title, total, wanted=not as_json), allow_keys or ()
    )
    if as_json:
        keys = asdict(report.keys)
        print_json({"verified": True, **report.proof.as_dict(), "keys": keys, "notes": report.notes})
        return
    for note in report.notes:
        say(f"note     {note}")
    tell(report.line)


def _convert(request: Any, dry_run: bool, as_json: bool) -> None:
    """Carry a request out and say what was done, or print its plan."""
    from ggferry.converters.convert import convert as run
    from ggferry.service.cli.progress_bar import progress

    if dry_run:
        _print_plan(request, as_json)
        return
    result = run(request, lambda title, total: progress(title, total, wanted=not as_json))
    if as_json:
        print_json({"path": result.path, "receipt": result.receipt})
        return
    for note in result.receipt["notes"]:
        say(f"note     {note}")
    for name, param in result.assumed.items():
        say(f"assumed  {name} = {param.value} ({param.reason})")
    for line in result.lines:
        tell(line)


def _print_plan(request: Any, as_json: bool) -> None:
    from ggferry.converters.convert import make_plan
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    checkpoint = open_checkpoint(request.source, request.arch, request.config)
    plan, _ = make_plan(request, checkpoint)
    checkpoint.close()
    facts = plan.as_dict()
    if as_json:
        print_json(facts)
        return
    for note in facts["notes"]:
        say(f"note     {note}")
    for t in facts["tensors"]:
        shape = "×".join(map(str, t["shape"]))
        what = f"{t['source_type']} → {t['type']}  {t['route']}, {t['grade']}"
        tell(f"{t['name']:<32}  {shape:<14}  {what}  {t['bytes']:,}")
    for drop in facts["dropped"]:
        tell(f"{drop['name']:<32}  not carried over: {drop['reason']}")
    tell(
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
    from ggferry.quant.recipes.text import parse_tensor_type, parse_tensor_types
    from ggferry.quant.types import BlockError

    try:
        pairs = [parse_tensor_type(item) for item in patterns or ()]
        if patterns_file is not None:
            pairs += parse_tensor_types("\n".join(text_lines(patterns_file)))
    except BlockError as error:
        raise UsageError(f"--tensor-type: {error}") from None
    return {
        "recipe_text": None if recipe is None else "\n".join(text_lines(recipe)),
        "pure": pure,
        "output_tensor_type": output,
        "token_embedding_type": embedding,
        "tensor_types": tuple(pairs),
        "leave_output_tensor": leave_output,
    }
