"""Every GGML-era file beside LLaMA, from end to end: against the weights and logits of the Hugging Face model it was
made of, the runtimes of its time, and the llama.cpp of today that must run what comes out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.convert import Request, convert, graph_of
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.load import VocabOptions, load_tokenizer, open_checkpoint, understand
from ggferry.converters.plan import Options
from ggferry.converters.tokenizers.legacy_family import agrees, from_family
from ggferry.converters.tokenizers.load import load
from ggferry.converters.tokenizers.whisper_names import special_names
from ggferry.converters.values import laid_out_values, values_of
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import (
    AmbiguousError,
    CorruptError,
    GgferryError,
    InconsistentError,
    MissingError,
    RefusedError,
    UnexpectedTensorError,
    UnknownFormatError,
)
from ggferry.formats.reader import VocabLayout
from ggferry.quant.codec import codec

from conftest import FIXTURES, ORACLE
from llama_cpp import continuations

LOSSY = ("gptneox", "dolly-v2", "stablelm", "bloom", "llmrs")
"""Their makers decoded the vocabulary to text."""
FOUR_BIT_ACTIVATIONS = ("rwkvOld-q4_0",)
"""The runtime of that day quantised what it multiplied: its logits are 0.18 away from those of its own weights."""
CLOSE = 1e-5
NOT_COPIED = {"time_mix_decay.weight": 1e-6, "mel_filters.weight": 1e-7}
RUNTIME = {"F32": 1e-3, "F16": 1e-3}
"""Relative RMS to the runtimes of the time, by the type of the matrices; 0.025 for all others, whose products are
of values quantised to 8 bits."""


def manifest(root: Path) -> list[tuple[Path, dict]]:
    path = root / "MANIFEST.json"
    entries = json.loads(path.read_text()) if path.is_file() else []
    return [(root, entry) for entry in entries if "hparams" in entry]


MINE = manifest(FIXTURES / "legacy-other")
REST = [(r, e) for r, e in manifest(ORACLE / "legacy-other") if e["file"] not in {mine["file"] for _, mine in MINE}]
EACH = pytest.mark.parametrize(
    ("root", "entry"),
    [*MINE, *(pytest.param(root, entry, marks=pytest.mark.slow) for root, entry in REST)],
    ids=[entry["file"] for _, entry in (*MINE, *REST)],
)
BY_NAME = {entry["file"]: (root, entry) for root, entry in (*REST, *MINE)}


def path_of(file: str) -> str:
    if file not in BY_NAME:
        pytest.skip(f"no oracle at {ORACLE}")
    return str(BY_NAME[file][0] / file)


def vocabulary(root: Path, entry: dict) -> VocabOptions:
    """What a user would have to supply: the tokenizer of a file that lost its own, none where there never was one."""
    if entry["arch"] == "rwkv":
        return VocabOptions(none=True)
    return VocabOptions(source=str(root / entry["hf_dir"]) if any(word in entry["file"] for word in LOSSY) else None)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


@EACH
def test_converts_with_full_proof(root: Path, entry: dict, tmp_path: Path) -> None:
    source = str(root / entry["file"])
    result = convert(Request(source, str(tmp_path / "out.gguf"), vocab=vocabulary(root, entry)))
    receipt = result.receipt
    assert receipt["verified"] == "full" and receipt["logits"]["relative_rms"] <= receipt["logits"]["limit"]
    ids = json.loads((root / entry["hf_dir"] / "logits.json").read_text())["ids"]
    before, after = (forward(graph_of(path), ids, inputs=spectrum(entry)) for path in (source, result.path))
    kinds = set(entry["tensor_types"])
    if kinds <= {"F32", "F16"}:
        target = np.load(root / entry["oracle_logits"])
        assert relative(before, target) <= CLOSE and relative(after, target) <= CLOSE
    witnessed = "runtime_logits" in entry and (entry["arch"] != "whisper" or spectrum(entry))
    if witnessed and not any(word in entry["file"] for word in FOUR_BIT_ACTIVATIONS):
        runtime = np.load(root / entry["runtime_logits"])
        limit = max((RUNTIME.get(kind, 0.025) for kind in kinds), default=0)
        assert relative(before, runtime) <= limit and relative(after, runtime) <= limit
    check_weights(root, entry, result.path)


def spectrum(entry: dict) -> dict[str, np.ndarray] | None:
    """What the runtimes of Whisper heard."""
    path = ORACLE / "legacy-other" / entry["hf_dir"] / "mel_seed.npz"
    return {"mel": np.load(path)["mel"]} if entry["arch"] == "whisper" and path.is_file() else None


def check_weights(root: Path, entry: dict, path: str) -> None:
    """The float tensors of the output are the Hugging Face model's, laid out by its own table."""
    folder = ORACLE / "legacy-other" / entry["hf_dir"]
    whole = folder / ("rwkv4-tiny.pth" if entry["arch"] == "rwkv" else "model.safetensors")
    if not whole.is_file():
        return
    graph = understand(open_checkpoint(str(whole if entry["arch"] == "rwkv" else folder)))
    output = graph_of(path)
    named = dict(graph.by_name)
    if graph.architecture.name == "mpt" or "output.weight" not in named:
        named.setdefault("output.weight", named["token_embd.weight"])  # written though tied
    assert set(output.by_name) <= set(named)
    assert set(graph.by_name) <= set(output.by_name)
    compared = 0
    for name, node in output.by_name.items():
        if node.inputs[0].type.quantised:
            continue
        rows = int(np.prod(node.shape[:-1]))
        found = values_of(output.checkpoint, node.inputs[0], 0, rows)
        if len(node.shape) > 1 and set(entry["tensor_types"]) & {"Q4_2", "Q4_3", "Q4_1_O"}:
            continue  # blocks without a counterpart, expanded to float16
        expected = laid_out_values(graph.checkpoint, named[name], 0, rows)
        # log(exp(w)) in float32; filters that somebody else computed
        close = next((limit for ending, limit in NOT_COPIED.items() if name.endswith(ending)), 0.0)
        assert np.abs(found - expected).max() <= close, name
        compared += 1
    assert compared >= 3


