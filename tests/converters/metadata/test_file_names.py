"""File names: the specification's cases, real names of 2023, and the law that what we write always validates."""

from __future__ import annotations

import re
import time
from math import prod

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.converters.metadata.file_names import (
    NameParts,
    file_name,
    guess,
    parse_filename,
    shard_label,
    size_label,
    visible,
)
from helpers.peers import metadata_of
from helpers.third_party_fixtures import cases, listed, record

# The five test cases of the specification's Node.js program.
SPEC_CASES = [
    ("Mixtral-8x7B-v0.1-KQ2.gguf", NameParts("Mixtral", "8x7B", None, "v0.1", "KQ2")),
    (
        "Grok-100B-v1.0-Q4_0-00003-of-00009.gguf",
        NameParts("Grok", "100B", None, "v1.0", "Q4_0", None, "00003-of-00009"),
    ),
    ("Hermes-2-Pro-Llama-3-8B-v1.0-F16.gguf", NameParts("Hermes-2-Pro-Llama-3", "8B", None, "v1.0", "F16")),
    (
        "Phi-3-mini-3.8B-ContextLength4k-instruct-v1.0.gguf",
        NameParts("Phi-3-mini", "3.8B-ContextLength4k", "instruct", "v1.0"),
    ),
    ("not-a-known-arrangement.gguf", None),
]

# The specification's expression as printed, but for Python's spelling of named groups.
PRINTED = re.compile(
    r"^(?P<base_name>[A-Za-z0-9\s]*(?:(?:-(?:(?:[A-Za-z\s][A-Za-z0-9\s]*)|(?:[0-9\s]*)))*))-(?:(?P<size_label>(?:\d+x)?"
    r"(?:\d+\.)?\d+[A-Za-z](?:-[A-Za-z]+(\d+\.)?\d+[A-Za-z]+)?)(?:-(?P<fine_tune>[A-Za-z0-9\s-]+))?)?-"
    r"(?:(?P<version>v\d+(?:\.\d+)*))(?:-(?P<encoding>(?!LoRA|vocab)[\w_]+))?(?:-(?P<type>LoRA|vocab))?"
    r"(?:-(?P<shard>\d{5}-of-\d{5}))?\.gguf\Z",
    re.ASCII,
)

any_text = st.none() | st.text(max_size=40) | st.text("aZ0 -._/\\v1xB", max_size=300)


@pytest.mark.parametrize(("name", "expected"), SPEC_CASES)
def test_the_specifications_cases(name: str, expected: NameParts | None) -> None:
    assert parse_filename(name) == expected
    if expected:
        assert file_name(expected) == name


def test_the_specifications_second_example_lacks_its_own_version() -> None:
    """`Hermes-2-Pro-Llama-3-8B-F16.gguf` is listed as an example and refused by the expression below it."""
    assert parse_filename("Hermes-2-Pro-Llama-3-8B-F16.gguf") is None


word = st.sampled_from(
    [
        "a",
        "Llama",
        "7B",
        "8x7B",
        "3.8B",
        "4k",
        "chat",
        "v1",
        "v1.0",
        "v2.3.4",
        "Q4_0",
        "F16",
        "LoRA",
        "vocab",
        "12",
        "1b2",
        "00001",
        "of",
        "00002",
        " ",
        "a b",
        "",
        "x1y",
        "ctx4k",
        "\u00a0",
        "é",
        "_",
    ]
)


@settings(deadline=None)
@given(
    st.lists(word, max_size=9).map("-".join) | st.text("aB1 -v.x_", max_size=16),
    st.sampled_from([".gguf", "", "\n"]),
)
def test_our_expression_accepts_and_captures_what_the_printed_one_does(stem: str, ending: str) -> None:
    name = stem + ending
    match = PRINTED.match(name.replace("\u00a0", " "))  # JavaScript's \s holds it, Python's ASCII \s does not
    parts = parse_filename(name)
    assert (parts is None) == (match is None)
    if parts and match:
        for part, capture in match.groupdict().items():
            ours = getattr(parts, part)
            assert (ours and ours.replace("\u00a0", " ")) == capture


