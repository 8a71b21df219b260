"""Run a library on a tokenizer file; this is a program of its own, with little memory and time (`ask.py`).

Nothing of ggferry is imported, and nothing is opened. Question and file come in on stdin: a line of JSON and the bytes.
The answer goes out on stdout: a line of JSON, the number of ids of each text, and the ids (both uint32).
"""

from __future__ import annotations

import base64
import json
import os
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

BATCH = 4096  # texts at a time
MAX_IDS = 1 << 26
GROWTH, ROOM = 64, 4096  # text may become so many times as long, and a little more; NFKC makes 18 of one

LLAMA_3 = (  # llama3/tokenizer.py, pat_str
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)

Ids = Iterator[list[int]]
Message = dict[str, Any]
"""A line of JSON: the question, or what is answered before the ids."""


def limit_to(memory: int, seconds: int) -> None:
    """Cap what this process takes, where the system has such limits."""
    if resource is None:
        return
    for what, limit in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(what)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (least, least))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer one question."""
    request = json.loads(sys.stdin.buffer.readline())
    limit_to(request["memory"], request["seconds"])
    sys.path[:] = request["path"]
    answer, ids = LIBRARIES[request["library"]](sys.stdin.buffer.read(request["size"]), request)
    counts, flat = array("I"), array("I")
    for one in ids:
        counts.append(len(one))
        flat.extend(one)
        if len(flat) > MAX_IDS:
            raise OverflowError(f"more than {MAX_IDS} ids")
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + counts.tobytes() + flat.tobytes())


def batches(texts: list[str]) -> Iterator[list[str]]:
    parent = os.getppid()
    for at in range(0, len(texts), BATCH):
        if os.getppid() != parent:  # nobody is left to be answered
            raise SystemExit(1)
        yield texts[at : at + BATCH]


def grown(text: str, made: str) -> str:
    """Return `made`, if it is not much longer than the `text` it was made of."""
    if len(made) > GROWTH * len(text) + ROOM:
        raise OverflowError("normalizer makes text longer without end")
    return made


def with_tokenizers(data: bytes, request: Message) -> tuple[Message, Ids]:
    """Encode by a tokenizer.json with Hugging Face's tokenizers.

    No special tokens are added; those in a text are recognized.
    """
    import tokenizers

    made = tokenizers.Tokenizer.from_buffer(data)
    made.no_truncation()
    made.no_padding()
    answer: Message = {"library": f"tokenizers {tokenizers.__version__}"}
    step = made.normalizer
    if request["normalize"] and step is not None:
        answer["normalized"] = [grown(text, step.normalize_str(text)) for text in request["texts"]]
    if request["vocabulary"]:
        answer["vocabulary"] = made.get_vocab(with_added_tokens=False)
        added = made.get_added_tokens_decoder()
        answer["added"] = {token: [one.content, one.special] for token, one in added.items()}
        answer["framed"] = [made.encode("a", add_special_tokens=special).ids for special in (True, False)]

    def ids() -> Ids:
        for texts in batches(request["texts"]):
            for one in made.encode_batch_fast(texts, add_special_tokens=False):
                yield one.ids

    return answer, ids()


def with_sentencepiece(data: bytes, request: Message) -> tuple[Message, Ids]:
    """Encode by a tokenizer.model with SentencePiece."""
    import sentencepiece

    made = sentencepiece.SentencePieceProcessor(model_proto=data)
    answer: Message = {"library": f"sentencepiece {sentencepiece.__version__}"}
    if request["normalize"]:
        answer["normalized"] = [grown(text, made.normalize(text)) for text in request["texts"]]
    if request["vocabulary"]:
        every = range(made.get_piece_size())
        kinds = ((2, made.is_unknown), (3, made.is_control), (5, made.is_unused), (6, made.is_byte))
        answer["vocabulary"] = [made.id_to_piece(token) for token in every]
        answer["scores"] = [made.get_score(token) for token in every]
        answer["types"] = [next((kind for kind, is_it in kinds if is_it(token)), 1) for token in every]
        for token in user_defined(data):
            answer["types"][token] = 4

    def ids() -> Ids:
        for texts in batches(request["texts"]):
            yield from made.encode(texts)

    return answer, ids()


def user_defined(data: bytes) -> Iterator[int]:
    """Yield the ids of a model file's user-defined pieces, which no function of the library tells from ordinary ones.

    A piece is field 1 of the model, its type field 3 of the piece (sentencepiece_model.proto).
    """
    pieces = (value for number, value in fields(data) if number == 1)
    for token, piece in enumerate(pieces):
        if piece.find(b"\x18\x04") >= 0 and (3, 4) in fields(piece):  # the bytes of such a field: most pieces end here
            yield token


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of every field of a protobuf message: an integer, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            if byte < 0x80:
                return value | byte << shift
            value, shift = value | (byte & 0x7F) << shift, shift + 7

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}[tag & 7] if tag & 7 != 2 else varint()
        yield tag >> 3, data[at : at + size]
        at += size


def with_fairseq(data: bytes, request: Message) -> tuple[Message, Ids]:
    """Encode by a tokenizer.model with SentencePiece, and number the pieces as fairseq does.

    <s>, <pad>, </s> and <unk> are the first; every other piece stands one place further on than in the file.
    """
    answer, ids = with_sentencepiece(data, request)
    if request["vocabulary"]:
        first: dict[str, list[Any]] = {
            "vocabulary": ["<s>", "<pad>", "</s>", "<unk>"],
            "scores": [0.0] * 4,
            "types": [3, 3, 3, 2],
        }
        answer |= {name: [*own, *answer[name][3:]] for name, own in first.items()}
    return answer, ([token + 1 if token else 3 for token in one] for one in ids)


def with_tiktoken(data: bytes, request: Message, pattern: str = LLAMA_3) -> tuple[Message, Ids]:
    """Encode by a file of tokens and ranks, as Meta's tokenizer.py of LLaMA 3 reads it.

    It uses tiktoken where that is installed, else its algorithm (tiktoken/_educational.py, bpe_encode). Special tokens,
    which are not in the file, are plain text.
    """
    lines = (line.split() for line in data.splitlines() if line.strip())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    answer: Message = {"library": "tiktoken's algorithm"}
    if request["vocabulary"]:
        answer["vocabulary"] = {base64.b64encode(token).decode(): rank for token, rank in ranks.items()}
    encode = by_rank(ranks, pattern)
    with suppress(ImportError):
        import tiktoken

        answer["library"] = f"tiktoken {tiktoken.__version__}"
        encode = tiktoken.Encoding("given", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode_ordinary
    return answer, (encode(text) for texts in batches(request["texts"]) for text in texts)


def with_qwen(data: bytes, request: Message) -> tuple[Message, Ids]:
    """Encode by a qwen.tiktoken, as tokenization_qwen.py does: NFC, digits alone. Special tokens are plain text."""
    texts = [unicodedata.normalize("NFC", text) for text in request["texts"]]
    answer, ids = with_tiktoken(data, {**request, "texts": texts}, LLAMA_3.replace("{1,3}", ""))
    if request["vocabulary"]:
        first = len(answer["vocabulary"])
        names = ("endoftext", "im_start", "im_end", *(f"extra_{n}" for n in range(205)))
        answer["special"] = {first + n: f"<|{name}|>" for n, name in enumerate(names)}
    if request["normalize"]:
        answer["normalized"] = texts
    return answer, ids


def with_tekken(data: bytes, request: Message) -> tuple[Message, Ids]:
    """Encode by a tekken.json, as mistral_common's Tekkenizer does: ordinary ids come behind the special tokens.

    Special tokens are plain text.
    """
    document = json.loads(data)
    config = document["config"]
    ahead = config["default_num_special_tokens"]
    count = config["default_vocab_size"] - ahead
    first = (entry for entry in document["vocab"] if entry["rank"] < count)
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in first}
    answer: Message = {"library": "tiktoken's algorithm"}
    if request["vocabulary"]:
        answer["vocabulary"] = {base64.b64encode(token).decode(): rank + ahead for token, rank in ranks.items()}
        answer["special"] = {entry["rank"]: entry["token_str"] for entry in document.get("special_tokens") or ()}
    encode = by_rank(ranks, config["pattern"])
    with suppress(ImportError):
        import tiktoken

        answer["library"] = f"tiktoken {tiktoken.__version__}"
        made = tiktoken.Encoding("given", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
        encode = made.encode_ordinary
    one_by_one = (encode(text) for texts in batches(request["texts"]) for text in texts)
    return answer, ([token + ahead for token in ids] for ids in one_by_one)


def by_rank(ranks: dict[bytes, int], pattern_text: str = LLAMA_3) -> Callable[[str], list[int]]:
    """Return an encoder that cuts words by the pattern and joins the pair of lowest rank in each until none has one."""
    import regex

    pattern = regex.compile(pattern_text)

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for word in (match[0] for match in pattern.finditer(text)):
            whole = word.encode()
            parts = [whole] if whole in ranks else [bytes([byte]) for byte in whole]
            while len(parts) > 1:
                found = [ranks.get(parts[i] + parts[i + 1], len(ranks)) for i in range(len(parts) - 1)]
                at = found.index(min(found))
                if found[at] == len(ranks):
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            ids += [ranks[part] for part in parts]
        return ids

    return encode


LIBRARIES: dict[str, Callable[[bytes, Message], tuple[Message, Ids]]] = {
    "tokenizers": with_tokenizers,
    "sentencepiece": with_sentencepiece,
    "fairseq": with_fairseq,
    "tiktoken": with_tiktoken,
    "tekken": with_tekken,
    "qwen": with_qwen,
}

if __name__ == "__main__":
    try:
        main()
    except BaseException as error:  # a Rust panic is no Exception
        os.write(2, f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        os._exit(1)