# --- vocabularies -----------------------------------------------------------------------------------------------

_WHOLE = """
gpt2/gpt2-s64-g04-q4_3.bin gptj/gptj-s64-g1-q4_1.bin starcoder/starcoder-s64-g2-q5_1.bin mpt/mpt-s64-f16.bin
falcon/falcon40b-s64-jploski-f16.bin falcon/falcon40b-s64-ggcc-q5_0.bin
"""
WHOLE = _WHOLE.split()


@pytest.mark.parametrize("file", WHOLE)
def test_a_vocabulary_of_bytes_is_whole_again(file: str) -> None:
    """Texts and merges are those of the model's own tokenizer.json, which the file never held."""
    root, entry = BY_NAME[file]
    found = load_tokenizer(open_checkpoint(path_of(file)), entry["hparams"]["n_vocab"])
    original = load(str(root / entry["hf_dir"]), rows=entry["hparams"]["n_vocab"])
    assert found is not None and found.tokens == original.tokens and found.merges == original.merges
    assert found.types == original.types
    assert found.ids["bos"] == found.ids["eos"] == original.tokens.index("<|endoftext|>")


@pytest.mark.parametrize("file", ["gptneox/gptneox-seq-s64-f16.bin", "bloom/bloom-s64-llmrs-f16.bin"])
def test_a_decoded_vocabulary_needs_the_tokenizer(file: str, tmp_path: Path) -> None:
    root, entry = BY_NAME[file]
    request = Request(path_of(file), str(tmp_path / "out.gguf"), level="fast")
    with pytest.raises(RefusedError, match="--tokenizer"):
        convert(request)
    assert not list(tmp_path.iterdir())
    bare = convert(Request(request.source, request.out, vocab=VocabOptions(none=True), level="fast"))
    assert "tokenizer.ggml.tokens" not in open_checkpoint(bare.path).metadata
    for given in (root / entry["hf_dir"], root / entry["hf_dir"] / "tokenizer.json"):
        options = VocabOptions(source=str(given))
        receipt = convert(Request(request.source, request.out, vocab=options, level="fast", force=True)).receipt
        assert any("384 of its 512 tokens stand in the file byte for byte" in note for note in receipt["notes"])


