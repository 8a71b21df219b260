"""Read LLaMA 3's tokenizer.model as Meta ships it: a base64 token and its rank a line → 'gpt2' with rebuilt merges."""

from __future__ import annotations

import base64
import binascii

from ggferry.converters.tokenizers.building_blocks.byte_level import merges_by_rank, spell
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.building_blocks.steps import placed
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.libraries.cross_check import TIKTOKEN, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import CorruptError, DuplicateError, InconsistentError, UnsupportedError
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB

PRE = "llama-bpe"
SPECIALS = 256  # llama3/tokenizer.py: num_reserved_special_tokens
# Position among the specials → name; the rest is reserved, counted up (llama3/tokenizer.py; names of 3.1 and later
# from llama-models). Ids are the same in both.
NAMES_3_0 = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "<|eot_id|>",
}
NAMES_3_1 = {**NAMES_3_0, 4: "<|finetune_right_pad_id|>", 8: "<|eom_id|>", 10: "<|python_tag|>"}
LLAMA_4_TOKENS = 200_000


def is_tiktoken(head: bytes) -> bool:
    """Return whether a file begins with a line "base64 rank"."""
    line = head.split(b"\n", 1)[0].split(b" ")
    if len(line) != 2 or not line[1].strip().isdigit():
        return False
    try:
        return bool(base64.b64decode(line[0], validate=True))
    except binascii.Error:
        return False


def load_tiktoken(path: str, *, rows: int | None = None, later: bool = True) -> Tokenizer:
    """Return the tokenizer of a tiktoken file.

    Args:
        path: The file.
        rows: Rows of the embedding, from which the number of special tokens follows.
        later: Whether to name these as LLaMA 3.1 and its successors do (params.json of those has use_scaled_rope).
    """
    ranks = read_ranks(path)
    count = len(ranks)
    if count >= LLAMA_4_TOKENS:
        raise UnsupportedError("a tiktoken file of LLaMA 4: its specials are not in it", path=path, found=count)
    by_rank = in_rank_order(ranks, path)
    with placed(path):
        merges, how = merges_by_rank(ranks, whole=find_pre(PRE).ignore_merges)
    specials = special_names(SPECIALS if rows is None or rows <= count else rows - count, later)
    return Tokenizer(
        model="gpt2",
        pre=PRE,
        tokens=(*map(spell, by_rank), *specials),
        types=(TokenType.NORMAL,) * count + (TokenType.CONTROL,) * len(specials),
        merges=tuple(f"{spell(left)} {spell(right)}" for left, right in merges),
        ids={"bos": count, "eos": count + 1, "eot": count + 9} | ({"eom": count + 8} if later else {}),
        flags={"add_bos": True, "add_eos": False},
        notes=(
            f"{len(specials)} special tokens are not in a tiktoken file: named as Meta's tokenizer.py names those of "
            f"LLaMA {'3.1 and later' if later else '3.0'}",
        ),
        origins={"tokens": path, "merges": how, "pre": "LLaMA 3's file format"},
    )


def in_rank_order(ranks: dict[bytes, int], path: str) -> list[bytes]:
    """Return the tokens by rank. Raises InconsistentError for ranks that leave gaps."""
    by_rank = {rank: token for token, rank in ranks.items()}
    if set(by_rank) != set(range(len(ranks))):
        raise InconsistentError("ranks leave gaps", path=path, found=f"{len(ranks)} tokens up to rank {max(by_rank)}")
    return [by_rank[rank] for rank in range(len(ranks))]


def special_names(count: int, later: bool) -> list[str]:
    """Return names of the `count` special tokens after the vocabulary, at least the eleven that have a meaning."""
    known = NAMES_3_1 if later else NAMES_3_0
    names, reserved = [], 0
    for place in range(max(count, 11)):
        if place in known:
            names.append(known[place])
        else:
            names.append(f"<|reserved_special_token_{reserved}|>")
            reserved += 1
    return names


def read_ranks(path: str) -> dict[bytes, int]:
    """Return token → rank of every line of a file. Raises CorruptError naming the line."""
    return ranks_in(read_bytes(path), path)


def ranks_in(data: bytes, path: str) -> dict[bytes, int]:
    """Return token → rank of every line of such a file, or of one within the file at `path`."""
    ranks: dict[bytes, int] = {}
    offset = 0
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        fields = line.split()
        place, offset = offset, offset + len(line)
        if not fields:
            continue
        try:
            token, rank = base64.b64decode(fields[0], validate=True), int(fields[1])
            whole = len(fields) == 2 and 0 < len(token) <= MAX_TOKEN_BYTES and 0 <= rank < MAX_VOCAB
        except (binascii.Error, ValueError, IndexError):
            whole = False
        if not whole:
            raise CorruptError(f"line {number} is not a base64 token and its rank", path=path, offset=place)
        if ranks.setdefault(token, rank) != rank:
            raise DuplicateError(f"line {number} repeats a token", path=path, offset=place, found=token)
    if not ranks:
        raise CorruptError("no tokens", path=path)
    return ranks


def _probe(sidecars: Sidecars) -> bool:
    path = sidecars.path("tokenizer.model")
    return path is not None and is_tiktoken(read_bytes(path)[:4096])


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Read Meta's folder of a LLaMA 3: tokenizer.model, and params.json to distinguish 3.0 from later versions."""
    params = inputs.sidecars.object("params.json"), "use_scaled_rope", inputs.sidecars.path("params.json")
    later = json_kinds.flag(*params, True)
    return with_added(
        load_tiktoken(inputs.sidecars.files["tokenizer.model"], rows=inputs.rows, later=later), inputs.added
    )


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return tiktoken, which merges by rank and knows no list of merges."""
    path = inputs.sidecars.files["tokenizer.model"]
    return ReferenceTokenizer(TIKTOKEN, read_bytes(path), path, inputs.added)


SOURCE = Source("tiktoken", 10, "tokenizer.model of LLaMA 3", _probe, load, reference)
