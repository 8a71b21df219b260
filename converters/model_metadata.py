"""The metadata of an output file: general.*, the architecture's keys, the tokenizer's, each with its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ggferry
from ggferry.converters.graph import ModelGraph
from ggferry.converters.metadata import Entry, general_metadata
from ggferry.converters.naming import NameParts, file_name, guess
from ggferry.converters.plan import Options, Step, type_table
from ggferry.converters.receipt import what_was_read
from ggferry.converters.tokenizers.base import Tokenizer
from ggferry.formats.gguf_values import Value
from ggferry.quant.file_types import file_type_of