def test_a_whole_vocabulary_is_held_against_the_tokenizer_too() -> None:
    root, entry = BY_NAME["mpt/mpt-s64-f16.bin"]
    checkpoint = open_checkpoint(path_of(entry["file"]))
    found = load_tokenizer(checkpoint, 512, VocabOptions(source=str(root / entry["hf_dir"])))
    assert found is not None and any("512 of its 512 tokens stand in the file byte" in note for note in found.notes)


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (b"\xef\xbf\xbd", b"\xe6", True),
        (b"\xef\xbf\xbd", b"\xe6\x97", True),
        (b"the", b" the", True),
        (b").", b") .", True),
        (b"n't", b" n't", True),
        (b"", b"<|endoftext|>", True),
        (b"", b"a", False),
        (b"\n", b"  ", False),
        (b"th", b" the", False),
        (b"\xef\xbf\xbd", b"a", False),
        (b"A", b"a", False),
    ],
)
def test_what_a_decoder_leaves_of_a_token(found: bytes, expected: bytes, same: bool) -> None:
    assert agrees(found, expected) is same


def test_another_model_s_tokenizer_is_refused(tmp_path: Path) -> None:
    root, entry = BY_NAME["gptj/gptj-s64-g1-q4_1.bin"]  # the same texts, one place further
    options = VocabOptions(source=str(root / entry["hf_dir"]))
    with pytest.raises(InconsistentError, match="id 0 differs"):
        convert(Request(path_of("gptneox/gptneox-seq-s64-f16.bin"), str(tmp_path / "out.gguf"), vocab=options))


def test_replit_s_pieces_are_its_spiece_model_s() -> None:
    root, entry = BY_NAME["replit/replit-s64-g1-q4_1.bin"]
    checkpoint = open_checkpoint(path_of(entry["file"]))
    found = load_tokenizer(checkpoint, 512)
    given = load_tokenizer(checkpoint, 512, VocabOptions(source=str(root / entry["hf_dir"] / "spiece.model")))
    assert found is not None and given is not None and found.model == given.model == "t5"
    assert found.tokens == given.tokens and found.types == given.types
    assert np.array_equal(np.float32(found.scores[:500]), np.float32(given.scores[:500]))
    assert {role: found.ids[role] for role in ("unk", "eos", "pad")} == {"unk": 0, "eos": 1, "pad": 2}


def test_rwkv_takes_the_tokenizer_it_is_given(tmp_path: Path) -> None:
    root, entry = BY_NAME["gptneox/gptneox-seq-s64-f16.bin"]
    source = path_of("rwkv/rwkv4-s64-rwkvOld-q4_1_o.bin")
    with pytest.raises(RefusedError, match="--tokenizer"):
        convert(Request(source, str(tmp_path / "x.gguf"), level="fast"))
    options = VocabOptions(source=str(root / entry["hf_dir"]))
    again = open_checkpoint(convert(Request(source, str(tmp_path / "x.gguf"), vocab=options, level="fast")).path)
    assert len(again.metadata["tokenizer.ggml.tokens"].data) == 512


