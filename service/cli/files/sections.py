"""The parts of `inspect` that are asked for one by one: tokens, templates, sizes, memory, the dump of a header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, RefusedError, UsageError
from ggferry.formats.gguf.values import Value
from ggferry.service.cli import describe
from ggferry.support.printable import printable

_SPAN = re.compile(r"(\d*):(\d*)|(\d+)")
_KINDS = {1: "normal", 2: "unknown", 3: "control", 4: "user-defined", 5: "unused", 6: "byte"}
"""llama_token_type of llama.h."""


def parts(checkpoint: Checkpoint, span: str | None, template: bool, hexadecimal: bool) -> dict[str, Any]:
    """Return what was asked for by --tokens, --template and --hex, as plain data."""
    found: dict[str, Any] = {}
    if span is not None:
        found["tokens"] = list(tokens(checkpoint, span))
    if template:
        from ggferry.converters.analysis.chat_templates import templates

        found["templates"] = templates(checkpoint)
    if hexadecimal:
        from ggferry.converters.analysis.hex_dump import hex_lines

        found["hex"] = list(hex_lines(checkpoint))
    return found


def lines(facts: Mapping[str, Any], sections: Sequence[str], full: bool) -> Iterator[str]:
    """Yield the lines for a person: everything, or the parts that were asked for."""
    if not sections:
        yield from describe.lines(facts, full)
        yield from size_lines(facts["sizes"])
        yield from memory_lines(facts["memory"])
    for part in sections:
        yield from _PARTS[part](facts, full)


def _templates(found: Mapping[str, str]) -> Iterator[str]:
    if not found:
        yield "no chat template"
    for name, text in found.items():
        if name:
            yield f"--- {name}"
        yield from text.split("\n")


_PARTS: Mapping[str, Callable[[Mapping[str, Any], bool], Iterable[str]]] = {
    "metadata": lambda facts, full: describe.metadata_lines(facts, full),
    "tensors": lambda facts, full: describe.tensor_lines(facts),
    "tokens": lambda facts, full: map(token_line, facts["tokens"]),
    "templates": lambda facts, full: _templates(facts["templates"]),
    "hex": lambda facts, full: facts["hex"],
    "sizes": lambda facts, full: (*size_lines(facts["sizes"]), *memory_lines(facts["memory"])),
}


# --- tokens --------------------------------------------------------------------------------------------------------


def span_of(text: str, count: int) -> range:
    """Return the ids that 'A:B', 'A:', ':B', ':' or 'A' means of `count` tokens. Raises UsageError."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise UsageError("--tokens", found=text, expected="A:B, ids from A up to B")
    if match[3]:
        return range(min(int(match[3]), count), min(int(match[3]) + 1, count))
    return range(min(int(match[1] or 0), count), min(int(match[2] or count), count))


def tokens(checkpoint: Checkpoint, span: str) -> Iterator[dict[str, Any]]:
    """Yield id, text, type and score of the tokens that `span` means. Raises RefusedError without a vocabulary."""
    declared = checkpoint.metadata.get("tokenizer.ggml.tokens")
    if isinstance(declared, Value):
        yield from _of_gguf(checkpoint, declared, span)
        return
    if checkpoint.vocab is not None:
        for number in span_of(span, len(checkpoint.vocab.tokens)):
            raw = checkpoint.vocab.tokens[number]
            score = checkpoint.vocab.scores[number] if checkpoint.vocab.scores else None
            yield {"id": number, "text": raw.decode("utf-8", "backslashreplace"), "type": None, "score": score}
        return
    yield from _of_checkpoint(checkpoint, span)


def _of_gguf(checkpoint: Checkpoint, declared: Value, span: str) -> Iterator[dict[str, Any]]:
    ids = span_of(span, len(declared))
    texts = declared.first(ids.stop)
    kinds = _listed(checkpoint, "tokenizer.ggml.token_type", ids.stop)
    scores = _listed(checkpoint, "tokenizer.ggml.scores", ids.stop)
    for number in ids:
        text = str(texts[number]).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        kind = _KINDS.get(kinds[number], str(kinds[number])) if number < len(kinds) else None
        yield {"id": number, "text": text, "type": kind, "score": scores[number] if number < len(scores) else None}


def _listed(checkpoint: Checkpoint, key: str, count: int) -> Sequence[Any]:
    value = checkpoint.metadata.get(key)
    found: Sequence[Any] = value.first(count) if isinstance(value, Value) and value.items is not None else ()
    return found


