"""Convert LLaMA-family vocabularies of GGML, GGMF and GGJT files to GGUF tokenizers.

Those files hold texts, and from GGMF on scores, but no types. What is known beyond that is positional: how llama.cpp's
convert-pth-to-ggml.py (from 2023-03-10) and convert.py (to 2023-08-21) wrote LLaMA's SentencePiece vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import (
    Piece,
    SentencePieceModel,
    read_model,
)
from ggferry.converters.tokenizers.encoders.sentencepiece_bpe import from_model
from ggferry.converters.tokenizers.files.repairs import distinct
from ggferry.converters.tokenizers.legacy.byte_level import from_raw_bpe, is_byte_bpe
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType, byte_token
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import InconsistentError, UnsupportedError
from ggferry.support.content_cache import Recent, held

UNKNOWN = " \u2047 ".encode()  # sentencepiece's decode of <unk>: its unk_surface
LOST = "\ufffd".encode()  # what tokenizer.decode() gave for a byte ≥ 0x80, 10–13 March 2023 (before 2a20f48ef)
FIRST_BYTE, FIRST_PIECE = 3, 259  # ids of <0x00> and of the first trained piece
CONTROLS = ((UNKNOWN, b"<unk>"), (b"", b"<s>"), (b"", b"</s>"))
NAMES = ("<unk>", "<s>", "</s>")
ADDED_SCORE = -1000.0  # convert.py for every entry of added_tokens.json
PADS = (b"<pad>", b"[PAD]", b"<PAD>", b"<|pad|>")
# Ids of the pieces of LLaMA's own 32000 that are nothing but spaces: its tokenizer.model scores them -1e9, which a
# model trained by the sentencepiece program does not (checked against llama.cpp's models/ggml-vocab.bin).
LLAMA_SPACES = (259, 268, 308, 418, 462, 539, 632, 795, 965, 1669, 1678, 3986, 4706, 9651, 18884, 29871)
LLAMA_PIECES = 32000
SPACES_SCORE = -1e9
_KNOWN: Recent[Tokenizer] = Recent(32 << 20)
"""(Vocabulary, rows, pre-tokenizer) → its tokenizer."""


def from_raw_vocab(
    raw: RawVocab,
    *,
    tokenizer_model: str | None = None,
    model_rows: int,
    pre: str | None = None,
    path: str | None = None,
) -> Tokenizer:
    """Return the GGUF tokenizer of a LLaMA-family legacy vocabulary.

    Args:
        raw: The vocabulary as found.
        tokenizer_model: Path of the original tokenizer.model; it wins over the file, and is checked piece by piece
            against it.
        model_rows: Rows of the embedding.
        pre: Overrides the pre-tokenizer of a byte-level BPE vocabulary.
        path: The file's path, for errors.

    Raises InconsistentError naming the first id that differs, UnsupportedError for a vocabulary whose kind cannot be
    proved.
    """
    if tokenizer_model is not None:
        return _completed(_from_source(raw, read_model(tokenizer_model), path), raw, model_rows, path)
    # scores by their bits: 0.0 and -0.0 are equal and not the same
    key = raw.tokens, raw.merges, raw.scores and array("d", raw.scores).tobytes(), model_rows, pre
    found = _KNOWN.get(key)
    if found is None:
        found = _completed(_by_itself(raw, pre, path), raw, model_rows, path)
        _KNOWN.put(key, found, held(found.texts()))
    return found


def _by_itself(raw: RawVocab, pre: str | None, path: str | None) -> Tokenizer:
    """Return the tokenizer that follows from the file's vocabulary alone."""
    if _is_llama(raw.tokens):
        return _from_positions(raw)
    if is_byte_bpe(raw):
        return from_raw_bpe(raw, pre=pre, path=path)
    raise UnsupportedError(
        "neither LLaMA's SentencePiece vocabulary (ids 0–2 special, 3–258 the bytes) nor a byte-level BPE one "
        "(every byte a token, scores -id)",
        path=path,
        found=f"{len(raw.tokens)} tokens, the first {list(raw.tokens[:4])!r}",
        hint="--tokenizer-model tokenizer.model gives the vocabulary its types and scores",
    )


