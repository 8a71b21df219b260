"""The proof of the vocabulary: texts through both tokenizers."""

from __future__ import annotations

from typing import Any

from ggferry.converters.tokenizers.compare import compare
from ggferry.converters.tokenizers.legacy.byte_level import REBUILT
from ggferry.converters.tokenizers.legacy.check import check_conversion, check_merges
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError, VerificationError


def check_tokenizer(
    source: Tokenizer | None, output: Tokenizer | None, checkpoint: Checkpoint, path: str
) -> dict[str, Any]:
    """Both vocabularies encode the fixed texts alike. A LLaMA-era vocabulary is also held, on its raw bytes, against
    the algorithm of its own runtime, which shares nothing with the conversion; of a byte-level one whose merges
    were rebuilt every token must come out of its own bytes by the merges as written. Raises VerificationError."""
    if source is None or output is None:
        if source is not output:
            raise VerificationError("the vocabulary is on one side only", path=path)
        return {"texts": 0, "equal": 0, "why": "no vocabulary"}
    try:
        encode = encoder(output)
    except UnsupportedError as error:
        if source.to_kv() != output.to_kv():
            raise VerificationError("the vocabularies differ", path=path) from None
        return {"texts": 0, "equal": 0, "why": f"{error.message}: {output.model}; every key is equal"}
    check = compare(encoder(source), encode)
    legacy = (
        check_conversion(checkpoint.vocab, output, encode) if checkpoint.vocab and output.model == "llama" else None
    )
    for result in (check, legacy):
        if result is not None and not result.passed:
            raise VerificationError("the vocabularies tokenize differently", path=path, found=result.first)
    found = {"model": output.model, "vocabulary": len(output.tokens), **check.as_dict()}
    if checkpoint.vocab and output.model == "gpt2":
        found["merges"] = check_merges(checkpoint.vocab, output, source.origins.get("merges") == REBUILT, path)
    return found if legacy is None else {**found, "legacy_runtime": legacy.as_dict()}
