"""What a model card says of published files: the keys of its front matter, and the table of the files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import ggferry
from ggferry.converters.metadata.key_table import is_local
from ggferry.formats.errors import CorruptError
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.quant.recipes.file_types import file_type_name
from ggferry.service.publishing.outputs import PublishedModel
from ggferry.service.publishing.places import published_text
from ggferry.support.printable import printable
from ggferry.support.records import dataclass

HEAD = ("File", "Type", "Size", "Bits per weight", "KL divergence", "Top-1 agreement", "Proof")
PIPELINES = (
    "text-generation", "image-text-to-text", "audio-text-to-text", "video-text-to-text", "any-to-any",
    "feature-extraction", "sentence-similarity", "text-ranking", "text2text-generation", "translation",
    "summarization", "fill-mask", "text-classification", "token-classification", "question-answering",
    "visual-question-answering", "visual-document-retrieval", "image-to-text", "automatic-speech-recognition",
    "text-to-speech", "text-to-audio",
)  # fmt: skip
"""The Hub's names of tasks. Files keep the task of their source's card as the last of `general.tags`."""
PROOF = (
    "A file with a level under *Proof* was read again after it was written, and compared with its source: every "
    "tensor, every key and the tokenizer; `full` also ran forward passes on both sides. Its receipt says what "
    "each tensor was made of, and has the digests of the files. KL divergence (nats) and top-1 agreement compare "
    "its logits with the source's, on the prompts of the proof unless the cell says *text* (`ggferry compare`). "
    "To repeat the proof:"
)
_OF_THE_SOURCE = ("safetensors", "pytorch", "transformers", "onnx", "jax", "tf", "mlx")
"""Tags that say in which form the source was."""
_REPOSITORY = re.compile(r"https?://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+?)/?", re.ASCII)
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class Quality:
    """What `ggferry compare` measured of a file: mean KL divergence in nats, and the share of equal top tokens."""

    kl_divergence: float
    kl_error: float
    same_top: float


def base_models(models: Sequence[PublishedModel], target: str) -> list[str]:
    """Return the repositories on the Hub that the files were made of, as their headers state them."""
    declared = (str(model.metadata.get("general.source.repo_url", "")) for model in models)
    found = (match[1] for text in declared if (match := _REPOSITORY.fullmatch(text)))
    return [name for name in dict.fromkeys(found) if name != target]


def front_matter(models: Sequence[PublishedModel], target: str, bases: Sequence[str]) -> JSONObject:
    """Return the keys of a card's front matter, in order; what is not known is left out."""
    tags = _texts(models, "tags")
    pipeline = next((tag for tag in reversed(tags) if tag in PIPELINES), None)
    licenses = [name for text in _texts(models, "license") for name in text.split(", ")]
    own = [tag for tag in tags if tag not in (*PIPELINES, *_OF_THE_SOURCE, "gguf", "ggferry") and ":" not in tag]
    keys = {
        "base_model": [*bases],
        "base_model_relation": "quantized" if bases else None,
        "quantized_by": target.partition("/")[0],
        "library_name": "gguf",
        "pipeline_tag": pipeline,
        "license": licenses,
        "license_name": _texts(models, "license.name")[:1],
        "license_link": [link for link in _texts(models, "license.link") if not is_local(link)][:1],
        "language": _texts(models, "languages"),
        "tags": ["gguf", *own, "ggferry"],
    }
    lists = ("language", "tags")
    return {
        key: value[0] if isinstance(value, list) and len(value) == 1 and key not in lists else value
        for key, value in keys.items()
        if value
    }


def _texts(models: Sequence[PublishedModel], key: str) -> list[str]:
    """Return the texts of a general key of all models, each once."""
    values: list[Any] = []
    for model in models:
        value = model.metadata.get(f"general.{key}", ())
        values += [value] if isinstance(value, str) else list(value)[:1000] if not isinstance(value, int) else []
    return list(dict.fromkeys(printable(value.strip(), 200) for value in values if isinstance(value, str) and value))


def rows(models: Sequence[PublishedModel], qualities: Mapping[str, Quality]) -> dict[str, str]:
    """Return the lines of the table by the address of the file, percent-encoded, that each begins with."""
    return {address(model.name): _row(model, qualities.get(model.name)) for model in models}


def address(name: str) -> str:
    """Return a path of the repository as a link has it."""
    return quote(name, safe="/")