@pytest.mark.parametrize(
    ("held", "rows", "languages"), [(50256, 51864, 99), (50257, 51864, 99), (50257, 51865, 99), (50257, 51866, 100)]
)
def test_whisper_s_special_tokens_follow_from_the_sizes(held: int, rows: int, languages: int) -> None:
    """English-only with and without <|endoftext|> in the vocabulary, multilingual, large-v3."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS

    names = special_names(held, rows)
    assert names[1] == "<|startoftranscript|>" and names[-1] == "<|30.00|>"
    assert [f"<|{language}|>" for language in THEIRS][:languages] == names[2 : 2 + languages]
    places = {name: rows - len(names) + i for i, name in enumerate(names)}
    multilingual = rows > 51864
    assert places["<|endoftext|>"] == 50256 + multilingual  # whisper.cpp's token_eot
    assert places["<|notimestamps|>"] == 50362 + multilingual + languages - 99
    assert not special_names(500, 600)


def test_whisper_s_special_tokens_are_written() -> None:
    letters = [bytes([value]) for value in range(256)]
    found = from_family(RawVocab(tuple(letters)), VocabLayout("own", texts="whisper"), rows=256 + 1608)
    assert len(found.tokens) == 256 + 1608 and found.tokens[found.ids["bos"]] == "<|startoftranscript|>"
    assert found.tokens[found.ids["eos"]] == "<|endoftext|>" and found.ids["eos"] == 256


def test_padding_by_repetition_is_told_from_tokens() -> None:
    """ggml's scripts fill up to the rows of the embedding with the last token."""
    letters = [bytes([value]) for value in range(256)]
    for last in (b"<|endoftext|>", b""):
        tokens = (*letters, b"ab", b"<|endoftext|>", *[last] * 3)
        found = from_family(RawVocab(tokens), VocabLayout("again"), rows=len(tokens))
        assert found.tokens[258:] == ("[PAD258]", "[PAD259]", "[PAD260]")[-3:]
        assert found.merges == ("a b",) and found.ids["eos"] == 257


# --- what the files lack ----------------------------------------------------------------------------------------


def test_what_was_assumed_is_named_and_a_configuration_wins(tmp_path: Path) -> None:
    root, entry = BY_NAME["falcon/falcon40b-s64-jploski-f16.bin"]
    source = path_of(entry["file"])
    bare = convert(Request(source, str(tmp_path / "1.gguf"), level="fast")).receipt["hparams"]
    assert bare["eps"]["origin"].startswith("default: ") and bare["n_ctx"]["origin"].startswith("default: ")
    config = str(root / entry["hf_dir"])
    told = convert(Request(source, str(tmp_path / "2.gguf"), level="fast", config=config)).receipt["hparams"]
    assert told["eps"] == {"value": 1e-05, "origin": "config.json: layer_norm_epsilon"}
    assert told["n_ctx"]["origin"].startswith("config.json: ")
    assert {name: param["value"] for name, param in bare.items()}.items() <= {
        name: param["value"] for name, param in told.items()
    }.items()


def test_another_model_s_configuration_is_refused(tmp_path: Path) -> None:
    root, entry = BY_NAME["gpt2/gpt2-s64-g04-q4_3.bin"]
    config = json.loads((root / entry["hf_dir"] / "config.json").read_text()) | {"n_head": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InconsistentError, match="n_head: the configuration is another model's"):
        convert(Request(path_of(entry["file"]), str(tmp_path / "out.gguf"), config=str(tmp_path)))


def test_first_quantisers_of_mpt_are_told_by_the_receipt(tmp_path: Path) -> None:
    receipt = convert(Request(path_of("replit/replit-s64-g1-q4_1.bin"), str(tmp_path / "x.gguf"), level="fast")).receipt
    assert any("states no quantisation version" in note for note in receipt["notes"])


# --- StarCoder's repeated keys and values -----------------------------------------------------------------------


def test_starcoder_is_told_by_its_repeated_keys_and_values(tmp_path: Path) -> None:
    source = path_of("starcoder/starcoder-s64-g2-q5_1.bin")
    one = convert(Request(source, str(tmp_path / "1.gguf")))
    assert one.receipt["architecture"] == "starcoder" and one.receipt["hparams"]["n_head_kv"]["value"] == 1
    assert len(one.receipt["dropped"]) == 8  # keys and values, weights and biases, of two blocks
    all_heads = convert(Request(source, str(tmp_path / "4.gguf"), arch="gpt2"))
    assert all_heads.receipt["architecture"] == "gpt2" and not all_heads.receipt["dropped"]
    tokens = list(range(16))
    assert relative(forward(graph_of(one.path), tokens), forward(graph_of(all_heads.path), tokens)) <= 1e-6
    assert understand(open_checkpoint(path_of("gpt2/gpt2-s64-g04-q4_3.bin"))).architecture.name == "gpt2"


