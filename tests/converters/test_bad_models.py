"""Models whose files are sound and which are wrong all the same: S01–S12 of GGUF, H01–H12 of Hugging Face's folders.

Each is given to `convert` and ends in one of our errors with nothing written, or in a model and a remark.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ggferry
from ggferry.formats import errors as e
from ggferry.formats.gguf.values import Value, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.service.library.answers import Conversion
from helpers.checkpoints import write_checkpoint
from helpers.hf_llama import hf_llama
from helpers.third_party_fixtures import FIXTURES


@dataclass
class Held:
    """What a GGUF file holds; of each tensor its name, block type, shape and bytes."""

    keys: dict[str, Value]
    rows: list[Any]


Edit = Callable[[Held], object]


def refused(source: Path, kind: type[e.GgferryError], words: str, **options: Any) -> None:
    """Convert, and demand this error of ours, in one line, with nothing written."""
    before = sorted(os.listdir(source.parent))
    with pytest.raises(kind, match=words) as caught:
        ggferry.convert(source, source.parent / "out.gguf", verify="fast", **options)
    assert caught.value.path and Path(caught.value.path).is_relative_to(source.parent)
    assert "\n" not in str(caught.value) and sorted(os.listdir(source.parent)) == before


# --- GGUF ----------------------------------------------------------------------------------------------------------

GGML = "tokenizer.ggml."
QUERY = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound LLaMA with SentencePiece's scores, one with merges, and the first quantized."""
    folder = tmp_path_factory.mktemp("made")
    names = {name: folder / f"{name}.gguf" for name in ("scored", "merged", "q8_0")}
    ggferry.convert(hf_llama(folder / "scored"), names["scored"], verify="none")
    ggferry.convert(write_checkpoint(folder / "merged", FIXTURES), names["merged"], verify="none")
    ggferry.convert(names["scored"], names["q8_0"], verify="none", outtype="q8_0")
    return names


def changed(good: Path, to: Path, edit: Edit) -> Path:
    """The file with other keys or tensors."""
    found, data = open_gguf(str(good)), good.read_bytes()
    spans = [(name, ref, ref.spans[0].offset) for name, ref in found.tensors.items()]
    rows = [(name, ref.type, ref.shape, data[at : at + ref.nbytes]) for name, ref, at in spans]
    held = Held(dict(found.metadata), rows)
    found.close()
    edit(held)
    write_gguf(to, held.keys, held.rows)
    return to


def number(key: str, value: int) -> Edit:
    return lambda held: held.keys.update({key: u32(value)})


def without(*names: str) -> Edit:
    return lambda held: [held.keys.pop(f"llama.{name}") for name in names]


def items(change: Callable[[list[Any]], list[Any]], *names: str) -> Edit:
    """Change arrays of the tokenizer."""

    def run(held: Held) -> None:
        for key in (GGML + name for name in names):
            held.keys[key] = replace(held.keys[key], data=tuple(change(list(held.keys[key].data))))

    return run


def spelled(text: str) -> Edit:
    """Spell the token of the byte 0x41 otherwise."""
    return items(lambda tokens: [text if token == "<0x41>" else token for token in tokens], "tokens")


def numbers(change: Callable[[bytearray], object]) -> Edit:
    """Change the bytes of one matrix."""

    def run(held: Held) -> None:
        [at] = [at for at, row in enumerate(held.rows) if row[0] == QUERY]
        data = bytearray(held.rows[at][3])
        change(data)
        held.rows[at] = (*held.rows[at][:3], bytes(data))

    return run


def weight(value: float) -> Edit:
    """Make the sixth weight of the first row another."""
    return numbers(lambda data: struct.pack_into("<f", data, 20, value))


def scale(bits: int) -> Edit:
    """Make the scale of the first block of a Q8_0 another."""
    return numbers(lambda data: struct.pack_into("<H", data, 0, bits))


def longer(held: Held) -> None:
    """Add two tokens."""
    items(lambda texts: [*texts, "<a>", "<b>"], "tokens")(held)
    items(lambda types: [*types, 3, 3], "token_type")(held)