@pytest.mark.parametrize("unit", ["- ", "-", "-1", "-a", "-7B", "-7B-a1b", "a-7B-v1", "1", " ", "-v1.0", "-7B-LoRA"])
def test_hostile_names_take_no_time(unit: str) -> None:
    start = time.process_time()
    for name in ((unit * 255)[:250] + ".gguf", (unit * 255)[:250] + ".ggu", unit * 10000):
        parse_filename(name)
        guess(name)
    assert time.process_time() - start < 2


@settings(deadline=None)
@given(any_text, any_text, any_text, any_text, any_text, any_text, any_text)
def test_a_name_we_make_always_validates(
    base: str | None,
    size: str | None,
    fine: str | None,
    version: str | None,
    encoding: str | None,
    kind: str | None,
    shard: str | None,
) -> None:
    name = file_name(NameParts(base or "", size, fine, version, encoding, kind, shard))
    assert parse_filename(name) is not None
    assert re.fullmatch(r"[A-Za-z0-9._-]+\.gguf", name, re.ASCII)
    assert len(name) <= 241 and not name.startswith((".", "-"))
    assert name == file_name(NameParts(base or "", size, fine, version, encoding, kind, shard))


plain = st.lists(st.sampled_from(["Llama", "Open", "2", "3", "Pro", "K2"]), min_size=1, max_size=4).map("-".join)


