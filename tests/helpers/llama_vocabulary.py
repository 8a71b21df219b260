"""llama.cpp's tokenizer on a vocabulary alone, through its C interface: PATH; texts as JSON on stdin, ids on stdout.

llama_model_params is passed as its defaults, but for `vocab_only`: its first flag, behind nine members that are checked
to be the ones of the pinned build (`include/llama.h`, b11549).
"""

from __future__ import annotations

import ctypes as c
import json
import sys

from llama_api import Llama, Params

VOCAB_ONLY = 72
"""3 addresses or pairs of enums … up to kv_overrides: 2·8 + 5·4 + 4 of padding + 4·8 bytes."""


class Vocabulary(Llama):
    """A vocabulary without its model."""

    def __init__(self, path: str) -> None:
        from pathlib import Path

        import xllamacpp

        self.lib = c.CDLL(str(Path(xllamacpp.__file__).parent / "xllamacpp.abi3.so"))
        self.call("llama_backend_init", None)
        params = self.call("llama_model_default_params", Params)
        data = bytearray(bytes(params))  # type: ignore[arg-type]
        assert data[VOCAB_ONLY : VOCAB_ONLY + 2] == b"\0\0" and data[VOCAB_ONLY + 2] == 1, "another llama_model_params"
        data[VOCAB_ONLY] = 1
        self.model = self.call("llama_model_load_from_file", c.c_void_p, path.encode(), Params.from_buffer(data))
        assert self.model, "not loaded"
        self.vocab = self.call("llama_model_get_vocab", c.c_void_p, c.c_void_p(self.model))

    def ids(self, text: str) -> list[int]:
        """The ids of a text, with what the vocabulary adds; control tokens are plain text."""
        raw = text.encode()
        room = (c.c_int32 * (len(raw) + 8))()
        count = self.call(
            "llama_tokenize",
            c.c_int32,
            c.c_void_p(self.vocab),
            raw,
            c.c_int32(len(raw)),
            room,
            c.c_int32(len(room)),
            c.c_bool(True),
            c.c_bool(False),
        )
        return list(room[:count])


if __name__ == "__main__":
    vocabulary = Vocabulary(sys.argv[1])
    print(json.dumps([vocabulary.ids(text) for text in json.load(sys.stdin)]))
