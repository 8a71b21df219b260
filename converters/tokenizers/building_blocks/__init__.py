"""What several kinds of tokenizer share: byte alphabets, merging, special tokens, pre-tokenizer patterns."""