def test_copies_that_differ_are_not_let_go(tmp_path: Path) -> None:
    source = path_of("starcoder/starcoder-s64-g2-q5_1.bin")
    ref = open_checkpoint(source).tensors["model/h1/attn/c_attn/w"]
    data = bytearray(Path(source).read_bytes())
    data[ref.spans[0].offset + 100 * ref.row_bytes + 8] ^= 0x10  # in the key of the third head
    (tmp_path / "m.bin").write_bytes(data)
    with pytest.raises(InconsistentError, match="c_attn"):
        convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf")))
    assert convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf"), arch="gpt2")).receipt["verified"]


# --- eras no witness is left of, made from the others -----------------------------------------------------------


def rewritten(source: str, change) -> bytes:
    """The file with every tensor record as `change(name, code, shape, data)` gives it."""
    checkpoint = open_checkpoint(source)
    codes = {"F32": 0, "F16": 1, "Q5_0": 6, "Q8_0": 8}
    refs = [ref for ref in checkpoint.tensors.values() if ref.name != "mel_filters"]
    first = min(ref.spans[0].offset - 12 - 4 * len(ref.shape) - len(ref.name) for ref in refs)
    out = bytearray(checkpoint.files[0].read(0, first))
    for ref in refs:
        data = checkpoint.files[0].read(ref.spans[0].offset, ref.nbytes)
        code, shape, data = change(ref.name, codes[ref.type.name], ref.shape, data)
        name = ref.name.encode()
        out += struct.pack("<3i", len(shape), len(name), code) + struct.pack(f"<{len(shape)}i", *shape[::-1])
        out += name + data
    return bytes(out)


def test_old_orientation_quantised_is_turned_by_decoding(tmp_path: Path) -> None:
    """No runtime ever loaded such a file; the script of then and a quantiser of now make one."""

    def quantised(name, code, shape, data):
        if code != 1 or name == "model/wpe":
            return code, shape, data
        values = np.frombuffer(data, "<f2").astype(np.float32).reshape(shape)
        return 8, shape, codec("Q8_0").encode(values, None).tobytes()

    data = bytearray(rewritten(path_of("gpt2/gpt2-s64-pre20230329-h5script-f16.bin"), quantised))
    struct.pack_into("<i", data, 24, 2007)
    (tmp_path / "m.bin").write_bytes(data)
    result = convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf")))
    by_name = {tensor["name"]: tensor for tensor in result.receipt["tensors"]}
    assert by_name["blk.0.attn_qkv.weight"]["type"] == "F16" and by_name["blk.0.ffn_down.weight"]["type"] == "Q8_0"
    assert "cannot be turned" in by_name["blk.0.attn_qkv.weight"]["why"]
    root, entry = BY_NAME["gpt2/gpt2-s64-pre20230329-h5script-f16.bin"]
    ids = json.loads((root / entry["hf_dir"] / "logits.json").read_text())["ids"]
    assert relative(forward(graph_of(result.path), ids), np.load(root / entry["oracle_logits"])) < 0.03


