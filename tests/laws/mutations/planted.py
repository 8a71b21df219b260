"""Mistakes planted in our own source: they sit on both sides of the proof, so that another's word must show them.

A row has the mistake, the model it is shown with, who must notice, and the texts exchanged. Who:

* `reading` (the source is refused), `accounting`, `keys`, `decoders` (known blocks), `tensors`, `vocabulary`, `logits`
  (our own two passes) and `adapter` end the proof as everybody asks for it;
* `second reader`: safetensors, torch and gguf, formulas written a second time, names and orders, as everybody asks;
* `loader`, the list of what llama.cpp's loader reads, tells of it in a line;
* `transformers` and `llama.cpp` end a proof in which they are asked;
* `recorded` are logits that the programs of 2023 computed, kept in the fixtures, for files that no program of today
  reads, and those of publishers' own classes; `receipt` is a receipt held against BLAKE3 and gguf-py.
"""

from __future__ import annotations

from laws.mutations.engine_rows import ENGINE
from laws.mutations.layer_rows import LAYERS
from laws.mutations.next_token_rows import NEXT_TOKENS
from laws.mutations.rows import Planted
from laws.mutations.second_reader_rows import SECOND_READER
from laws.mutations.table_rows import TABLES
from laws.mutations.vocabulary_rows import VOCABULARIES

PLANTED: tuple[Planted, ...] = (*TABLES, *LAYERS, *NEXT_TOKENS, *ENGINE, *VOCABULARIES, *SECOND_READER)
