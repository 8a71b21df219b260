"""From sidecar files to the tokenizer: dispatch, roles, flags, templates, repairs, and what today's tool wrote."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.converters.tokenizers import sample_texts as texts
from ggferry.converters.tokenizers import tokenizer as base
from ggferry.converters.tokenizers.building_blocks import (
    byte_level as bytelevel,
)
from ggferry.converters.tokenizers.building_blocks import (
    sentencepiece_proto as spm_file,
)
from ggferry.converters.tokenizers.building_blocks.added_tokens import Added
from ggferry.converters.tokenizers.encoders import sentencepiece_bpe as spm
from ggferry.converters.tokenizers.files import tiktoken
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    GgferryError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    RefusedError,
    UnknownFormatError,
    UnsupportedError,
)
from helpers.peers import metadata_of
from helpers.third_party_fixtures import cases, hf_models, record, witness

FIXTURES = Path(__file__).parents[3] / "fixtures" / "tokenizers"


def write(folder: Path, **files: Any) -> str:
    """`tokenizer_json={…}` becomes tokenizer.json in `folder`; strings and bytes are written as they are."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_json", ".json").replace("_txt", ".txt").replace(
            "_model", ".model"
        ).replace("_jinja", ".jinja")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(folder)


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / name / "tokenizer.json").read_text())
    return found