@pytest.mark.parametrize("fields", [5, 6])
def test_falcon_of_early_june_has_its_rows_in_groups(fields: int, tmp_path: Path) -> None:
    name = "falcon/falcon40b-s64-jploski-f16.bin" if fields == 6 else "falcon/falcon7b-s64-jploski-f16.bin"
    path_of(name)
    root, entry = BY_NAME[name]
    heads, groups, width = 4, entry["hparams"]["n_head_kv"], 16

    def grouped(name, code, shape, data):
        if not name.endswith("query_key_value.weight"):
            return code, shape, data
        rows = np.frombuffer(data, np.uint8).reshape(shape[0], -1)
        q, k, v = np.split(rows, [heads * width, (heads + groups) * width])
        each = [part.reshape(groups, -1, rows.shape[1]) for part in (q, k, v)]
        return code, shape, np.concatenate(each, axis=1).tobytes()

    data = rewritten(path_of(entry["file"]), grouped)
    header = struct.unpack("<7i", data[4:32])
    kept = header[:3] + header[3:4] * (fields == 6) + (header[4], 1)
    (tmp_path / "m.bin").write_bytes(data[:4] + struct.pack(f"<{fields}i", *kept) + data[32:])
    result = convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf")))
    ids = json.loads((root / entry["hf_dir"] / "logits.json").read_text())["ids"]
    assert relative(forward(graph_of(result.path), ids), np.load(root / entry["oracle_logits"])) <= CLOSE
    assert result.receipt["hparams"]["n_head_kv"]["value"] == groups


# --- refusals ---------------------------------------------------------------------------------------------------


def test_logits_are_no_model(oracle: Path) -> None:
    with pytest.raises(UnknownFormatError):
        open_checkpoint(str(oracle / "legacy-other/rwkv/expected_logits.bin"))


def test_a_stub_without_tensors_is_refused(oracle: Path) -> None:
    with pytest.raises(MissingError, match="no tensor"):
        understand(open_checkpoint(str(oracle / "legacy-other/whisper/for-tests-ggml-tiny.en.bin")))


def test_whisper_of_four_byte_halves_is_refused(tmp_path: Path) -> None:
    """convert-pt-to-ggml.py from a float32 .pt: data of four bytes a value, called float16."""

    def halves(name, code, shape, data):
        return code, shape, data * 2 if code == 1 else data

    (tmp_path / "m.bin").write_bytes(rewritten(path_of("whisper/whisper-v600-q5_0.bin"), halves))
    with pytest.raises(CorruptError):
        open_checkpoint(str(tmp_path / "m.bin"))


def test_a_vocabulary_alone_may_be_of_several_families(tmp_path: Path) -> None:
    """Falcon's header is LLaMA's and NeoX's of April 2023 too, and there is no tensor's name to tell."""
    source = path_of("falcon/falcon40b-s64-jploski-f16.bin")
    checkpoint = open_checkpoint(source)
    first = next(iter(checkpoint.tensors.values()))
    end = first.spans[0].offset - len(first.name) - 12 - 4 * len(first.shape)
    bare = tmp_path / "vocab.bin"
    bare.write_bytes(Path(source).read_bytes()[:end])
    with pytest.raises(AmbiguousError, match="--arch") as caught:
        open_checkpoint(str(bare))
    assert set(str(caught.value.found).split(", ")) == {"falcon", "gptneox-2023-04", "llama"}
    request = Request(str(bare), str(tmp_path / "v.gguf"), Options(vocab_only=True), arch="falcon")
    again = open_checkpoint(convert(request).path)
    assert not again.tensors and len(again.metadata["tokenizer.ggml.merges"].data) == 255


@pytest.mark.parametrize("file", ["gptj/gptj-s64-g1-q4_1.bin", "falcon/falcon40b-s64-ggcc-q5_0.bin"])
def test_cut_at_any_place_is_one_of_our_errors(file: str, tmp_path: Path) -> None:
    data = Path(path_of(file)).read_bytes()
    cut = tmp_path / "cut.bin"
    for end in [*range(0, 64, 3), *range(64, 9000, 613), *range(9000, len(data), 19973), len(data) - 1]:
        cut.write_bytes(data[:end])
        with pytest.raises(GgferryError):
            understand(open_checkpoint(str(cut)))