def deep(held: Held) -> None:
    """Make 513 small blocks of the first one's tensors, where llama.cpp has room for 512."""
    number("llama.block_count", 513)(held)
    first = [row for row in held.rows if row[0].startswith("blk.0.")]
    held.rows[:] = [row for row in held.rows if not row[0].startswith("blk.")]
    held.rows += [(row[0].replace("blk.0.", f"blk.{n}."), *row[1:]) for n in range(513) for row in first]


def zeros(data: bytearray) -> None:
    data[:] = bytes(len(data))


ALL = ("tokens", "scores", "token_type")
EPSILON = "attention.layer_norm_rms_epsilon"
S_LIST: dict[str, tuple[str, Edit, type[e.GgferryError], str]] = {
    "S01 block_count": ("scored", without("block_count"), e.MissingError, "what block_count is"),
    # Both were once taken to be LLaMA 2's, "in a legacy file", whatever the model was.
    "S01 context_length": ("scored", without("context_length"), e.MissingError, "what context_length is"),
    "S01 epsilon": ("scored", without(EPSILON), e.MissingError, f"what {EPSILON} is.*--hparam {EPSILON}"),
    "S01 all that tells of heads": (
        "scored",
        without("attention.head_count", "attention.head_count_kv", "rope.dimension_count"),
        e.MissingError,
        r"what attention\.head_count is",
    ),
    **{
        f"S02 {stated} blocks": (
            "scored",
            number("llama.block_count", stated),
            e.MissingError,
            f"2 blocks, expected {stated} ",
        )
        for stated in (0, 1, 3, 513)
    },
    "S02 more blocks than any model has": (
        "scored",
        number("llama.block_count", 2**32 - 1),
        e.OutOfRangeError,
        "found 4294967295, expected 4096 or fewer",
    ),
    **{
        f"S03 {heads} heads": ("scored", number("llama.attention.head_count", heads), e.ShapeError, "n_head.*found")
        for heads in (0, 3, 5, 2**32 - 1)
    },
    "S04 more heads of keys than of queries": (
        "scored",
        number("llama.attention.head_count_kv", 8),
        e.ShapeError,
        "attn_k.*head_dim=128",
    ),
    "S04 heads of keys that do not divide": (
        "scored",
        number("llama.attention.head_count_kv", 3),
        e.ShapeError,
        "n_head_kv",
    ),
    "S05 fewer tokens than rows": (
        "scored",
        items(lambda data: data[:-5], *ALL),
        e.InconsistentError,
        "found 507 tokens, expected 512",
    ),
    "S05 more tokens than rows": ("merged", longer, e.InconsistentError, "found 402 tokens, expected 400"),
    "S06 scores": ("scored", items(lambda data: data[:-1], "scores"), e.InconsistentError, "scores.*511, expected 512"),
    "S06 types": (
        "scored",
        items(lambda data: [*data, 1], "token_type"),
        e.InconsistentError,
        "token_type.*found 513, expected 512",
    ),
    "S07 bos": ("scored", number(GGML + "bos_token_id", 512), e.OutOfRangeError, "bos_token_id.*512, expected 0 "),
    "S07 eos": ("scored", number(GGML + "eos_token_id", 2**32 - 1), e.OutOfRangeError, "eos_token_id"),
    "S07 unknown": ("scored", number(GGML + "unknown_token_id", 10**6), e.OutOfRangeError, "unknown_token_id"),
    "S08 parts that are no tokens": (
        "merged",
        items(lambda data: [*data[:-1], "qqqq zzzz"], "merges"),
        e.InconsistentError,
        "merge 140 .* found qqqq zzzz",
    ),
    "S08 one part": (
        "merged",
        items(lambda data: ["ab", *data[1:]], "merges"),
        e.InconsistentError,
        "merge 0 .*found ab",
    ),
    "S09 a negative byte": ("scored", spelled("<0x-1>"), e.OutOfRangeError, "found <0x-1>, expected <0x00>"),
    "S09 no number": ("scored", spelled("<0xZZ>"), e.OutOfRangeError, "found <0xZZ>, expected <0x00>"),
    "S09 three digits": ("scored", spelled("<0x041>"), e.OutOfRangeError, "found <0x041>, expected <0x00>"),
    "S10 a weight is NaN": ("scored", weight(float("nan")), e.BadValueError, "column 5.*--allow-nonfinite"),
    "S10 a weight is infinite": ("scored", weight(float("inf")), e.BadValueError, "row 0, column 5"),
    "S10 a scale is NaN": ("q8_0", scale(0x7E00), e.BadValueError, f"{QUERY}.*row 0, column 0"),
    "S10 a scale is infinite": ("q8_0", scale(0xFC00), e.BadValueError, f"{QUERY}.*row 0, column 0"),
    "S12 a tensor is missing": (
        "scored",
        lambda held: held.rows.remove(next(row for row in held.rows if row[0] == QUERY)),
        e.MissingError,
        f"tensor '{QUERY}' missing",
    ),
}