def entry(token: int, content: str, special: bool = False) -> dict[str, Any]:
    """A token of tokenizer.json's added_tokens."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": content, **flags, "special": special}


def type_at(tokenizer: Tokenizer, token: int) -> int:
    return tokenizer.type_of(token)


# Where ours differs from convert_hf_to_gguf.py on purpose: roles it takes from a config whose ids point at ordinary
# pieces or contradict the tokenizer, and roles and flags it leaves to the loader's defaults.
STATED_MORE = {
    "unknown_token_id",
    "cls_token_id",
    "separator_token_id",
    "add_space_prefix",
    "add_bos_token",
    "add_eos_token",
    "rwkv.world",
}
KNOWN = {
    "deepseek2": {"bos_token_id"},
    "olmo": {"padding_token_id"},
    "granite": {"padding_token_id"},
    "gemma2": {"bos_token_id", "eos_token_id"},
    "rwkv6": {"chat_template"},
}


@pytest.mark.parametrize("name", cases(hf_models(), "hf/out/{0}/{0}.f32.gguf"))
def test_keys_are_those_of_todays_tool_where_it_is_right(name: str) -> None:
    told = record(f"hf/out/{name}/{name}.f32.gguf")
    rows = next(tensor["shape"][0] for tensor in told["tensors"] if tensor["name"] == "token_embd.weight")
    ours = load(str(witness(f"hf/ckpt/{name}")), rows=rows).to_kv()
    theirs = {key: value for key, value in metadata_of(told).items() if key.startswith("tokenizer.")}
    assert len(theirs) >= 5
    for key in sorted({*ours, *theirs}):
        short = key.removeprefix("tokenizer.").removeprefix("ggml.")
        if short in KNOWN.get(name, ()) or (key not in theirs and short in STATED_MORE):
            continue
        value = ours[key].data
        assert (tuple(value) if isinstance(value, bytes) else value) == theirs[key].data, key


def test_every_checkpoint_tokenizes_as_its_source_did(fixtures: Path) -> None:
    """tok_oracle.json names the checkpoint each tokenizer belongs to: 15 of 15 through that folder too."""
    for entry in json.loads((fixtures / "tokenizers" / "tok_oracle.json").read_text()).values():
        folder = fixtures / "hf" / "ckpt" / entry["gguf"]
        if folder.is_dir():
            encoder = base.encoder(Tokenizer.from_kv(load(str(folder)).to_kv()))
            for row in entry["rows"]:
                assert encoder.encode(row["text"], bos=False, special=True) == row["hf"]


def test_pre_is_derived_and_says_how() -> None:
    found = {name: load(str(FIXTURES / name)) for name in sorted(os.listdir(FIXTURES)) if name.startswith("bpe_")}
    assert {name: one.pre for name, one in found.items()} == {
        "bpe_bloom": "bloom",
        "bpe_commandr": "starcoder",
        "bpe_falcon": "falcon",
        "bpe_gpt2": "gpt-2",
        "bpe_llama3": "llama-bpe",
        "bpe_qwen2": "qwen2",
        "bpe_starcoder": "starcoder",
    }
    assert all("proved" in one.origins["pre"] for one in found.values())
    assert any("NFC" in note for note in found["bpe_qwen2"].notes)


CL100K_OLD = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("name", "pattern", "ignore_merges", "pre"),
    [
        ("bpe_llama3", CL100K_OLD, True, "llama-bpe"),
        ("bpe_llama3", CL100K_OLD, False, "smaug-bpe"),
        (
            "bpe_qwen2",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}]+["
            "\r\n"
            r"]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+",
            False,
            "qwen2",
        ),
    ],
)
def test_other_spellings_of_a_pattern_are_the_same(
    tmp_path: Path, name: str, pattern: str, ignore_merges: bool, pre: str
) -> None:
    changed = document(name)
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    changed["model"]["ignore_merges"] = ignore_merges
    assert load(write(tmp_path, tokenizer_json=changed)).pre == pre


def test_an_unknown_pattern_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    changed = document("bpe_qwen2")
    step = changed["pre_tokenizer"]["pretokenizers"][0]
    step["pattern"]["Regex"] = step["pattern"]["Regex"].replace(r"\p{N}", r"\p{N}{1,5}", 1)
    folder = write(tmp_path, tokenizer_json=changed)
    with pytest.raises(UnsupportedError, match=r"nearest: \S+ \(\d+ of \d+ texts equal\).*--pre NAME") as caught:
        load(folder)
    assert caught.value.exit_code == 4
    forced = load(folder, pre="llama-bpe")
    assert forced.pre == "llama-bpe" and forced.origins["pre"] == "--pre"
    with pytest.raises(UnsupportedError, match="llama-bpe"):
        load(folder, pre="llama-bpee")


def test_a_pre_that_only_looks_right_is_refused(tmp_path: Path) -> None:
    # The chain is falcon's, but the vocabulary merges a space and a digit, which falcon's steps never join
    changed = document("bpe_falcon")
    vocabulary = changed["model"]["vocab"]
    vocabulary["Ġ1"] = 400
    changed["model"]["merges"].insert(0, ["Ġ", "1"])
    with pytest.raises(InconsistentError, match="looks like 'falcon'"):
        load(write(tmp_path, tokenizer_json=changed))


def test_a_normalizer_that_changes_plain_text_is_refused(tmp_path: Path) -> None:
    changed = document("bpe_gpt2")
    changed["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    folder = write(tmp_path, tokenizer_json=changed)
    with pytest.raises(UnsupportedError, match="Lowercase"):
        load(folder)
    assert any("Lowercase" in note for note in load(folder, pre="gpt-2").notes)


def test_merges_in_both_forms_are_the_same(tmp_path: Path) -> None:
    changed = document("bpe_gpt2")
    pairs = load(write(tmp_path / "a", tokenizer_json=changed))
    changed["model"]["merges"] = [" ".join(merge) for merge in changed["model"]["merges"]]
    assert load(write(tmp_path / "b", tokenizer_json=changed)).to_kv() == pairs.to_kv()


@pytest.mark.parametrize("merge", ["Ġ a b", "Ġa", ["Ġ"], ["Ġ", "a", "b"], ["Ġ", ""], 7, None, "Ġ 世", {"Ġ": "a"}])
def test_malformed_merges_are_refused(tmp_path: Path, merge: object) -> None:
    changed = document("bpe_gpt2")
    changed["model"]["merges"][3] = merge
    with pytest.raises(CorruptError, match="merge 3"):
        load(write(tmp_path, tokenizer_json=changed))


MUTATIONS: dict[str, tuple[Callable[[dict[str, Any]], object], type[GgferryError]]] = {
    "no model": (lambda d: d.pop("model"), CorruptError),
    "model of another type": (lambda d: d["model"].update(type="WordLevel"), UnsupportedError),
    "vocab a list": (lambda d: d["model"].update(vocab=[]), CorruptError),
    "id a string": (lambda d: d["model"]["vocab"].update({"!": "0"}), OutOfRangeError),
    "id negative": (lambda d: d["model"]["vocab"].update({"!": -1}), OutOfRangeError),
    "id enormous": (lambda d: d["model"]["vocab"].update({"!": 10**9}), OutOfRangeError),
    "id a bool": (lambda d: d["model"]["vocab"].update({"!": True}), OutOfRangeError),
    "two tokens, one id": (lambda d: d["model"]["vocab"].update({"!": 1}), DuplicateError),
    "merges a string": (lambda d: d["model"].update(merges="a b"), CorruptError),
    "suffix": (lambda d: d["model"].update(end_of_word_suffix="</w>"), UnsupportedError),
    "added a dict": (lambda d: d.update(added_tokens={"a": 1}), CorruptError),
    "added without content": (lambda d: d.update(added_tokens=[{"id": 5}]), CorruptError),
    "added far away": (lambda d: d.update(added_tokens=[{"id": 2**31, "content": "x"}]), OutOfRangeError),
    "unknown step": (lambda d: d.update(pre_tokenizer={"type": "UnicodeScripts"}), UnsupportedError),
    "step a string": (lambda d: d.update(pre_tokenizer="ByteLevel"), CorruptError),
    "sequence without steps": (lambda d: d.update(pre_tokenizer={"type": "Sequence"}), CorruptError),
    "pattern that does not compile": (
        lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}}),
        UnsupportedError,
    ),
    "pattern a number": (lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": 3}), CorruptError),
    "unknown normalizer": (lambda d: d.update(normalizer={"type": "Nmt"}), UnsupportedError),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_malformed_tokenizer_json(tmp_path: Path, name: str) -> None:
    mutate, error = MUTATIONS[name]
    changed = document("bpe_gpt2")
    mutate(changed)
    with pytest.raises(error):
        load(write(tmp_path, tokenizer_json=changed))


TREE = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 500) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "model", "vocab", "merges", "added_tokens", "pre_tokenizer", "pretokenizers", "pattern", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(where=st.sampled_from(["model", "added_tokens", "normalizer", "pre_tokenizer", "post_processor"]), value=TREE)
def test_any_json_gives_a_result_or_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, where: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-json"
    changed = document("bpe_gpt2")
    changed[where] = value
    try:
        load(write(folder, tokenizer_json=changed, tokenizer_config_json={"added_tokens_decoder": {}}))
    except GgferryError:
        return


def test_gaps_between_ids_are_filled() -> None:
    tokenizer = with_added(load(str(FIXTURES / "bpe_gpt2")), [Added(405, "<|new|>")])
    assert tokenizer.tokens[400:] == ("[PAD400]", "[PAD401]", "[PAD402]", "[PAD403]", "[PAD404]", "<|new|>")
    assert tokenizer.types is not None and tokenizer.types[400:] == (5,) * 5 + (3,)


def test_vocabulary_meets_the_embedding(tmp_path: Path) -> None:
    folder = str(FIXTURES / "bpe_gpt2")
    assert load(folder, rows=402).tokens[400:] == ("[PAD400]", "[PAD401]")
    added = load(folder, rows=399)
    assert len(added.tokens) == 399 and added.ids == {} and "repair 'trim-added'" in added.notes[-1]
    with pytest.raises(RefusedError, match="--trim-vocab"):
        load(folder, rows=398)
    assert len(load(folder, rows=398, trim=True).tokens) == 398


def test_roles_come_from_names_before_numbers(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        tokenizer_json=document("bpe_llama3"),
        tokenizer_config_json={"bos_token": {"content": "<|begin_of_text|>"}, "pad_token": "absent"},
        special_tokens_map_json={"eos_token": "<|eot_id|>"},
        config_json={"bos_token_id": 5, "eos_token_id": [398, 399], "pad_token_id": 0, "sep_token_id": 10**6},
        generation_config_json={"eos_token_id": [398, 399], "unk_token_id": 398},
    )
    tokenizer = load(folder)
    assert tokenizer.ids == {"bos": 397, "eos": 399, "unk": 398}
    assert tokenizer.origins["eos"] == "special_tokens_map.json"
    assert any("ordinary piece '!'" in note for note in tokenizer.notes)
    ends = load(write(tmp_path, special_tokens_map_json={"eos_token": "<|end_of_text|>"}))
    assert ends.ids["eos"] == 398 and ends.ids["eot"] == 399


def test_flags_come_from_the_post_processor_then_the_config(tmp_path: Path) -> None:
    changed = document("bpe_llama3")
    config = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "add_bos_token": False,
        "add_eos_token": True,
    }
    assert load(write(tmp_path, tokenizer_json=changed, tokenizer_config_json=config)).flags["add_bos"] is True
    changed["post_processor"] = None
    stated = load(write(tmp_path, tokenizer_json=changed)).flags
    assert (stated["add_bos"], stated["add_eos"]) == (False, True)
    changed["post_processor"] = {
        "type": "RobertaProcessing",
        "cls": ["<|begin_of_text|>", 397],
        "sep": ["<|eot_id|>", 399],
    }
    assert load(write(tmp_path, tokenizer_json=changed)).flags["add_sep"] is True
    # add_bos without a bos token: llama.cpp refuses to load such a file
    bare = load(write(tmp_path, tokenizer_json=document("bpe_gpt2"), tokenizer_config_json={"add_bos_token": True}))
    assert bare.flags["add_bos"] is False and any("refuse" in note for note in bare.notes)


def test_every_chat_template_is_carried_as_text(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "{{ a }}"}, {"name": "tool use", "template": "t"}]}
    folder = write(
        tmp_path,
        tokenizer_json=document("bpe_gpt2"),
        tokenizer_config_json=config,
        additional_chat_templates__rag_jinja="{% raise %}",
    )
    assert load(folder).templates == {"": "{{ a }}", "tool_use": "t", "rag": "{% raise %}"}
    assert load(write(tmp_path, chat_template_json={"chat_template": "json"})).templates[""] == "json"
    last = load(write(tmp_path, chat_template_jinja="jinja\n"))
    assert last.templates[""] == "jinja\n" and last.origins["chat_template"] == "chat_template.jinja"
    kv = last.to_kv()
    assert kv["tokenizer.chat_templates"].data == ("rag", "tool_use")
    assert kv["tokenizer.chat_template.tool_use"].data == "t"


def test_tokenizer_json_travels_on_request() -> None:
    folder = str(FIXTURES / "bpe_gpt2")
    assert load(folder).huggingface_json is None
    assert json.loads(load(folder, keep_json=True).huggingface_json or "") == document("bpe_gpt2")


def test_sidecars_may_come_as_a_mapping() -> None:
    files = {f"any-{i}": str(path) for i, path in enumerate(sorted((FIXTURES / "bpe_llama3").iterdir()))}
    assert load(files).to_kv() == load(str(FIXTURES / "bpe_llama3")).to_kv()
    chosen = {"tokenizer.model": str(FIXTURES / "spm_unigram" / "spiece.model")}
    assert load(files | chosen).model == "t5"


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"tokenizer\.json"):
        load(write(tmp_path, config_json={}))
    with pytest.raises(NotFoundError):
        load(str(tmp_path / "absent"))
    with pytest.raises(UnknownFormatError, match="git-LFS"):
        load(write(tmp_path, tokenizer_model="version https://git-lfs.github.com/spec/v1\noid sha256:0\n"))


def test_wordpiece_from_vocab_txt_equals_tokenizer_json(tmp_path: Path) -> None:
    words = (FIXTURES / "wordpiece" / "vocab.txt").read_text()
    config = json.loads((FIXTURES / "wordpiece" / "tokenizer_config.json").read_text())
    folder = write(tmp_path, vocab_txt=words, tokenizer_config_json=config)
    assert load(folder).to_kv() == load(str(FIXTURES / "wordpiece")).to_kv()
    with pytest.raises(CorruptError, match="duplicate"):
        load(write(tmp_path, vocab_txt=words + "the\nthe\n"))


def test_vocab_json_and_merges_txt(tmp_path: Path) -> None:
    whole = document("bpe_gpt2")
    vocabulary = {text: token for text, token in whole["model"]["vocab"].items() if token < 399}
    merges = "#version: 0.2\n" + "\n".join(" ".join(merge) for merge in whole["model"]["merges"]) + "\n"
    decoder = {"399": {"content": "<|endoftext|>", "special": True}}
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "added_tokens_decoder": decoder,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    }
    folder = write(tmp_path, vocab_json=vocabulary, merges_txt=merges, tokenizer_config_json=config)
    assert load(folder).to_kv() == load(str(FIXTURES / "bpe_gpt2")).to_kv()
    write(tmp_path, tokenizer_config_json={**config, "tokenizer_class": "Mystery"})
    with pytest.raises(UnsupportedError, match="--pre NAME"):
        load(folder)
    assert load(folder, pre="olmo").pre == "olmo"


def llama2_document(scheme: str) -> tokenizers.Tokenizer:
    """The oracle's SentencePiece BPE written the way transformers writes Llama 2's tokenizer.json."""
    model = spm_file.read_model(str(FIXTURES / "spm_bpe" / "tokenizer.model"))
    vocabulary = {piece.text: token for token, piece in enumerate(model.pieces)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece in model.pieces:
        for at in range(1, len(piece.text)):
            left, right = piece.text[:at], piece.text[at:]
            if left in vocabulary and right in vocabulary:
                merges.append((-piece.score, vocabulary[left], vocabulary[right], left, right))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    whole = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=pairs, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    if scheme == "prepend":
        steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
        whole.normalizer = tokenizers.normalizers.Sequence(steps)
    else:
        whole.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace("▁", scheme, False)
    names = ["<unk>", "<s>", "</s>"]
    whole.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in names])
    return whole


def test_llama2_tokenizer_json_gives_what_tokenizer_model_gives(tmp_path: Path) -> None:
    whole = llama2_document("prepend")
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    ours = load(write(tmp_path, tokenizer_json=whole.to_str(), tokenizer_config_json=config))
    model = spm.from_model(spm_file.read_model(str(FIXTURES / "spm_bpe" / "tokenizer.model")))
    assert ours.to_kv() == model.to_kv()
    encoder = base.encoder(ours)
    for text in texts.TEXTS:
        ids = whole.encode(text, add_special_tokens=False).ids
        assert encoder.encode(text, bos=False, special=True) == ids, text


@pytest.mark.parametrize(("scheme", "prefix"), [("first", True), ("never", False)])
def test_llama2_with_metaspace(tmp_path: Path, scheme: str, prefix: bool) -> None:
    ours = load(write(tmp_path, tokenizer_json=llama2_document(scheme).to_str()))
    assert ours.model == "llama" and ours.flags["add_space_prefix"] is prefix
    assert any("begins with a space" in note for note in ours.notes) is prefix


def test_scores_that_cannot_follow_the_merges_are_refused(tmp_path: Path) -> None:
    changed = json.loads(llama2_document("prepend").to_str())
    changed["model"]["merges"] = [merge for merge in changed["model"]["merges"] if "".join(merge) != "▁the"]
    with pytest.raises(InconsistentError, match=r"tokenizer\.model has the scores"):
        load(write(tmp_path, tokenizer_json=changed))


def tiktoken_lines() -> bytes:
    ranked = sorted((token, text) for text, token in document("bpe_llama3")["model"]["vocab"].items())
    return b"".join(base64.b64encode(bytelevel.unspell(text) or b"") + b" %d\n" % rank for rank, text in ranked)


def test_tiktoken_of_llama3_gets_its_merges_back(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_model=tiktoken_lines())
    ours, source = load(folder), document("bpe_llama3")
    assert ours.merges == tuple(" ".join(merge) for merge in source["model"]["merges"])
    assert ours.pre == "llama-bpe" and len(ours.tokens) == 397 + 256
    assert [ours.tokens[ours.ids[role]] for role in ("bos", "eos", "eot", "eom")] == [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
    ]
    library = tokenizers.Tokenizer.from_file(str(FIXTURES / "bpe_llama3" / "tokenizer.json"))
    for text in texts.TEXTS:
        if "<|" not in text:
            ids = library.encode(text, add_special_tokens=False).ids
            assert base.encoder(ours).encode(text, bos=False) == ids
    assert len(load(folder, rows=400 + 8).tokens) == 408
    # LLaMA 3.0: 128256 ids, the same places, other names for what was still reserved
    first = load(write(tmp_path, params_json={"use_scaled_rope": False}))
    assert "eom" not in first.ids and first.tokens[-1] == "<|reserved_special_token_250|>"
    assert ours.tokens[-1] == "<|reserved_special_token_247|>"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"IQ== 0\nIg== x\n", CorruptError),
        (b"IQ== 0\n!! 1\n", CorruptError),
        (b"IQ== 0\nIQ== 1\n", DuplicateError),
        (b"IQ== 0\nIg== 5\n", InconsistentError),
        (b"YWI= 0\n", InconsistentError),
        (b"IQ== 0\nIg==\n", CorruptError),
    ],
)
def test_malformed_tiktoken(tmp_path: Path, data: bytes, error: type[GgferryError]) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    assert tiktoken.is_tiktoken(data)
    with pytest.raises(error):
        tiktoken.load_tiktoken(str(path))


def test_unigram_from_tokenizer_json(tmp_path: Path) -> None:
    model = spm_file.read_model(str(FIXTURES / "spm_unigram" / "spiece.model"))
    whole = {
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[piece.text, piece.score] for piece in model.pieces]},
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "added_tokens": [entry(0, "<pad>", special=True), entry(1, "</s>", special=True)],
    }
    names = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "pad_token": "<pad>"}
    ours = load(write(tmp_path / "json", tokenizer_json=whole, tokenizer_config_json=names))
    spiece = (FIXTURES / "spm_unigram" / "spiece.model").read_bytes()
    assert ours.to_kv() == load(write(tmp_path / "model", spiece_model=spiece, tokenizer_config_json=names)).to_kv()
    assert ours.flags["add_eos"] is True and ours.type_of(2) == TokenType.UNKNOWN
    whole["model"]["vocab"][7] = ["x", "y"]  # type: ignore[index]
    with pytest.raises(CorruptError, match="piece 7"):
        load(write(tmp_path / "json", tokenizer_json=whole))


def test_rwkv_world(tmp_path: Path) -> None:
    singles = "".join(f"{i + 1} {bytes([i])!r} 1\n" if i > 127 else f"{i + 1} {chr(i)!r} 1\n" for i in range(256))
    words = singles + "257 '\\n\\n' 2\n258 ' the' 4\n259 '天' 3\n260 '\\u3000x' 4\n"
    folder = write(tmp_path, rwkv_vocab_v20230424_txt=words)
    tokenizer = load(folder, rows=270)
    assert tokenizer.tokens[1:3] == ("\\x00", "\\x01") and tokenizer.tokens[260] == "\\xe3\\x80\\x80x"
    assert tokenizer.ids == {"bos": 0, "eos": 0, "eot": 257} and len(tokenizer.tokens) == 270
    encoder = base.encoder(Tokenizer.from_kv(tokenizer.to_kv()))
    assert encoder.encode("a the天\n\n") == [98, 258, 259, 257]
    assert tokenizer.to_kv()["tokenizer.rwkv.world"].data == words  # the specification: verbatim
    assert all(encoder.decode(encoder.encode(text)) == text.encode() for text in texts.TEXTS)
    with pytest.raises(CorruptError, match="line 261"):
        load(write(tmp_path, rwkv_vocab_v20230424_txt=words + "261 __import__('os') 3\n"))