def _row(model: PublishedModel, quality: Quality | None) -> str:
    try:
        kl, top = _quality(model.receipt, quality)
        proof = _proof(model)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CorruptError("the receipt lacks what every receipt has", path=model.name) from None
    bits = f"{model.bits_per_weight:.2f}" if model.bits_per_weight else "–"
    cells = (_link(model), markdown(_type(model)), shown_size(model.nbytes), bits, kl, top, proof)
    return f"| {' | '.join(cells)} |"


def _link(model: PublishedModel) -> str:
    shards = len(model.files)
    label = model.name.rpartition("/")[2]
    if shards > 1 and (shard := shard_of(label)):
        label = f"{shard.stem}.gguf ({shards} shards)"
    return f"[{markdown(label)}]({address(model.name)})"


def _type(model: PublishedModel) -> str:
    kind, number = model.metadata.get("general.type"), model.metadata.get("general.file_type")
    name = file_type_name(number) if isinstance(number, int) else "–"
    return f"{name} ({kind})" if isinstance(kind, str) and kind != "model" else name


def _quality(receipt: Mapping[str, Any] | None, quality: Quality | None) -> tuple[str, str]:
    """Return the cells of KL divergence and top-1 agreement: measured on a text, else on the prompts of the proof."""
    if quality is not None:
        return f"{quality.kl_divergence:.5f} ± {quality.kl_error:.5f} (text)", f"{quality.same_top:.2%} (text)"
    logits = (receipt or {}).get("logits") or {}
    kl, top = logits.get("kl_divergence"), logits.get("top1_agreement")
    return ("–" if kl is None else f"{float(kl):.2g}", "–" if top is None else f"{float(top):.1%}")


def _proof(model: PublishedModel) -> str:
    """Return the cell that says what the receipt proves, with a link to it."""
    receipt = model.receipt
    if receipt is None or not model.proved:
        return "after the conversion" if model.planned else "not proved"
    grades: dict[str, int] = {}
    for tensor in receipt["tensors"]:
        if "max_error" in tensor:
            grades[str(tensor["grade"])] = grades.get(str(tensor["grade"]), 0) + 1
    parts = [", ".join(f"{count} {grade}" for grade, count in grades.items()) or "no tensors"]
    tokenizer = receipt["tokenizer"]
    if tokenizer.get("texts"):
        parts.append(f"{int(tokenizer['equal'])} of {int(tokenizer['texts'])} texts tokenize alike")
    if receipt.get("edits"):
        parts.append("keys edited after the proof")
    level = f"[{markdown(str(receipt['verified']))}]({address(model.name)}.receipt.json)"
    return f"{level}: {markdown('; '.join(parts))}"


def made_of(models: Sequence[PublishedModel]) -> Iterator[str]:
    """Yield, for each source that receipts name, a line of the card."""
    lines = []
    for model in models:
        source = (model.receipt or {}).get("source")
        if isinstance(source, Mapping) and isinstance(source.get("files"), list):
            names = [
                published_text(str(each.get("name"))).rpartition("/")[2]
                for each in source["files"]
                if isinstance(each, Mapping)
            ]
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")
            text = f"{shown}: {source.get('container')}, {source.get('types')}"
            lines.append(f"* {markdown(text)}")
    yield from dict.fromkeys(lines)


def explanation(models: Sequence[PublishedModel], bases: Sequence[str], target: str) -> list[str]:
    """Return the lines below the table: how the files were made and proved."""
    proved = next((model for model in models if model.proved), None)
    lines = [
        f"Made by ggferry {ggferry.__version__}" + (f" from {', '.join(map(_hub_link, bases))}." if bases else ".")
    ]
    sources = [*made_of(models)]
    if sources:
        lines += ["", "Read (the digests of these files are in the receipts):", "", *sources]
    if proved is not None:
        source = f"hf://{bases[0]}" if bases else "SOURCE"
        name = proved.name if re.fullmatch(r"[\w./+-]+", proved.name, re.ASCII) else "FILE"
        lines += [
            "",
            PROOF,
            "",
            "```sh",
            f"ggferry verify {source} hf://{target}/{name}",
            "```",
        ]
    return lines


def _hub_link(name: str) -> str:
    return f"[{markdown(name)}](https://huggingface.co/{address(name)})"


def markdown(text: str) -> str:
    """Return untrusted text as one line of Markdown that shows it, and nothing else, within a cell of a table."""
    text = html.escape(printable(text, 300), quote=False)
    text = re.sub(r"([\\`*\[\]|!#~])", r"\\\1", text)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def shown_size(nbytes: int) -> str:
    """Return a size for people, in decimal units, as the Hub shows them."""
    size, unit = float(nbytes), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}" if unit else f"{nbytes} B"