@pytest.mark.parametrize("case", S_LIST)
def test_gguf_models_are_refused(case: str, made: dict[str, Path], tmp_path: Path) -> None:
    base, edit, kind, words = S_LIST[case]
    refused(changed(made[base], tmp_path / "bad.gguf", edit), kind, words)


@pytest.mark.parametrize("case", ["S01 what shapes tell", "S01 what --hparam tells"])
def test_keys_that_something_tells(case: str, made: dict[str, Path], tmp_path: Path) -> None:
    gone = ("embedding_length", "feed_forward_length", "attention.head_count") if "shapes" in case else (EPSILON,)
    bad = changed(made["scored"], tmp_path / "bad.gguf", without(*gone))
    plan = ggferry.plan(bad, **({} if "shapes" in case else {"hparams": [f"{EPSILON}=1e-5"]}))
    found = open_gguf(str(made["scored"])).metadata
    assert not plan.assumed
    assert all(plan.keys[f"llama.{name}"].value == pytest.approx(found[f"llama.{name}"].data) for name in gone)


CAVEATS: dict[str, tuple[str, Edit, str]] = {
    "S02 more blocks than llama.cpp has room for": ("q8_0", deep, "513 blocks, and it has room for 512"),
    "S11 all weights are zero": ("scored", numbers(zeros), f"zero in {QUERY}"),
    "S11 all blocks are zero": ("q8_0", numbers(zeros), f"zero in {QUERY}"),
    "S12 a tensor without a role": (
        "scored",
        lambda held: held.rows.append(("blk.0.surprise.weight", *held.rows[0][1:])),
        "no role in a llama model (blk.0.surprise.weight)",
    ),
}


@pytest.mark.parametrize("case", CAVEATS)
def test_gguf_models_that_are_odd(case: str, made: dict[str, Path], tmp_path: Path) -> None:
    """Carried as they are: a model may be like that, or be wanted like that, and its owner is told."""
    base, edit, words = CAVEATS[case]
    bad = changed(made[base], tmp_path / "bad.gguf", edit)
    if case.startswith("S02"):
        notes = ggferry.plan(bad).notes  # 513 blocks take a while to write
    else:
        notes = ggferry.convert(bad, tmp_path / "out.gguf", verify="fast").notes
    assert any(words in note for note in notes), notes


@pytest.mark.parametrize("case", ["S10 the largest scale", "S10 the largest scale, as F16"])
def test_absurd_scales(case: str, made: dict[str, Path], tmp_path: Path) -> None:
    """65504 times 127 is finite: kept where the type has room for it, and refused by name where it has not."""
    bad = changed(made["q8_0"], tmp_path / "bad.gguf", scale(0x7BFF))
    if case.endswith("F16"):
        refused(bad, e.BadValueError, f"{QUERY}.*beyond the range of F16.*bf16 or f32", outtype="f16")
    else:
        ggferry.convert(bad, tmp_path / "out.gguf", verify="fast")


# --- folders -------------------------------------------------------------------------------------------------------

TEMPLATE, OTHER = "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ messages[0].content }}"
TRAP = "open(__file__ + '.was-run', 'w')"
Change = Callable[[Path], object]


def merged(folder: Path) -> Path:
    """A sound model with tokenizer.json: 400 tokens, 141 merges."""
    return write_checkpoint(folder, FIXTURES)


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def document(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """Change a JSON file."""

    def run(folder: Path) -> None:
        held = json.loads((folder / name).read_text())
        change(held)
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(held))

    return run