def test_any_header_byte_may_be_wrong(tmp_path: Path) -> None:
    for file in ("gpt2/gpt2-s64-g04-q4_3.bin", "mpt/mpt-clip-s64-g2-q4_0.bin", "falcon/falcon40b-s64-ggcc-q5_0.bin"):
        data = Path(path_of(file)).read_bytes()
        bad = tmp_path / "bad.bin"
        for at in range(4, 44):
            for flip in (0x01, 0xC0):
                bad.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
                try:
                    understand(open_checkpoint(str(bad)))
                except GgferryError:
                    continue


def test_a_tensor_of_no_role_is_named(tmp_path: Path) -> None:
    source = path_of("bloom/bloom-s64-llmrs-f16.bin")
    data = Path(source).read_bytes()
    extra = struct.pack("<4i", 1, 11, 0, 4) + b"layers.0.xy" + bytes(16)
    (tmp_path / "m.bin").write_bytes(data + extra)
    with pytest.raises(UnexpectedTensorError, match=r"layers\.0\.xy"):
        understand(open_checkpoint(str(tmp_path / "m.bin")))


# --- today's runtime --------------------------------------------------------------------------------------------

_RUN = """
gpt2/gpt2-s64-pre20230329-h5script-f16.bin gpt2/gpt2-s64-g04-q4_3.bin starcoder/starcoder-s64-g2-q5_1.bin
gptneox/gptneox-seq-s64-f16.bin gptneox/gptneox-par-s64-llmrs-ggjt-q5_1.bin stablelm/stablelm-nopar-s64-g0-q5_0.bin
mpt/mpt-s64-f16.bin mpt/mpt-clip-s64-g2-q4_0.bin replit/replit-s64-g1-q4_1.bin bloom/bloom-s64-bloomzcpp-q4_1.bin
bloom/bloom-s64-llmrs-f16.bin falcon/falcon40b-s64-jploski-f16.bin falcon/falcon40b-s64-ggcc-q5_0.bin
"""
RUN = _RUN.split()


def test_llama_cpp_runs_what_it_knows(tmp_path: Path) -> None:
    """It loads every one, vocabulary included, and continues as our forward pass does."""
    prompt, count, outputs = [7, 300, 17, 402, 260], 5, []
    for number, file in enumerate(RUN):
        root, entry = BY_NAME[file]
        request = Request(path_of(file), str(tmp_path / f"{number}.gguf"), vocab=vocabulary(root, entry), level="fast")
        outputs.append(Path(convert(request).path))
    answers = continuations(prompt, count, *outputs)
    assert sum(map(len, answers)) > count * len(outputs) / 2
    for file, path, answer in zip(RUN, outputs, answers, strict=True):
        ids = [token for token, _ in answer]
        scores = forward(graph_of(str(path)), prompt + ids[:-1]).astype(np.float64)[len(prompt) - 1 :]
        scores -= scores.max(-1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
        for position, (token, logprob) in enumerate(answer):
            # Activations are quantised to 8 bits; GELU by the error function is tanh's there (1e-3).
            assert scores[position].max() - scores[position][token] < 0.15, file
            assert abs(scores[position][token] - logprob) < 0.15, file


def test_plan_is_free_of_weights(tmp_path: Path) -> None:
    """An inspection of a file whose tensors cannot be read still tells what it is."""
    checkpoint = open_checkpoint(path_of("gptj/gptj-s64-g1-q4_1.bin"))
    graph = understand(checkpoint)
    assert graph.architecture.name == "gptj" and graph.dialect.name == "ggml"
    assert graph.sizes["n_ff"] == 256 and graph.hparams["n_ff"].origin.startswith("shape of")


def test_options_still_apply(tmp_path: Path) -> None:
    source = path_of("gptneox/gptneox-seq-s64-f16.bin")
    root, entry = BY_NAME["gptneox/gptneox-seq-s64-f16.bin"]
    result = convert(Request(source, str(tmp_path / "o.gguf"), Options(outtype="q8_0"), vocab=vocabulary(root, entry)))
    kinds = {tensor["type"] for tensor in result.receipt["tensors"] if len(tensor["shape"]) > 1}
    assert kinds == {"Q8_0"} and result.receipt["verified"] == "full"
