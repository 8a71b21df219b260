"""Mistakes in reading tokenizers, which the libraries that models are made with and the source's own files show."""

from __future__ import annotations

from laws.mutations.rows import Planted, among

FILES = "converters.tokenizers.files."
VOCABULARIES: tuple[Planted, ...] = (
    *among(
        FILES + "repairs",
        ("control tokens made normal", "llama", "vocabulary",
         "types[token] = TokenType.CONTROL if control else TokenType.USER_DEFINED", "types[token] = TokenType.NORMAL"),
        ("control tokens made user-defined", "qwen2", "vocabulary",
         "types[token] = TokenType.CONTROL if control else TokenType.USER_DEFINED",
         "types[token] = TokenType.USER_DEFINED"),
        ("an added token is not renamed", "llama", "vocabulary", "        tokens[token] = text\n",
         "        tokens[token] = text.upper()\n"),
    ),
    *among(
        "converters.tokenizers.building_blocks.bpe_document",
        ("merges in reverse order", "llama", "reading", "return tuple(pairs)", "return tuple(reversed(pairs))"),
        ("every third merge lost", "qwen2", "reading", "return tuple(pairs)",
         "return tuple(pair for rank, pair in enumerate(pairs) if rank % 3)"),
        ("last merge lost", "llama", "reading", "return tuple(pairs)", "return tuple(pairs[:-1])"),
    ),
    *among(
        FILES + "tokenizer_json",
        ("two tokens exchanged", "llama", "reading", "by_id = {token: text for",
         "by_id = {token ^ 1 if token in (390, 391) else token: text for"),
    ),
    *among(
        FILES + "sidecar_settings",
        ("end of text off by one", "llama", "vocabulary", "ids[role], origins[role] = named\n",
         'ids[role], origins[role] = (named[0] - (role == "eos"), named[1])\n'),
        ("begin added where it is not", "llama", "vocabulary", "flags[flag], origins[flag] = bool(around), ",
         "flags[flag], origins[flag] = not around, "),
        ("chat template cut", "llama", "vocabulary", "found[key] = text\n", "found[key] = text[:-1]\n"),
    ),
    *among(
        "converters.tokenizers.building_blocks.sentencepiece_proto",
        ("scores negated", "llama of SentencePiece", "vocabulary", "return Piece(text, score, piece_type)",
         "return Piece(text, -score, piece_type)"),
    ),
    *among(
        "converters.tokenizers.encoders.sentencepiece_bpe",
        ("no space in front", "llama of SentencePiece", "vocabulary", "model.add_dummy_prefix}",
         "not model.add_dummy_prefix}"),
        ("bytes made normal", "llama of SentencePiece", "vocabulary",
         "types=tuple(piece.type for piece in model.pieces)",
         "types=tuple(1 if piece.type == 6 else piece.type for piece in model.pieces)"),
    ),
    *among(
        "converters.tokenizers.legacy.llama",
        ("scores of a file of 2023 halved", "llama q4_0", "vocabulary", "scores=tuple(scores[:first_added]),",
         "scores=tuple(score / 2 for score in scores[:first_added]),"),
        ("texts of a file of 2023 in lower case", "llama q4_0", "vocabulary", 'text.replace(" ", SPACE) for text',
         'text.replace(" ", SPACE).lower() for text'),
    ),
)