def configured(**values: Any) -> Change:
    return document("config.json", lambda config: config.update(values))


def file(name: str, data: bytes | str | None) -> Change:
    """Replace a file; None: remove it."""

    def run(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return run


def weights(change: Callable[[dict[str, np.ndarray]], object]) -> Change:
    def run(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors")

    return run


def embedded(rows: int) -> Change:
    """Bring the embedding and the output to so many rows, and config.json with them."""

    def change(held: dict[str, np.ndarray]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            held[name] = np.concatenate([held[name], held[name]])[:rows]

    return both(weights(change), configured(vocab_size=rows))


def added(token: int, content: str) -> Change:
    """List another added token."""
    entry = {
        "id": token,
        "content": content,
        "special": True,
        "normalized": False,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
    }
    return document("tokenizer.json", lambda held: held["added_tokens"].append(entry))


def last_merge(merge: Any, form: Callable[[list[str]], Any] = list) -> Change:
    """Write the merges as pairs or (`" ".join`) as texts, the last of them another."""

    def change(held: dict[str, Any]) -> None:
        held["model"]["merges"] = [*(form(pair) for pair in held["model"]["merges"][:-1]), merge]

    return document("tokenizer.json", change)


def packed(parts: tuple[str, ...] = ("qweight", "qzeros", "scales"), **stated: Any) -> Change:
    """Put packed integers in the place of one matrix, and say so."""
    name = "model.layers.0.mlp.up_proj."

    def change(held: dict[str, np.ndarray]) -> None:
        del held[name + "weight"]
        held |= {name + part: np.zeros((8, 8), np.int32) for part in parts}

    return both(weights(change), configured(**({"quantization_config": stated} if stated else {})))


PATTERN = {
    "type": "Split",
    "pattern": {"Regex": r"\p{N}{1,7}|\p{L}+|[^\p{L}\p{N}]+"},
    "behavior": "Isolated",
    "invert": False,
}
LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
UNKNOWN = document(
    "tokenizer.json",
    lambda held: held.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [PATTERN, LETTERS]}),
)
H_LIST: dict[str, tuple[Callable[[Path], Path], Change, type[e.GgferryError], str]] = {
    "H01 no configuration": (merged, file("config.json", None), e.MissingError, "config.json does not say which"),
    "H01 not JSON": (merged, file("config.json", "<html>"), e.EncodingError, "config.json@0x0: not JSON"),
    "H01 no class": (
        merged,
        document("config.json", lambda held: (held.pop("architectures"), held.pop("model_type"))),
        e.MissingError,
        "say",
    ),
    "H01 an empty list": (merged, configured(architectures=[]), e.MissingError, "config.json does not say which"),
    "H02 an unknown class": (
        merged,
        configured(architectures=["SurpriseForCausalLM"], model_type="surprise"),
        e.UnsupportedError,
        "found SurpriseForCausalLM .*classes with a name like it",
    ),
    "H04 no tokenizer.json": (
        merged,
        file("tokenizer.json", None),
        e.MissingError,
        "tokenizer file was found.*tokenizer.json.*--tokenizer",
    ),
    "H04 no tokenizer.model": (hf_llama, file("tokenizer.model", None), e.MissingError, "no tokenizer file"),
    "H05 fewer rows than tokens": (
        merged,
        embedded(390),
        e.RefusedError,
        "400 tokens but the embedding 390 rows.*--trim-vocab",
    ),
    "H05 fewer rows than config.json says": (
        merged,
        both(embedded(390), configured(vocab_size=400)),
        e.ShapeError,
        r"found \(390, 48\).* n_vocab=400",
    ),
    "H06 a gap": (merged, both(added(405, "<gap>"), embedded(410)), e.InconsistentError, "<gap>.*found 405.*400"),
    "H06 an endless gap": (merged, added(10**9, "<gap>"), e.OutOfRangeError, "added token: found 1000000000"),
    "H06 an id of the vocabulary": (merged, added(5, "<base>"), e.InconsistentError, "<base>.*found 5, expected 400"),
    "H06 an id twice": (merged, added(397, "<twice>"), e.InconsistentError, "<twice>.*found 397, expected 400"),
    "H06 a negative id": (merged, added(-1, "<less>"), e.OutOfRangeError, "added token: found -1, expected 0"),
    "H07 no protobuf": (
        hf_llama,
        file("tokenizer.model", b"\xff" * 99),
        e.UnknownFormatError,
        "no. a SentencePiece model: found",
    ),
    "H07 a web page": (hf_llama, file("tokenizer.model", "<html>404</html>"), e.UnknownFormatError, "an HTML page"),
    "H07 empty": (hf_llama, file("tokenizer.model", b""), e.UnknownFormatError, "not a SentencePiece model"),
    "H08 a text of one token": (merged, last_merge("ab", " ".join), e.CorruptError, "not two tokens: found ab"),
    "H08 a text of three": (merged, last_merge("a b c", " ".join), e.CorruptError, "merge 140 is not two tokens"),
    "H08 a list of one": (merged, last_merge(["a"]), e.CorruptError, "merge 140 is not two tokens"),
    "H08 a list of three": (merged, last_merge(["a", "b", "c"]), e.CorruptError, "merge 140 is not two tokens"),
    "H08 a list of numbers": (merged, last_merge([1, 2]), e.CorruptError, "merge 140 is not two tokens"),
    "H08 a number": (merged, last_merge(7), e.CorruptError, "merge 140 is not two tokens: found 7"),
    "H08 unknown tokens": (merged, last_merge(["qqq", "zzz"]), e.CorruptError, "merge 140 .*found qqq"),
    "H08 both forms": (merged, last_merge("t h"), e.GgferryError, "tokenizer.json"),
    "H08 no list": (
        merged,
        document("tokenizer.json", lambda held: held["model"].update(merges={})),
        e.CorruptError,
        "merges",
    ),
    "H09 no known pre-tokenizer": (merged, UNKNOWN, e.UnsupportedError, "nearest: .*texts equal.*--pre NAME forces"),
    "H10 a template that is no text": (merged, file("chat_template.jinja", b"\xff"), e.EncodingError, "not UTF-8"),
    "H10 a template's JSON cut": (merged, file("chat_template.json", "{"), e.EncodingError, "chat_template.json"),
    "H11 a layer too many": (merged, configured(num_hidden_layers=3), e.MissingError, "expected 3 .*num_hidden"),
    "H11 a layer too few": (merged, configured(num_hidden_layers=1), e.MissingError, "expected 1 .*num_hidden"),
    "H11 heads that do not divide": (merged, configured(num_attention_heads=5), e.ShapeError, "q_proj.*found"),
    "H11 other heads": (merged, configured(num_attention_heads=8), e.ShapeError, "k_proj.*n_head_kv"),
    "H11 other heads of keys": (merged, configured(num_key_value_heads=6), e.ShapeError, r"n_head_kv\*head_dim=48"),
    "H11 tied, and an output of its own": (
        merged,
        configured(tie_word_embeddings=True),
        e.InconsistentError,
        "lm_head.weight.*tie_word_embeddings",
    ),
    "H11 not tied, and no output": (
        hf_llama,
        configured(tie_word_embeddings=False),
        e.MissingError,
        "'lm_head.weight' missing",
    ),
    "H12 a scheme nobody knows": (
        merged,
        packed(quant_method="surprise", bits=4),
        e.UnsupportedError,
        "found surprise, expected aqlm, awq.*gptq",
    ),
    "H12 packed and nothing says how": (
        merged,
        packed(("weight_packed", "weight_scale")),
        e.UnsupportedError,
        "no configuration says how.*weight_packed",
    ),
    "H12 GPTQ without a configuration whose shapes are none of its": (
        merged,
        packed(),
        e.UnsupportedError,
        "bits of .*qweight.* zero points are .*found 32, expected 2, 3, 4 or 8",
    ),
    "H12 GPTQ of other groups": (
        merged,
        packed(quant_method="gptq", bits=4, group_size=128),
        e.ShapeError,
        "groups of .*found 8, expected 1",
    ),
    "H12 AWQ with scales of integers": (
        merged,
        packed(quant_method="awq", bits=4, group_size=128, version="gemm"),
        e.UnsupportedError,
        "scales.*I32",
    ),
    "H12 bitsandbytes of another scheme's tensors": (
        merged,
        packed(quant_method="bitsandbytes", load_in_4bit=True),
        e.UnexpectedTensorError,
        "qweight",
    ),
}


@pytest.mark.parametrize("case", H_LIST)
def test_folders_are_refused(case: str, tmp_path: Path) -> None:
    make, change, kind, words = H_LIST[case]
    folder = make(tmp_path / "model")
    change(folder)
    refused(folder, kind, words)


@pytest.mark.parametrize("case", ["H05 more rows", "H07 unigram", "H08 texts", "H08 lists", "H09 forced"])
def test_folders_that_are_repaired(case: str, tmp_path: Path) -> None:
    """Sound, or made so in a way that is told."""
    folder = (hf_llama if case.startswith("H07") else merged)(tmp_path / "model")
    unigram = (FIXTURES / "tokenizers" / "spm_unigram" / "spiece.model").read_bytes()
    changes = {
        "H05 more rows": embedded(410),
        "H07 unigram": file("tokenizer.model", unigram),
        "H09 forced": UNKNOWN,
        "H08 texts": last_merge("a b", " ".join),
        "H08 lists": last_merge(["a", "b"]),
    }
    if case.startswith("H08"):
        last = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"][-1]
        changes = {"H08 texts": last_merge(" ".join(last), " ".join), "H08 lists": last_merge(last)}
    changes[case](folder)
    done = converted(folder, **({"pre": "llama-bpe"} if case == "H09 forced" else {}))
    keys = metadata(done)
    assert any("repair 'pad'" in note for note in done.notes) is (case in ("H05 more rows", "H07 unigram"))
    assert keys[GGML + "model"] == ("t5" if case == "H07 unigram" else "gpt2")
    assert len(keys[GGML + "tokens"]) == {"H05 more rows": 410, "H07 unigram": 512}.get(case, 400)


def converted(folder: Path, **options: Any) -> Conversion:
    return ggferry.convert(folder, folder.parent / "out.gguf", verify="fast", **options)


def metadata(done: Conversion) -> dict[str, Any]:
    found = open_gguf(done.output)
    keys = {key: value.data for key, value in found.metadata.items()}
    found.close()
    return keys


@pytest.mark.parametrize("case", ["H03 code of the configuration", "H03 code of the tokenizer"])
def test_code_of_a_folder_is_never_run(case: str, tmp_path: Path) -> None:
    name = "config.json" if case.endswith("configuration") else "tokenizer_config.json"
    mapped = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}
    folder = merged(tmp_path / "model")
    both(document(name, lambda held: held.update(auto_map=mapped)), file("evil.py", TRAP))(folder)
    done = converted(folder)
    assert not list(tmp_path.rglob("*.was-run")) and not list(tmp_path.rglob("*.pyc"))
    assert any("auto_map" in note and "never run" in note for note in done.notes) is (name == "config.json")


