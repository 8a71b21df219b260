"""What the commands share: options of several of them, and what they read and print."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.errors import EncodingError, NotFoundError, UsageError
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.opened_files import note
from ggferry.service.cli.terminal import print_json as print_json
from ggferry.service.cli.terminal import say as say
from ggferry.service.cli.terminal import tell as tell
from ggferry.support.sizes import parse_size

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
    typer.Option(
        "--hf-config", metavar="DIR", parser=Named, help="config.json for what a GGML-era file does not hold."
    ),
]
TokenizerSource = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", metavar="DIR", parser=Named, help="Folder or file of the tokenizer a GGML-era file lacks."
    ),
]
TrimVocab = Annotated[bool, typer.Option("--trim-vocab", help="Drop pieces that have no embedding row.")]
RecipeFile = Annotated[str | None, typer.Option("--recipe", help="A recipe file (docs/recipes.md) instead of a name.")]
Pure = Annotated[bool, typer.Option("--pure", help="One type for all, no mixture.")]
ImatrixFile = Annotated[
    str | None, typer.Option("--imatrix", metavar="FILE", parser=Named, help="Importance matrix, GGUF or .dat.")
]
IncludeWeights = Annotated[list[str] | None, typer.Option("--include-weights", help="Only these of its entries.")]
ExcludeWeights = Annotated[list[str] | None, typer.Option("--exclude-weights", help="All but these of its entries.")]
OutputTensorType = Annotated[str | None, typer.Option("--output-tensor-type", help="Type of output.weight.")]
TokenEmbeddingType = Annotated[str | None, typer.Option("--token-embedding-type", help="Type of the embeddings.")]
TensorType = Annotated[
    list[str] | None, typer.Option("--tensor-type", metavar="REGEX=TYPE", help="First match decides; repeatable.")
]
TensorTypeFile = Annotated[str | None, typer.Option("--tensor-type-file", help="REGEX=TYPE items in a file.")]
LeaveOutputTensor = Annotated[bool, typer.Option("--leave-output-tensor", help="Do not quantize output.weight.")]
AllowNonfinite = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Copy NaN and infinite weights, and say so; no type encodes them.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, max=256, help="Worker threads (default: one a core).")]
Verify = Annotated[str, typer.Option("--verify", help="full: with forward passes; fast: without; none.")]
AllowRequantize = Annotated[bool, typer.Option("--allow-requantize", help="Quantize what is quantized already.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
NoVocab = Annotated[bool, typer.Option("--no-vocab", help="The tensors without a vocabulary.")]
TokenizerModel = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-model", metavar="FILE", parser=Named, help="The original tokenizer.model; checked, and it wins."
    ),
]
HuggingFaceJson = Annotated[
    bool, typer.Option("--huggingface-json", help="Carry tokenizer.json along as tokenizer.huggingface.json.")
]
ModelName = Annotated[str | None, typer.Option("--model-name", help="general.name.")]
MetadataFile = Annotated[str | None, typer.Option("--metadata", help="JSON file of general.* values.")]
OverrideKv = Annotated[
    list[str] | None, typer.Option("--override-kv", metavar="KEY=TYPE:VALUE", help="TYPE int, float, bool or str.")
]
PruneLayers = Annotated[str | None, typer.Option("--prune-layers", metavar="L,L", help="Blocks to drop.")]
BaseModel = Annotated[
    str | None,
    typer.Option("--base", metavar="DIR", parser=Named, help="Of an adapter: its base model, or config.json alone."),
]


def size_of(text: str, option: str) -> int:
    """Return the bytes of an option's value. Raises UsageError."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(option, found=text, expected=error) from None


def key_values(items: list[str] | None) -> dict[str, str]:
    pairs = {}
    for item in items or ():
        key, sign, value = item.partition("=")
        if not sign or not key or not value:
            raise UsageError("--hparam", found=item, expected="KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def json_file(path: str | None) -> dict[str, Any] | None:
    from ggferry.formats.checkpoint_folder.folder import load_json

    return None if path is None else load_json(Named(path))


def text_lines(path: str) -> list[str]:
    return whole_text(path).removesuffix("\n").split("\n")


def whole_text(path: str) -> str:
    """A text that a person names: the one thing that may come through a pipe."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            note(path, file.fileno())
            return file.read()
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError as error:
        raise EncodingError("not UTF-8 text", path=path, offset=error.start) from None
