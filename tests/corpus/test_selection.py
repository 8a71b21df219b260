"""What `fixtures/` has of the corpus is the corpus's: files byte for byte, records of GGUF files key by key."""

from __future__ import annotations

import json

import pytest

from helpers.peers import is_record, record_of
from helpers.third_party_fixtures import CORPUS, FIXTURES

pytestmark = pytest.mark.corpus
OURS = ("README.md", "mixtures.json", "tinyllama-q2_k.tensors.txt", "MANIFEST.json", "QUANT_MIX.json.gz")
STATISTICS = FIXTURES / "quantize" / "statistics"  # made by functions of llama.cpp compiled by themselves
PATHS = [
    path
    for path in sorted(FIXTURES.rglob("*"))
    if path.is_file() and path.name not in OURS and path.parent != STATISTICS
]


def test_every_file_is_the_corpus_s() -> None:
    assert CORPUS is not None
    for path in (path for path in PATHS if not is_record(path)):
        assert (CORPUS / path.relative_to(FIXTURES)).read_bytes() == path.read_bytes(), path


def test_every_record_is_of_the_corpus_s_file() -> None:
    assert CORPUS is not None
    records = [path for path in PATHS if is_record(path)]
    assert len(records) > 60
    for path in records:
        kept = json.loads(path.read_text())
        found = record_of(CORPUS / path.relative_to(FIXTURES).with_suffix(""), kept["source"], kept["outtype"])
        assert kept == json.loads(json.dumps(found | {"imatrix": kept["imatrix"]})), path