STATED = document("tokenizer_config.json", lambda held: held.update(chat_template=OTHER))
TEMPLATES: dict[str, tuple[Change, str]] = {
    "H10 in chat_template.jinja alone": (file("chat_template.jinja", TEMPLATE), ""),
    "H10 in chat_template.json alone": (file("chat_template.json", json.dumps({"chat_template": TEMPLATE})), ""),
    "H10 twice the same": (both(file("chat_template.jinja", OTHER), STATED, file("chat_template.jinja", OTHER)), ""),
    "H10 two that differ": (
        both(STATED, file("chat_template.jinja", TEMPLATE)),
        "tokenizer_config.json and chat_template",
    ),
    "H10 three that differ": (
        both(STATED, file("chat_template.json", '{"chat_template": "x"}'), file("chat_template.jinja", TEMPLATE)),
        "chat_template.json and chat_template.jinja",
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_chat_templates_of_several_files(case: str, tmp_path: Path) -> None:
    """As in transformers the file of its own wins; that another one says otherwise was once not told."""
    change, words = TEMPLATES[case]
    folder = merged(tmp_path / "model")
    change(folder)
    done = converted(folder)
    assert metadata(done)["tokenizer.chat_template"] == (OTHER if "same" in case else TEMPLATE)
    told = [note for note in done.notes if "different chat templates" in note]
    assert any(words in note for note in told) if words else not told
