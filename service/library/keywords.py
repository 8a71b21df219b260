"""The keyword options of the library's functions, typed here and declared in `converters.conversion.options`.

`tests/laws/test_options.py` checks that the two agree.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

from ggferry.converters.conversion.options import OPTIONS, Kind, Option
from ggferry.converters.conversion.request import Request, request_of
from ggferry.formats.files.local_files import Named
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.operation import StrPath as StrPath

Function = TypeVar("Function", bound=Callable[..., Any])


class LegacyOptions(TypedDict, total=False):
    """What a GGML-era file does not state about itself.

    Attributes:
        arch: The architecture, where the file's bytes fit several.
        hparams: GGUF keys without their architecture → values.
    """

    arch: str | None
    hparams: Mapping[str, str] | None


class VocabularyOptions(TypedDict, total=False):
    """Where the vocabulary comes from.

    Attributes:
        tokenizer_model: The original tokenizer.model; it is checked and takes precedence.
        pre: The pre-tokenizer by name.
    """

    tokenizer_model: StrPath | None
    pre: str | None


class Opening(LegacyOptions, VocabularyOptions, total=False):
    """Options of `open_model`.

    Attributes:
        config: A config.json for what a GGML-era file does not hold.
        target_model: For a draft, the folder of the model it guesses for.
        device: Where forward passes are computed: 'cpu', 'cuda', 'cuda:N', or 'auto' for a GPU if there is one.
        rerank: Whether a causal model is a reranker, two rows of its output matrix a classifier: 'auto', 'yes', 'no'.
    """

    config: StrPath | None
    target_model: StrPath | None
    device: str
    rerank: str


class ImatrixOptions(TypedDict, total=False):
    """The importance matrix.

    Attributes:
        imatrix: An importance matrix, GGUF or .dat.
        include_weights: Which of its entries are used.
        exclude_weights: Which of its entries are not used.
        rounding: 'stock'; of the same types, 'search' comes nearer to the model by the matrix, 'feedback' by a text.
    """

    imatrix: StrPath | None
    include_weights: Sequence[str] | None
    exclude_weights: Sequence[str] | None
    rounding: Literal["stock", "search", "feedback"]


class TypeOptions(ImatrixOptions, total=False):
    """Which types tensors get, as in llama-quantize.

    Attributes:
        calibration: A text, for the rounding 'feedback'.
        recipe: A recipe file instead of a name.
        like: A GGUF file: every tensor gets the type that it has there.
        target_size: The most bytes of the file: types are chosen by measuring them. A text, too: '4GiB' is 4·2³⁰.
        target_bpw: The same as bits a weight, over all tensors.
        among: The types that are chosen among, separated by commas.
        measurements: A file that keeps what is measured for a size; what it holds is not measured again.
        recipe_out: A file to which the recipe that was chosen is written, by `plan` too.
        tensor_types: Regular expression on tensor names → type, or 'REGEX=TYPE' items; the first that matches decides.
    """

    calibration: StrPath | None
    recipe: StrPath | None
    like: StrPath | None
    target_size: int | str | None
    target_bpw: float | None
    among: str | None
    recipe_out: str | None
    measurements: str | None
    pure: bool
    output_tensor_type: str | None
    token_embedding_type: str | None
    tensor_types: Mapping[str, str] | Sequence[str] | None
    tensor_type_file: StrPath | None
    leave_output_tensor: bool
    allow_requantize: bool
    allow_nonfinite: bool


class SourceOptions(Opening, total=False):
    """What is copied, and what the source lacks.

    Attributes:
        base: For an adapter, its base model or config.json alone.
        lora: Adapters that are merged into the model, in this order: 'PATH' or 'PATH:SCALE'.
        mistral_format: Whether a folder's consolidated weights and params.json are taken.
        tokenizer: Folder or file of the tokenizer that a GGML-era file lacks.
        metadata: general.* values, or the path of a JSON file of them.
    """

    base: StrPath | None
    lora: Sequence[StrPath] | None
    mistral_format: bool
    ggla_permute: bool
    mtp: bool | None
    mtp_only: bool
    fuse_qkv: bool
    tokenizer: StrPath | None
    huggingface_json: bool
    trim_vocab: bool
    no_vocab: bool
    model_name: str | None
    metadata: Mapping[str, Any] | StrPath | None


class Planning(SourceOptions, TypeOptions, total=False):
    """Options of `plan`.

    Attributes:
        outtype: 'keep', or any type of llama-quantize; of `plan` and `ladder` several, separated by commas.
        split_max_size: Bytes, or a text: '4G' is 4·10⁹, '4GiB' is 4·2³⁰.
        tensor_first_split: Whether the first shard holds tensors.
        mmproj: Of a multimodal model, which files: 'both', 'only' the encoder, or 'none' of that.
        mmproj_outtype: The type of that file; None: as `outtype` if it is a float, else f16.
        mmproj_out: Its name; None: that of the text model after 'mmproj-'.
        to: 'gguf', 'safetensors' for a folder in Hugging Face's form, 'mlx' for one of MLX's, or 'whisper.cpp' for its
            ggml-….bin.
        dtype: The type of all weights of a folder; None keeps plain types and makes float32 of quantized ones.
        max_shard_size: Bytes of weights in a file of a folder.
    """

    to: Literal["gguf", "safetensors", "mlx", "whisper.cpp"]
    dtype: Literal["f32", "f16", "bf16"] | None
    max_shard_size: int | str | None
    outtype: str
    mmproj: Literal["both", "only", "none"]
    mmproj_outtype: str | None
    mmproj_out: str | None
    expand: Literal["f16", "f32", "q8_0"]
    dequantize: bool
    split_max_tensors: int
    split_max_size: int | str | None
    tensor_first_split: bool
    vocab_only: bool
    big_endian: bool
    alignment: int


class ProofOptions(TypedDict, total=False):
    """How the result is proved.

    Attributes:
        allow_quantization_error: Accept tensors that lie further from the source than quantizing them explains.
        witness: Programs asked for their logits ('auto', 'transformers', 'llama.cpp', 'ctransformers', 'none').
    """

    allow_quantization_error: bool
    witness: Sequence[str] | None


class Converting(Planning, ProofOptions, total=False):
    """Options of `convert`.

    Attributes:
        verify: 'full' (with forward passes), 'fast' or 'none'.
        force: Whether an existing output is replaced.
        text: A file whose lines both tokenizers encode, too.
        jobs: Worker threads; None: one per core.
    """

    verify: Literal["full", "fast", "none"]
    force: bool
    text: StrPath | None
    jobs: int | None


class EditOptions(TypedDict, total=False):
    """Changes to a GGUF file.

    Attributes:
        override_keys: 'KEY=TYPE:VALUE' items; TYPE is int, float, bool or str.
        prune_layers: Blocks to drop, 'L,L'.
        prune_experts: Experts to drop in every block: 'N', 'N%', 'unused' (by `imatrix`), or 'BLOCK:E,E;BLOCK:E,E'.
    """

    override_keys: Sequence[str] | None
    prune_layers: str | None
    prune_experts: str | None


class Quantizing(TypeOptions, EditOptions, ProofOptions, total=False):
    """Options of `quantize`.

    Attributes:
        keep_split: Write the same shards as the source. The other options are as for `convert`.
    """

    keep_split: bool
    verify: Literal["full", "fast", "none"]
    force: bool
    jobs: int | None
    device: str


class Verifying(SourceOptions, ImatrixOptions, EditOptions, ProofOptions, total=False):
    """Options of `verify`.

    Attributes:
        level: 'full', or 'fast' (without forward passes).
        allow_keys: Shell patterns of keys that may differ.
    """

    level: Literal["full", "fast"]
    allow_keys: Sequence[str] | None
    text: StrPath | None
    jobs: int | None


KEYWORDS: dict[str, Any] = {
    "convert": Converting,
    "plan": Planning,
    "quantize": Quantizing,
    "verify": Verifying,
    "open_model": Opening,
}
"""Function → its options."""


def offered(command: str) -> dict[str, Option]:
    """Return the options of a function by name."""
    names = KEYWORDS[command].__annotations__
    return {each.name: each for each in OPTIONS if each.name in names}


def signed(command: str) -> Callable[[Function], Function]:
    """Give a function that takes `**options` the signature that the table states, for help()."""

    def wrap(function: Function) -> Function:
        plain = inspect.signature(function)
        own = [each for each in plain.parameters.values() if each.kind is not each.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.default)
            for name, each in offered(command).items()
        ]
        function.__signature__ = plain.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return wrap


def by_name(each: Option) -> str:
    """Return what a message calls an option."""
    return each.name


def request_from(command: str, options: Mapping[str, Any]) -> JSONObject:
    """Return options as `request_of` takes them. Raises TypeError for one that the function does not have."""
    table = offered(command)
    found = {}
    for name, value in options.items():
        if name not in table:
            raise TypeError(f"{command}() got an unexpected keyword argument {name!r}")
        plain = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(plain, str) and table[name].kind is Kind.FILE:
            plain = Named(plain)
        if table[name].kind is Kind.ADAPTERS and isinstance(plain, list | tuple):
            plain = [os.fspath(each) for each in plain]
        found[name] = dict(plain) if isinstance(plain, Mapping) else plain
    return found


def request(command: str, source: StrPath, options: Mapping[str, Any]) -> Request:
    """Return what a function was asked to do, as a request. Raises as `request_of` and `given`."""
    return request_of(
        source if isinstance(source, Named) else Named(os.fspath(source)), request_from(command, options), by_name
    )