def _completed(base: Tokenizer, raw: RawVocab, model_rows: int, path: str | None) -> Tokenizer:
    """Return `base` brought to the rows of the embedding, with a note on tokens that are not UTF-8."""
    pieces = raw.tokens[FIRST_PIECE:]
    broken = [] if _are_utf8(pieces) else [i for i, token in enumerate(pieces, FIRST_PIECE) if not _are_utf8([token])]
    if broken and base.model == "llama":
        base = base.noted(
            f"{len(broken)} tokens are not UTF-8, which GGUF strings must be, the first is id {broken[0]}: their bad "
            "bytes are spelled <0xHH>"
        )
    short = model_rows - len(base.tokens)
    if short == 1 and "<pad>" not in base.tokens and base.model == "llama":
        # GPT4All's unversioned file: 32001 rows, 32000 entries; the missing one is the <pad> its training added
        base = base.extended(["<pad>"], TokenType.UNUSED, ADDED_SCORE).noted(
            f"repair 'pad': the header counts {model_rows} tokens, the file holds one less; id {model_rows - 1} "
            "became <pad>, type unused"
        )
    return base.padded(model_rows, path=path)


def _is_llama(tokens: Sequence[bytes]) -> bool:
    """Return whether ids 0–2 and 3–258 are what convert-pth-to-ggml.py and convert.py wrote for LLaMA."""
    return (
        len(tokens) >= FIRST_PIECE
        and all(tokens[i] in allowed or tokens[i] == b"" for i, allowed in enumerate(CONTROLS))
        and all(_is_byte(tokens[i], i - FIRST_BYTE) for i in range(FIRST_BYTE, FIRST_PIECE))
    )


def _is_byte(token: bytes, value: int) -> bool:
    return token == bytes([value]) or (value >= 0x80 and token == LOST) or token == byte_token(value).encode()


def _from_positions(raw: RawVocab) -> Tokenizer:
    count = len(raw.tokens)
    notes, origins = [], {"tokens": "the file's vocabulary", "types": "position: 0 unknown, 1–2 control, 3–258 bytes"}
    scores = raw.scores
    if scores is None or (count > FIRST_PIECE + 1 and not any(scores[FIRST_PIECE:])):
        scores = rebuilt_scores(raw.tokens)
        origins["scores"] = "rebuilt from the order of the pieces"
        notes.append(_why_rebuilt(raw))
    else:
        origins["scores"] = "the file's vocabulary"
    lost = sum(token == LOST for token in raw.tokens[FIRST_BYTE:FIRST_PIECE])
    if lost:
        notes.append(
            f"{lost} byte tokens were lost to U+FFFD when the file was made (10–13 March 2023); rebuilt from their ids"
        )
    rebuilt = scores is not raw.scores
    first_added = added_start(raw.tokens, None if rebuilt else scores)
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * (FIRST_PIECE - FIRST_BYTE)
    types += [TokenType.NORMAL] * (first_added - FIRST_PIECE)
    texts = [*NAMES, *(byte_token(value) for value in range(256))]
    pieces = raw.tokens[FIRST_PIECE:first_added]
    shown = map(bytes.decode, pieces) if _are_utf8(pieces) else map(text_of, pieces)
    texts += [text.replace(" ", SPACE) for text in shown]
    base = Tokenizer(
        model="llama",
        pre="default",
        tokens=tuple(texts),
        scores=tuple(scores[:first_added]),
        types=tuple(types),
        ids={"bos": 1, "eos": 2, "unk": 0},
        flags={"add_bos": True, "add_eos": False, "add_space_prefix": True},
        notes=tuple(notes),
        origins=origins
        | dict.fromkeys(("bos", "eos", "unk"), "LLaMA's ids, hard-coded in the runtimes of the time")
        | dict.fromkeys(("add_bos", "add_space_prefix"), "what the runtimes of the time did (main added both)"),
    )
    added = raw.tokens[first_added:]
    return _finished(base, added, [ADDED_SCORE] * len(added) if rebuilt else scores[first_added:])


def _why_rebuilt(raw: RawVocab) -> str:
    why = "the container has no scores" if raw.scores is None else "all scores are zero: once an unversioned file"
    llama = _spaces(raw.tokens) == LLAMA_SPACES
    formula = "259 - id, -1e9 for LLaMA's 16 pieces of spaces" if llama else "259 - id"
    return f"{why}; rebuilt as SentencePiece's trainer gives them: {formula}"


def rebuilt_scores(tokens: Sequence[bytes]) -> tuple[float, ...]:
    """Return the scores of a LLaMA vocabulary by id: 0 up to 258, then 259 - id.

    The spaces of LLaMA's own 32000 have -1e9.
    """
    spaces = frozenset(LLAMA_SPACES if _spaces(tokens) == LLAMA_SPACES else ())
    return tuple(SPACES_SCORE if i in spaces else float(min(FIRST_PIECE - i, 0)) for i in range(len(tokens)))


