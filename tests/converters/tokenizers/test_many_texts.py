"""What llama.cpp makes of thousands of texts, for every kind of vocabulary: the ids that our rules foretell."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.building_blocks.unassigned_signs import unassigned
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.in_llama_cpp import LATER, LATER_TEXTS, runtime, split_differently
from ggferry.converters.tokenizers.llama_cpp_limits import differences
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.gguf.values import boolean, string
from ggferry.formats.gguf.write import write_gguf
from helpers.many_texts import many_texts
from helpers.third_party_fixtures import FIXTURES, ROOT

FOLDERS = {path.name: path for path in sorted((FIXTURES / "tokenizers").iterdir()) if path.is_dir()}
FOLDERS |= {name: FIXTURES / "hf" / "ckpt" / name for name in ("bert", "falcon7b", "gemma2", "phi3", "rwkv6", "t5")}


@cache
def texts() -> list[str]:
    return many_texts()


def in_llama_cpp(tokenizer: Tokenizer, path: Path, wanted: list[str]) -> list[list[int]]:
    """Its ids of texts, of a file with this vocabulary and nothing else."""
    keys = {"general.architecture": string("bert" if tokenizer.model == "bert" else "llama")} | dict(tokenizer.to_kv())
    keys |= {f"tokenizer.ggml.add_{name}_token": boolean(False) for name in ("bos", "eos", "sep")}
    write_gguf(path, keys, [])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "helpers" / "llama_vocabulary.py"), str(path)],
        input=json.dumps(wanted).encode(),
        capture_output=True,
        check=True,
    )
    found: list[list[int]] = json.loads(done.stdout)
    return [ids[1:-1] for ids in found] if tokenizer.model == "bert" else found


def assert_foretold(tokenizer: Tokenizer, path: Path) -> None:
    theirs, own = runtime(tokenizer), encoder(tokenizer)
    found = in_llama_cpp(tokenizer, path, texts())
    apart = [
        text
        for text, ids in zip(texts(), found, strict=True)
        if ids != (own.encode(text, bos=False) if theirs is None else theirs.encode(text))
    ]
    assert len(texts()) > 2500 and apart == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_every_kind_is_cut_as_foretold(name: str, tmp_path: Path) -> None:
    assert_foretold(load(str(FOLDERS[name]), rows=300 if name == "rwkv6" else None), tmp_path / "x.gguf")


def trained(pre: str, folder: Path) -> tuple[Library, Tokenizer]:
    """A vocabulary in which a blank is merged with the first bytes of a symbol, as DeepSeek's and Qwen's is."""
    library = Library(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in find_pre(pre).chain]
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    signs = ["a 🚀 🦙 ☀ ✅ Ж Я ბ 𐖼", "aЖ éЯ e\u0301n\u0303 1٣ ٣٤ ☀☀ 🚀🦙 aბ aᄀ aም aḀ aἀ aᐁ aᚠ"] * 200
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(signs, trainer)
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    return library, load(str(folder))


@pytest.mark.parametrize(
    "pre", ["deepseek-v3", *(pytest.param(pre, marks=pytest.mark.slow) for pre in ("gpt-2", "qwen2", "llama-bpe"))]
)
def test_signs_of_later_unicode_are_said(pre: str, tmp_path: Path) -> None:
    library, tokenizer = trained(pre, tmp_path / "hf")
    assert split_differently(tokenizer) == (LATER,)
    (said,) = differences(tokenizer)
    assert LATER in said and "its tables of Unicode are of version 15" in said
    wanted = [text for text, _ in LATER_TEXTS]
    found = in_llama_cpp(tokenizer, tmp_path / "y.gguf", wanted)
    theirs = runtime(tokenizer)
    assert theirs is not None and found == [theirs.encode(text) for text in wanted]
    assert found != [one.ids for one in library.encode_batch(wanted, add_special_tokens=False)]


def test_a_vocabulary_without_such_merges_has_nothing_to_say() -> None:
    assert differences(load(str(FOLDERS["bpe_gpt2"]))) == ()


def test_rwkv_finds_the_names_of_control_tokens(tmp_path: Path) -> None:
    tokenizer = load(str(FOLDERS["rwkv6"]), rows=300)
    (said,) = differences(tokenizer)
    assert "finds the names of control tokens in plain text" in said and "'<s>'" in said
    (found,) = in_llama_cpp(tokenizer, tmp_path / "x.gguf", ["a <s>"])
    theirs = runtime(tokenizer)
    assert theirs is not None and found == theirs.encode("a <s>") != encoder(tokenizer).encode("a <s>", bos=False)


def test_the_table_is_llama_cpps() -> None:
    """Signs that Unicode 15 has, and those that came later."""
    assert not unassigned().search("aЖ1☀🚀𓀀\ue000\U0001fae8") and unassigned().fullmatch("\u0378")
    assert all(unassigned().search(text) and not unassigned().search(like) for text, like in LATER_TEXTS)