def _of_checkpoint(checkpoint: Checkpoint, span: str) -> Iterator[dict[str, Any]]:
    from ggferry.converters.tokenizers.of_checkpoint import load_tokenizer, vocabulary_rows

    found = load_tokenizer(checkpoint, vocabulary_rows(checkpoint))
    if found is None:
        raise RefusedError("the file has no vocabulary", path=checkpoint.path)
    for number in span_of(span, len(found.tokens)):
        text = found.tokens[number]
        shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
        kinds, scores = found.types, found.scores
        yield {
            "id": number,
            "text": shown,
            "type": _KINDS.get(int(kinds[number])) if kinds else None,
            "score": scores[number] if scores else None,
        }


def token_line(token: Mapping[str, Any]) -> str:
    """Return a token for a person."""
    more = "  ".join(str(token[name]) for name in ("type", "score") if token[name] is not None)
    return f"{token['id']:>8}  {printable(token['text'])!s}" + (f"  ({more})" if more else "")


# --- sizes and memory ----------------------------------------------------------------------------------------------


def sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return how the bytes are spent, as plain data."""
    from ggferry.converters.analysis.sizes import by_type, by_use, whole

    refs = checkpoint.tensors.values()
    total = whole(refs)
    return {
        "parameters": total.elements,
        "bits_per_weight": round(total.bits, 3),
        "by_type": [asdict(share) for share in by_type(refs)],
        "by_use": [asdict(share) for share in by_use(refs)],
    }


def memory(checkpoint: Checkpoint, contexts: Sequence[int], types: Sequence[str]) -> dict[str, Any] | None:
    """Return the cache for each context length and type, or why it is not known; None where no model is recognized."""
    from ggferry.converters.analysis import kv_cache as caches
    from ggferry.converters.understand import understand

    try:
        graph = understand(checkpoint, vocab_only=True)
    except GgferryError:
        return None
    keys = caches.keys_of(graph)
    made_for = keys.get("context_length")
    lengths = contexts or sorted({*caches.CONTEXTS, *([made_for] if isinstance(made_for, int) else [])})
    weights = sum(ref.nbytes for ref in checkpoint.tensors.values())
    try:
        found = [caches.cache(graph.architecture.name, keys, n, kind) for kind in types for n in lengths]
    except caches.UnknownCache as unknown:
        return {"weights": weights, "caches": None, "unknown": str(unknown)}
    return {"weights": weights, "caches": [{**asdict(each), "bytes": each.nbytes} for each in found]}


def cache_types(types: Sequence[str] | None) -> tuple[str, ...]:
    """Return the types of --cache-type. Raises UsageError."""
    from ggferry.converters.analysis.kv_cache import ALL_TYPES, CACHE_TYPES

    for each in types or ():
        if each.lower() not in ALL_TYPES:
            raise UsageError("--cache-type", found=each, expected=", ".join(ALL_TYPES))
    return tuple(each.lower() for each in types) if types else CACHE_TYPES


def size_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield sizes for a person."""
    if not found["parameters"]:
        return
    yield f"{found['parameters']:,} parameters, {found['bits_per_weight']:.2f} bits per weight"
    for title, name in (("by type", "by_type"), ("by use", "by_use")):
        yield title
        for share in found[name]:
            word = "tensor " if share["tensors"] == 1 else "tensors"
            yield f"  {share['name']:<16} {share['tensors']:>6} {word}  {share['nbytes']:>18,} bytes"


def memory_lines(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the estimate for a person: a row a context length, a column a type."""
    if found is None:
        return
    if found["caches"] is None:
        yield f"cache    not known: {found['unknown']}"
        return
    kinds = list(dict.fromkeys(each["type"] for each in found["caches"]))
    lengths = list(dict.fromkeys(each["context"] for each in found["caches"]))
    by = {(each["context"], each["type"]): each for each in found["caches"]}
    states = found["caches"][0]["states"] if found["caches"] else 0
    share = f", {_mib(states)} of it states" if states else ""
    yield f"KV cache per sequence{share}; total with {_mib(found['weights'])} of weights"
    for n in lengths:
        cells = (by[n, kind]["bytes"] for kind in kinds)
        row = "   ".join(
            f"{kind} {_mib(each):>12} {_mib(each + found['weights']):>13}"
            for kind, each in zip(kinds, cells, strict=True)
        )
        yield f"  {n:>9,} tokens   {row}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:,.2f} GiB"