@settings(deadline=None)
@given(
    st.builds(
        NameParts,
        plain,
        st.sampled_from(["7B", "8x7B", "3.8B", "560M", "3.8B-ContextLength4k", "14B-A2.7B"]),
        st.none() | st.sampled_from(["Chat", "instruct-128k", "Uncensored", "LoRA-tune"]),
        st.sampled_from(["v1.0", "v0.1", "v2", "v1.2.3"]),
        st.none() | st.sampled_from(["Q4_K_M", "F16", "IQ2_XXS", "Q4_1_SOME_F16"]),
        st.none() | st.sampled_from(["LoRA", "vocab"]),
        st.none() | st.just(shard_label(3, 9)),
    )
)
def test_parts_come_back_from_the_name(parts: NameParts) -> None:
    assert parse_filename(file_name(parts)) == parts


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (NameParts("Llama 2", "6.7b", "chat"), "Llama-2-6.7B-chat-v1.0.gguf"),
        (NameParts("Meta-Llama-3.1", "8.0B", None, None, "q4_k_m"), "Meta-Llama-3-1-8.0B-v1.0-Q4_K_M.gguf"),
        (NameParts("../../etc/passwd", "1K"), "etc-passwd-1K-v1.0.gguf"),
        (NameParts("gpt4 4bit x", "13B"), "gpt4-4-bit-x-13B-v1.0.gguf"),
        (NameParts("Qwen1.5-MoE", "14B", "A2.7B-Chat"), "Qwen1-5-MoE-14B-A2.7B-Chat-v1.0.gguf"),
        (NameParts("x", "large", "chat"), "x-large-chat--v1.0.gguf"),
        (NameParts("x", "7B", "chat", "beta 3"), "x-7B-chat-beta-3-v1.0.gguf"),
        (NameParts("x", "7B", None, "1.1"), "x-7B-v1.1.gguf"),
        (NameParts("tiny", None, None, None, None, "vocab"), "tiny--v1.0-vocab.gguf"),
        (NameParts("tiny", "3K", None, None, "F32", "lora"), "tiny-3K-v1.0-F32-LoRA.gguf"),
        (NameParts("tiny", "3K", None, None, "LoRA x"), "tiny-3K-v1.0-LORA_X.gguf"),
        (NameParts("中文", "3K"), "model-3K-v1.0.gguf"),
        (NameParts("Ünï", "3K", "über"), "Uni-3K-uber-v1.0.gguf"),
        (NameParts("", None), "model--v1.0.gguf"),
        (NameParts("a", "7B", None, None, "Q8_0", None, shard_label(1, 2)), "a-7B-v1.0-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_names_we_make(parts: NameParts, expected: str) -> None:
    assert file_name(parts) == expected


def test_shards_start_at_one() -> None:
    assert shard_label(3, 9) == "00003-of-00009"
    for number, total in ((0, 2), (3, 2), (1, 100000)):
        with pytest.raises(ValueError, match="shard"):
            shard_label(number, total)


B = 1_000_000_000
# (path, counted weights) → base name, size word, fine tune, version, name for people. The names are those under which
# such files went round in 2023, or which the programs that wrote them chose.
LEGACY = [
    ("llama-7b.ggmlv3.q4_0.bin", 6738415616, "llama", "7B", None, None, "Llama 7B"),
    ("ggml-alpaca-7b-q4.bin", 6738415616, "alpaca", "7B", None, None, "Alpaca 7B"),
    ("gpt4all-lora-quantized.bin", 6738415616, "gpt4all", None, "lora", None, "Gpt4all Lora"),
    ("vicuna-13B-1.1-GPTQ-4bit-128g.GGML.bin", 13015864320, "vicuna", "13B", None, "v1.1", "Vicuna 13B 1.1"),
    ("gpt4-x-alpaca-13b-native-4bit-128g.bin", 0, "gpt4-x-alpaca", "13B", "native", None, "Gpt4 X Alpaca 13B Native"),
    (
        "Wizard-Vicuna-30B-Uncensored.ggmlv3.q4_K_M.bin",
        32528943616,
        "Wizard-Vicuna",
        "30B",
        "Uncensored",
        None,
        "Wizard Vicuna 30B Uncensored",
    ),
    ("llama-2-7b-chat.ggmlv3.q2_K.bin", 6738415616, "llama-2", "7B", "chat", None, "Llama 2 7B Chat"),
    ("orca_mini_v2_7b.ggmlv3.q4_0.bin", 6738415616, "orca-mini-v2", "7B", None, None, "Orca Mini v2 7B"),
    ("open_llama_3b_q4_0.bin", 3426473600, "open-llama", "3B", None, None, "Open Llama 3B"),
    ("cerebras_1_3b-f16.bin", 0, "cerebras", "1.3B", None, None, "Cerebras 1.3B"),
    ("bloom-7b1-f16.bin", 7069016064, "bloom", "7.1B", None, None, "Bloom 7.1B"),
    ("bloomz-560m-f16.bin", 559214592, "bloomz", "560M", None, None, "Bloomz 560M"),
    ("dolly-v2-12b-q5_1.bin", 0, "dolly-v2", "12B", None, None, "Dolly v2 12B"),
    ("ggml-gpt4all-j-v1.3-groovy.bin", 6053381344, "gpt4all-j", None, "groovy", "v1.3", "Gpt4all J v1.3 Groovy"),
    ("30B-Lazarus.ggmlv3.q2_K.bin", 32528943616, "Lazarus", "30B", None, None, "30B Lazarus"),
    ("mpt-7b-8k.ggmlv3.q4_1.bin", 6649286656, "mpt", "7B", "8k", None, "Mpt 7B 8k"),
    ("falcon-40b-instruct.ggccv1.q4_k.bin", 41 * B, "falcon", "40B", "instruct", None, "Falcon 40B Instruct"),
    ("starcoder-ggml-q4_1.bin", 0, "starcoder", None, None, None, "Starcoder"),
    ("rwkv-4-raven-14b-v12-ctx8192-Q5_1.bin", 0, "rwkv-4-raven", "14B", "ctx8192", "v12", None),
    ("WizardLM-7B-uncensored.ggml.q5_1.bin", 0, "WizardLM", "7B", "uncensored", None, "WizardLM 7B Uncensored"),
    ("WizardLM-1.0-Uncensored-Llama2-13B.bin", 0, "WizardLM-1.0-Uncensored-Llama2", "13B", None, None, None),
    ("x-7b-v1.0-chat-v2.bin", 0, "x", "7B", "v1.0-chat", "v2", "X 7B v1.0 Chat v2"),
    ("llama-7b-v2beta.bin", 0, "llama", "7B", "v2beta", None, "Llama 7B v2beta"),
    ("ll\u200bama\x07-7b\ufeff.bin", 0, "llama", "7B", None, None, "Llama 7B"),
    (".hidden-llama-13b.bin", 0, "hidden-llama", "13B", None, None, "Hidden Llama 13B"),
    ("中文-alpaca-7b.bin", 0, "中文-alpaca", "7B", None, None, "中文 Alpaca 7B"),
    ("Mixtral-8x7B-Instruct-v0.1.q4_0.bin", 46702792704, "Mixtral", "8x7B", "Instruct", "v0.1", None),
    ("Qwen1.5-MoE-A2.7B-Chat", 14315784192, "Qwen1.5-MoE", None, "A2.7B-Chat", None, "Qwen1.5 MoE A2.7B Chat"),
    ("Hermes-2-Pro-Llama-3-8B-v1.0-F16.gguf", 8 * B, "Hermes-2-Pro-Llama-3", "8B", None, "v1.0", None),
    # a size word that the count contradicts is no size
    ("llama-7b.bin", 127296, "llama", None, "7b", None, "Llama 7b"),
    ("llama-30b.bin", 6738415616, "llama", None, "30b", None, "Llama 30b"),
]


@pytest.mark.parametrize(("path", "count", "base", "size", "fine", "version", "name"), LEGACY)
def test_real_names(
    path: str, count: int, base: str, size: str | None, fine: str | None, version: str | None, name: str | None
) -> None:
    found = guess(path, parameters=count)
    assert found.parts == NameParts(base, size, fine, version)
    assert name is None or found.name == name
    assert guess(f"/some/where/{path}", parameters=count).parts == found.parts
    assert parse_filename(file_name(found.parts))


HASH = "0123456789abcdef0123456789abcdef01234567"
HUB = "/c/hub/models--meta-llama--Llama-2-7b-hf/snapshots"
DIRECTORIES = [
    ("/data/llama-13b/ggml-model-q4_0.bin", "llama", "13B", "directory name"),
    ("/data/llama-13b/ggml-model-f16.bin.1", "llama", "13B", "directory name"),
    ("/models/LLaMA/7B/ggml-model-q4_0.bin", "LLaMA", "7B", "directory name"),
    ("/models/LLaMA/7B/consolidated.00.pth", "LLaMA", "7B", "directory name"),
    ("Meta-Llama-3.1-8B/original/consolidated.07.pth", "Meta-Llama-3.1", "8B", "directory name"),
    ("/x/TinyLlama-1.1B/model.safetensors", "TinyLlama", "1.1B", "directory name"),
    ("/x/TinyLlama-1.1B/pytorch_model-00001-of-00005.bin", "TinyLlama", "1.1B", "directory name"),
    ("/x/TinyLlama-1.1B/model.safetensors.index.json", "TinyLlama", "1.1B", "directory name"),
    ("/x/TinyLlama-1.1B/", "TinyLlama", "1.1B", "directory name"),
    ("/x/TinyLlama-1.1B/checkpoint-500", "TinyLlama", "1.1B", "directory name"),
    ("C:\\models\\WizardLM-13B\\ggml-model-q4_1.bin", "WizardLM", "13B", "directory name"),
    (f"{HUB}/{HASH}/model.safetensors", "Llama-2", "7B", "repository name"),
    (f"{HUB}/{HASH}/", "Llama-2", "7B", "repository name"),
    (f"{HUB}/{HASH}/q4_0/llama-x-7b.bin", "llama-x", "7B", "file name"),
    (
        "https://huggingface.co/meta-llama/Llama-2-7b-hf/resolve/main/model.safetensors?download=true",
        "Llama-2",
        "7B",
        "repository name",
    ),
    ("hf://meta-llama/Llama-2-7b-hf/llama%2D2-7b.bin", "llama-2", "7B", "file name"),
    # nothing there names a model, and people's home directories are nobody's business
    ("/home/jane/ggml-model-q4_0.bin", "llama", None, "architecture"),
    ("/Users/jane/model.safetensors", "llama", None, "architecture"),
    ("/home/jane", "llama", None, "architecture"),
    ("/home/jane/", "llama", None, "architecture"),
    ("/tmp/tmpx3k9q_2a/model.safetensors", "llama", None, "architecture"),
    ("/home/jane.bin", "jane", None, "file name"),
    ("/models/7B/ggml-model-q4_0.bin", "llama", "7B", "architecture"),
    ("ggml-model-q4_0.bin", "llama", None, "architecture"),
    ("/mnt/data/f16.bin", "llama", None, "architecture"),
    ("", "llama", None, "architecture"),
    ("/", "llama", None, "architecture"),
]


@pytest.mark.parametrize(("path", "base", "size", "origin"), DIRECTORIES)
def test_the_directory_speaks_where_the_file_does_not(path: str, base: str, size: str | None, origin: str) -> None:
    found = guess(path, fallback="llama")
    assert (found.parts.base_name, found.parts.size_label, found.origin) == (base, size, origin)
    in_repository = "meta-llama" in path
    assert found.repository == ("meta-llama/Llama-2-7b-hf" if in_repository else None)
    assert found.organization == ("meta-llama" if in_repository else None)
    assert "jane" not in repr(found) or base == "jane"
    if origin == "architecture":
        assert any("does not name the model" in note for note in found.notes)


def test_what_is_left_out_is_said() -> None:
    notes = guess("llama-7b.ggmlv3.q4_0.bin", parameters=6738415616).notes
    assert notes == ("ignored in file name (storage type): ggmlv3, q4_0",)
    (note,) = guess("llama-7b", parameters=1000).notes
    assert "'7b'" in note and "1000" in note


def test_an_adapter_is_smaller_than_its_model() -> None:
    assert guess("llama-7b-lora", parameters=4194304, adapter=True).parts.size_label == "7B"
    assert guess("llama-7b-lora", parameters=4194304).parts.size_label is None


@settings(deadline=None)
@given(st.text(max_size=60), st.integers(0, 1 << 50), st.text(max_size=8))
def test_any_path_gives_a_name(path: str, parameters: int, fallback: str) -> None:
    found = guess(path, parameters=parameters, fallback=fallback)
    assert found.parts.base_name and found.name
    assert visible(found.name) == found.name
    found.name.encode()
    assert parse_filename(file_name(found.parts))


@settings(deadline=None)
@given(
    st.lists(word | st.sampled_from(["q4_0", "hf", "ggml", "chat", "8k"]), max_size=8).map("-".join),
    st.integers(0, 1 << 40),
)
def test_no_word_is_lost_or_made_up(stem: str, parameters: int) -> None:
    """Every letter and digit of a name is in the parts or among the notes."""
    found = guess("/" + stem, parameters=parameters, fallback="zz")
    if found.origin == "architecture" or parse_filename(stem):
        return
    parts = found.parts
    kept = " ".join([parts.base_name, parts.size_label or "", parts.fine_tune or "", parts.version or "", *found.notes])
    for piece in re.findall(r"[^\W_]+", stem):
        assert piece.lower() in re.sub(r"[^\w]", " ", kept).lower() or re.search(r"\d", piece), (piece, kept)


@settings(deadline=None)
@given(st.integers(0, 10**16), st.integers(0, 256), st.integers(0, 10**13))
def test_size_labels_are_todays_tools(parameters: int, experts: int, expert: int) -> None:
    shared = parameters
    total = shared + experts * expert
    assert size_label(total, experts, experts * expert) == gguf.size_label(total, shared, expert, experts)
    assert file_name(NameParts("x", size_label(total, experts, experts * expert))).count("--") == 0


@pytest.mark.parametrize("name", cases(listed("hf/out/*/*.f32.gguf")))
def test_size_labels_of_convert_hf_to_gguf(name: str) -> None:
    """Counted from the tensors of every GGUF that it wrote, MoE models among them."""
    told = record(name)
    metadata = {key: value.data for key, value in metadata_of(told).items()}
    sizes = {t["name"]: prod(t["shape"]) for t in told["tensors"] if t["name"] != "rope_freqs.weight"}
    routed = sum(size for tensor, size in sizes.items() if "_exps." in tensor)
    experts = metadata.get(f"{metadata['general.architecture']}.expert_count", 0) if routed else 0
    assert bool(routed) == any(word in name for word in ("mixtral", "deepseek2"))
    assert size_label(sum(sizes.values()), experts, routed) == metadata["general.size_label"]


def test_who_repacks_a_model_is_not_its_maker() -> None:
    found = guess("https://huggingface.co/TheBloke/Llama-2-7B-GGML/resolve/main/llama-2-7b.ggmlv3.q4_0.bin")
    assert found.organization is None and found.repository == "TheBloke/Llama-2-7B-GGML"