def _spaces(tokens: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(
        i for i in range(FIRST_PIECE, min(len(tokens), LLAMA_PIECES)) if tokens[i] and not tokens[i].strip(b" ")
    )


def added_start(tokens: Sequence[bytes], scores: Sequence[float] | None) -> int:
    """Return the id from which on tokens were added after training.

    Their score is -1000 where the order of the pieces predicts another. Without scores, or with the 0 that
    convert-gpt4all-to-ggml.py gave its <pad>, they are names in brackets that no two pieces make up. Pieces of a merged
    vocabulary (Chinese-LLaMA: 20 000 of them, scores 0) are pieces, not added tokens.
    """
    known = frozenset(tokens[FIRST_PIECE:])
    start = len(tokens)
    while start > FIRST_PIECE:
        token, score = tokens[start - 1], None if scores is None else scores[start - 1]
        predicted = float(FIRST_PIECE - start + 1)
        marked = score == ADDED_SCORE and predicted != ADDED_SCORE
        unscored = (score is None or score == 0.0) and (not token or _is_bracketed(token, known))
        if not (marked or unscored):
            break
        start -= 1
    return start


def _is_bracketed(token: bytes, known: frozenset[bytes]) -> bool:
    bracketed = len(token) > 2 and (token[:1] + token[-1:]) in (b"<>", b"[]")
    return bracketed and not any(token[:i] in known and token[i:] in known for i in range(1, len(token)))


def _from_source(raw: RawVocab, source: SentencePieceModel, path: str | None) -> Tokenizer:
    """Return the tokenizer of tokenizer.model, having compared it with the file's vocabulary."""
    if source.model_type != "bpe":
        raise UnsupportedError(
            "LLaMA's legacy runtimes know SentencePiece BPE only", path=source.path, found=source.model_type
        )
    count = len(source.pieces)
    if len(raw.tokens) < count:
        raise InconsistentError(
            "tokenizer.model has more pieces than the file has tokens", path=path, found=len(raw.tokens), expected=count
        )
    for token, piece in enumerate(source.pieces):
        if not _agrees(raw.tokens[token], piece):
            raise InconsistentError(
                f"tokenizer.model is not this file's: id {token} differs",
                path=path,
                found=text_of(raw.tokens[token]),
                expected=piece.text,
            )
    base = from_model(source)
    base = replace(base, origins=dict.fromkeys(base.origins, source.path))
    if raw.scores is not None:
        odd = [i for i, piece in enumerate(source.pieces) if raw.scores[i] != piece.score]
        if odd:
            base = base.noted(
                f"{len(odd)} scores differ from tokenizer.model's, the first at id {odd[0]}: the latter are taken"
            )
    scores = [ADDED_SCORE] * (len(raw.tokens) - count) if raw.scores is None else raw.scores[count:]
    return _finished(base, raw.tokens[count:], scores)


def _agrees(token: bytes, piece: Piece) -> bool:
    text = piece.text.encode()
    if piece.type == TokenType.UNKNOWN:
        return token in (UNKNOWN, b"", text)
    if piece.type == TokenType.CONTROL:
        return token in (b"", text)
    if piece.type == TokenType.BYTE:
        return _is_byte(token, int(piece.text[3:5], 16))
    return token == piece.text.replace(SPACE, " ").encode()


def _finished(base: Tokenizer, added: Sequence[bytes], scores: Sequence[float]) -> Tokenizer:
    """Return `base` with the tokens added after training, and with every text made unique."""
    first = len(base.tokens)
    ids, texts, types = dict(base.ids), [], []
    for i, token in enumerate(added, first):
        kind = TokenType.USER_DEFINED
        if not token:
            kind = TokenType.UNUSED
        elif token in PADS:
            kind = TokenType.CONTROL
            ids.setdefault("pad", i)
        texts.append(text_of(token) or f"[PAD{i}]")
        types.append(kind)
    notes = list(base.notes)
    if added:
        shown = ", ".join(map(repr, texts[:4])) + (" …" if len(texts) > 4 else "")
        notes.append(f"{len(added)} tokens added after training, from id {first}: {shown}")
    whole = replace(
        base,
        tokens=(*base.tokens, *texts),
        types=(*(base.types or ()), *types),
        scores=(*(base.scores or ()), *scores),
        ids=ids,
        notes=tuple(notes),
    )
    return distinct(whole)


def _are_utf8(tokens: Sequence[bytes]) -> bool:
    try:
        b"\n".join(tokens).decode()  # separated, so that two halves of a character do not count as one
    except UnicodeDecodeError:
        return False
    return True


def text_of(token: bytes) -> str:
    """Return `token` as text; bytes that are not UTF-8 are spelled <0xHH>, because GGUF strings must be UTF-8."""
    return token.decode("utf-8", "surrogateescape").translate(_SPELLED)


_SPELLED: Mapping[int, str] = {0xDC00 + byte: byte_token(byte) for byte in range(0x80, 0x100)}
