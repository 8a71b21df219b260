"""Read llm.c's gpt2_tokenizer.bin: a header of 256 numbers, then the bytes of each token behind their count.

The merges follow from the order of the tokens. Source: karpathy/llm.c `train_gpt2.py` (`write_tokenizer`),
`llmc/tokenizer.h`.
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.legacy.byte_level import from_raw_bpe
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import InconsistentError, TrailingBytesError
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.sources import open_source

NAME = "gpt2_tokenizer.bin"
TEXT_END = b"<|endoftext|>"
HEADER_BYTES = 1024
HEADER = Struct(
    "llm.c tokenizer header",
    """
    magic    u32  20240328..20240328
    version  u32  1..2              2 names the end of a text
    tokens   u32  1..MAX_VOCAB
    end      u32  0..MAX_VOCAB      the end of a text
    """,
)


def read(path: str) -> tuple[RawVocab, int | None]:
    """Return the bytes of the tokens, and the id of the one that ends a text; None where version 1 does not say it.

    Raises CorruptError for a file that is no such vocabulary.
    """
    source = open_source(path)
    try:
        header = HEADER.read(Cursor(source))
        cursor = Cursor(source, HEADER_BYTES)
        tokens = []
        for number in range(int(header["tokens"])):
            size = cursor.integer("u8", f"the length of token {number}")
            tokens.append(cursor.take(size, f"token {number}"))
        if cursor.remaining:
            raise cursor.error(TrailingBytesError, "bytes behind the last token", found=f"{cursor.remaining} bytes")
    finally:
        source.close()
    end = int(header["end"]) if header["version"] == 2 else None
    if end is not None and (end >= len(tokens) or tokens[end] != TEXT_END):
        raise InconsistentError("the token that ends a text", path=path, offset=12, found=end, expected=TEXT_END)
    return RawVocab(tuple(tokens)), end


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of gpt2_tokenizer.bin, whose pre-tokenizer is GPT-2's."""
    path = inputs.sidecars.files[NAME]
    raw, end = read(path)
    tokenizer = from_raw_bpe(raw, pre=inputs.pre or "gpt-2", path=path)
    if end is None:
        return tokenizer
    ids, origins = dict.fromkeys(("bos", "eos"), end), dict.fromkeys(("bos", "eos"), NAME)
    return replace(tokenizer, ids={**tokenizer.ids, **ids}, origins={**tokenizer.origins, **origins})


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path(NAME) is not None


SOURCE = Source("gpt2_tokenizer.bin", 71, "gpt2_tokenizer.bin (llm.c)", _probe, load)
