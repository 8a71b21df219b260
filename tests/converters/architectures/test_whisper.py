"""Whisper in OpenAI's and transformers' layouts: the oracle's states and logits from every side, mel filters, sizes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.architectures._whisper import mel_filters
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.importance_matrix import measure
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.logits import EXACT_LOGITS
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, load_tokenizer
from ggferry.converters.tokenizers.tokenizer import encoder
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, MissingError, UnsupportedError, UsageError
from helpers.tiny_models import relative, shake, whole

pytestmark = pytest.mark.filterwarnings("ignore")
BARE = VocabOptions(none=True)
LIMIT = 1e-5


TRANSFORMERS = {
    "blocks": "layers", "mlp.0": "fc1", "mlp.2": "fc2", "mlp_ln": "final_layer_norm",
    ".attn_ln": ".self_attn_layer_norm", ".cross_attn_ln": ".encoder_attn_layer_norm", ".attn.": ".self_attn.",
    ".cross_attn.": ".encoder_attn.", ".query": ".q_proj", ".key": ".k_proj", ".value": ".v_proj",
    ".out.": ".out_proj.", "decoder.ln.": "decoder.layer_norm.", "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight", "ln_post": "layer_norm",
}
"""OpenAI's names → transformers', as its convert_openai_to_hf.py changes them."""


@pytest.fixture(scope="module")
def tiny(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model thrice: OpenAI's float16 file as it is kept, its float32 file, and transformers' folder."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny")
    shutil.copytree(fixtures / "legacy-other" / "hf" / "whisper-v600", folder, dirs_exist_ok=True)
    narrow = torch.load(folder / "tiny.pt", weights_only=True)
    wide = {name: tensor.float() for name, tensor in narrow["model_state_dict"].items()}
    torch.save({"dims": narrow["dims"], "model_state_dict": wide}, folder / "tiny-f32.pt")
    renamed = {}
    for name, tensor in wide.items():
        for old, new in TRANSFORMERS.items():
            name = name.replace(old, new)
        renamed[f"model.{name}"] = tensor
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def states_and_logits(folder: Path, path: Path | str) -> tuple[np.ndarray, np.ndarray]:
    ids, mel = json.loads((folder / "logits.json").read_text())["ids"], np.load(folder / "mel_seed.npz")["mel"]
    graph = graph_of(str(path))
    return tuple(forward(graph, ids, inputs={"mel": mel}, part=part) for part in ("encode", "logits"))


@pytest.mark.parametrize(
    "name", [pytest.param("", marks=pytest.mark.slow), "tiny.pt", pytest.param("tiny-f32.pt", marks=pytest.mark.slow)]
)
def test_both_sides_compute_the_oracles_states_and_logits(name: str, tiny: Path, tmp_path: Path) -> None:
    result = convert(Request(str(tiny / name), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    for side in (tiny / name, result.path):
        states, logits = states_and_logits(tiny, side)
        assert states.shape == (1500, 64)
        assert relative(np.load(tiny / "enc_first8.npy"), states[:8]) <= LIMIT
        assert relative(np.load(tiny / "logits.npy"), logits) <= LIMIT
    assert result.receipt["verified"] == "full" and result.receipt["logits"]["relative_rms"] <= EXACT_LOGITS
    assert result.receipt["logits"]["what"].startswith("decoder logits (over a fixed")
    assert result.receipt["runtimes"] == {"run_it": [], "none": True}
    assert any("docs/whisper.md" in note for note in result.receipt["notes"])


def test_every_key_of_the_specification_is_written(tiny: Path) -> None:
    for name in ("", "tiny.pt"):
        written = {key: value.data for key, value, _ in understand(open_checkpoint(str(tiny / name))).written()}
        for part, width in (("encoder", 1500), ("decoder", 448)):
            assert written[f"whisper.{part}.context_length"] == width
            assert written[f"whisper.{part}.embedding_length"] == 64
            assert written[f"whisper.{part}.block_count"] == 4
            assert written[f"whisper.{part}.attention.head_count"] == 2
            assert written[f"whisper.{part}.feed_forward_length"] == 256
        assert written["whisper.encoder.mels_count"] == 80 and written["whisper.vocab_size"] == 600


def test_both_layouts_become_one_model(tiny: Path) -> None:
    ours, theirs = (understand(open_checkpoint(str(tiny / name))) for name in ("", "tiny-f32.pt"))
    assert [(node.name, node.shape) for node in ours.nodes] == [(node.name, node.shape) for node in theirs.nodes]
    ours_whole, theirs_whole = whole(ours), whole(theirs)
    assert all(np.array_equal(ours_whole[name], theirs_whole[name]) for name in ours_whole)


def test_a_pt_without_its_sizes(tiny: Path, tmp_path: Path) -> None:
    import torch

    state = torch.load(tiny / "tiny.pt", weights_only=True)["model_state_dict"]
    torch.save({"model_state_dict": state}, tmp_path / "bare.pt")
    with pytest.raises(MissingError, match=r"nothing says what .*head_count"):
        understand(open_checkpoint(str(tmp_path / "bare.pt")))
    heads = {"encoder.attention.head_count": "2", "decoder.attention.head_count": "2"}
    assert understand(open_checkpoint(str(tmp_path / "bare.pt")), heads).sizes["n_ctx_enc"] == 1500


@pytest.mark.parametrize("channels", [80, 128])
def test_mel_filters_are_transformers(channels: int) -> None:
    from transformers import WhisperFeatureExtractor

    expected = WhisperFeatureExtractor(feature_size=channels).mel_filters.T
    found = np.array(mel_filters({"n_mels": channels})).reshape(channels, 201)
    assert np.abs(found - expected).max() <= 1e-12
    assert np.array_equal(found.astype(np.float32), expected.astype(np.float32))


def test_mel_filters_are_those_of_whisper_cpps_files(fixtures: Path) -> None:
    """A header of eleven integers behind the magic, then 80, 201 and the filters."""
    head = (fixtures / "legacy-other" / "whisper" / "for-tests-ggml-tiny.en.bin").read_bytes()[: 56 + 80 * 201 * 4]
    assert np.frombuffer(head, "<i4", 2, 48).tolist() == [80, 201]
    expected = np.frombuffer(head, "<f4", offset=56)
    assert np.abs(np.array(mel_filters({"n_mels": 80}), np.float32) - expected).max() <= 1e-7


WIDTHS: dict[str, dict[str, Any]] = {
    "large": {"num_mel_bins": 128, "d_model": 48, "encoder_attention_heads": 3, "decoder_attention_heads": 6},
    "turbo": {"encoder_layers": 4, "decoder_layers": 1},
    "distil": {"encoder_layers": 4, "decoder_layers": 2, "num_mel_bins": 128, "encoder_attention_heads": 2},
    "deep decoder": {"encoder_layers": 1, "decoder_layers": 3},
    "narrow feed-forward": {"encoder_ffn_dim": 40, "decoder_ffn_dim": 24},
}


def saved(folder: Path, base: bool = False, **changes: Any) -> tuple[Any, Any]:
    """(model, configuration) of random weights, saved by transformers."""
    import torch
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 96, "num_mel_bins": 80, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 96,
        "max_source_positions": 20, "max_target_positions": 24, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 3,
    }
    torch.manual_seed(7)
    config = transformers.WhisperConfig(**{**sizes, **changes})
    kind = transformers.WhisperModel if base else transformers.WhisperForConditionalGeneration
    model = kind(config).eval()
    shake(model)
    model.save_pretrained(folder)
    return model, config


@pytest.mark.parametrize("name", WIDTHS)
def test_widths_and_depths_against_transformers(name: str, tmp_path: Path) -> None:
    import torch

    model, config = saved(tmp_path / "hf", **WIDTHS[name])
    mel = np.random.default_rng(3).standard_normal((config.num_mel_bins, 40)).astype(np.float32)
    ids = [3, 17, 5, 90, 44]
    with torch.no_grad():
        out = model(input_features=torch.from_numpy(mel)[None], decoder_input_ids=torch.tensor([ids]))
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0]
    for side in (str(tmp_path / "hf"), result.path):
        graph = graph_of(side)
        assert relative(out.logits[0].numpy(), forward(graph, ids, inputs={"mel": mel})) <= LIMIT
        states = forward(graph, ids, inputs={"mel": mel}, part="encode")
        assert relative(out.encoder_last_hidden_state[0].numpy(), states) <= LIMIT


PUBLISHED = {
    "tiny": (384, 6, 4, 4, 80, 51865),
    "tiny.en": (384, 6, 4, 4, 80, 51864),
    "base": (512, 8, 6, 6, 80, 51865),
    "small": (768, 12, 12, 12, 80, 51865),
    "medium": (1024, 16, 24, 24, 80, 51865),
    "large-v2": (1280, 20, 32, 32, 80, 51865),
    "large-v3": (1280, 20, 32, 32, 128, 51866),
    "large-v3-turbo": (1280, 20, 32, 4, 128, 51866),
    "distil-small.en": (768, 12, 12, 4, 80, 51864),
    "distil-medium.en": (1024, 16, 24, 2, 80, 51864),
    "distil-large-v2": (1280, 20, 32, 2, 80, 51865),
    "distil-large-v3": (1280, 20, 32, 2, 128, 51866),
}
"""Width, heads, blocks of the encoder and the decoder, channels, tokens: openai/whisper's README and `ModelDimensions`,
Gandhi et al., 2311.00430."""
DISTILLED = {
    "apply_spec_augment": False, "classifier_proj_size": 256, "mask_feature_length": 10, "mask_feature_min_masks": 0,
    "mask_feature_prob": 0.0, "mask_time_length": 10, "mask_time_min_masks": 2, "mask_time_prob": 0.05,
    "median_filter_width": 7, "use_weighted_layer_sum": False, "max_length": 448, "scale_embedding": False,
    "forced_decoder_ids": [[1, 50259], [2, 50359]], "begin_suppress_tokens": [220, 50257],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_size_is_understood(name: str) -> None:
    """Blocks of the decoder are not those of the encoder; no key is left over."""
    import transformers

    width, heads, blocks, decoding, channels, tokens = PUBLISHED[name]
    config = transformers.WhisperConfig(
        vocab_size=tokens, num_mel_bins=channels, d_model=width, encoder_layers=blocks, decoder_layers=decoding,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
    ).to_dict()
    said = {**config, **DISTILLED, "architectures": ["WhisperForConditionalGeneration"]}
    graph = understand(Checkpoint("safetensors", None, (), {}, metadata=said), vocab_only=True)
    sizes = graph.sizes
    assert (sizes["n_layer_enc"], sizes["n_layer"], sizes["n_mels"]) == (blocks, decoding, channels)
    assert (sizes["n_embd"], sizes["n_head_enc"], sizes["n_vocab"]) == (width, heads, tokens)
    assert not [note for note in graph.notes if "does not use" in note]


def test_the_model_without_its_head_is_the_same_model(tmp_path: Path) -> None:
    saved(tmp_path / "whole")
    saved(tmp_path / "base", base=True)
    whole, base = (understand(open_checkpoint(str(tmp_path / name))) for name in ("whole", "base"))
    assert {node.name: node.shape for node in whole.nodes} == {node.name: node.shape for node in base.nodes}
    assert not {"proj_out.weight"} & {ref.name for node in whole.nodes for ref in node.inputs}


def test_filters_and_positions_stay_what_they_are_in_narrow_files(tmp_path: Path) -> None:
    saved(tmp_path / "hf")
    for kind in ("f16", "q8_0"):
        target = str(tmp_path / f"{kind}.gguf")
        result = convert(Request(str(tmp_path / "hf"), target, Options(outtype=kind), vocab=BARE))[0]
        types = {node.name: node.inputs[0].type.name for node in graph_of(result.path).nodes}
        assert types["mel_filters.weight"] == types["enc.blk.0.attn_norm.weight"] == "F32"
        assert types["dec.blk.1.cross_attn_q.weight"] == kind.upper()


def test_what_cannot_be_computed_is_said(tmp_path: Path) -> None:
    saved(tmp_path / "hf")
    graph = graph_of(str(tmp_path / "hf"))
    with pytest.raises(UnsupportedError, match="measured on texts"):
        measure(graph, [[1, 2]])
    with pytest.raises(UsageError, match="does not read"):
        forward(graph, [1], inputs={"pictures": np.zeros(1)})
    with pytest.raises(UsageError, match="at most 24"):
        forward(graph, [1] * 25)
    for shape in ((80, 41), (79, 40), (80,), (80, 0)):
        with pytest.raises(UsageError, match="spectrum"):
            forward(graph, [1], inputs={"mel": np.zeros(shape, np.float32)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder_attention_heads", 5), ("decoder_attention_heads", 0), ("encoder_layers", 3), ("decoder_layers", 1),
        ("num_mel_bins", 81), ("num_mel_bins", 0), ("d_model", -1), ("max_source_positions", 21),
        ("max_target_positions", 1 << 40), ("vocab_size", 1), ("activation_function", "relu"),
        ("encoder_ffn_dim", "64"), ("decoder_start_token_id", 1 << 40),
    ],
)
def test_a_configuration_that_contradicts_the_weights(key: str, value: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(GgferryError):
        understand(open_checkpoint(str(tmp_path)))


def test_no_key_is_idle(tmp_path: Path) -> None:
    """A written key that nothing reads could be wrong unseen; the start token is what a program that listens
    begins with."""
    saved(tmp_path / "hf")
    graph = graph_of(convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=BARE))[0].path)
    expected, idle = forward(graph, [3, 5, 17]), set()
    for key, value in graph.checkpoint.metadata.items():
        if not key.startswith("whisper."):
            continue
        changed = replace(value, data=value.data * 100 if isinstance(value.data, float) else value.data * 2)
        other = replace(graph.checkpoint, metadata={**graph.checkpoint.metadata, key: changed})
        try:
            if np.array_equal(expected, forward(understand(other), [3, 5, 17])):
                idle.add(key)
        except GgferryError:
            continue
    assert idle == {"whisper.decoder_start_token_id"}


# --- its tokenizer ----------------------------------------------------------------------------------------------

PROMPTS = ("<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>")
SPOKEN = (
    "Hello world, it's 3 o'clock", "<|startoftranscript|><|en|><|0.24|> Grüße aus Köln<|1.00|><|endoftext|>",
    "日本語 12345  x", "", " ", "<|9.99|> no such time",
)


@pytest.fixture(scope="module")
def spoken(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle's byte-level vocabulary with Whisper's special tokens, its times, which are none, and its template."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    folder = tmp_path_factory.mktemp("spoken")
    made = Tokenizer.from_file(str(fixtures / "hf" / "ckpt" / "whisper" / "tokenizer.json"))
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in PROMPTS])
    made.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", special=False, normalized=False) for i in range(51)])
    ids = made.get_vocab()
    marks = ("<|startoftranscript|>", "<|notimestamps|>", "<|endoftext|>")
    made.post_processor = TemplateProcessing(
        single=f"{marks[0]} {marks[1]} $A:0 {marks[2]}:0", pair=f"{marks[0]} {marks[1]} $A:0 $B:1 {marks[2]}:1",
        special_tokens=[(mark, ids[mark]) for mark in marks],
    )
    made.save(str(folder / "tokenizer.json"))
    end = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **end}))
    return folder


def slow_files(folder: Path, target: Path) -> Path:
    """The same vocabulary as OpenAI's models first had it: vocab.json, merges.txt, added_tokens.json."""
    whole_file = json.loads((folder / "tokenizer.json").read_text())
    target.mkdir()
    (target / "vocab.json").write_text(json.dumps(whole_file["model"]["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole_file["model"]["merges"]]
    (target / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    added = {token["content"]: token["id"] for token in whole_file["added_tokens"]}
    (target / "added_tokens.json").write_text(json.dumps(added))
    (target / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    return target


@pytest.mark.parametrize("slow", [False, True])
def test_the_vocabulary_of_a_converted_whisper_encodes_as_its_tokenizer(
    slow: bool, spoken: Path, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    expected = Tokenizer.from_file(str(spoken / "tokenizer.json"))
    saved(tmp_path / "hf", vocab_size=expected.get_vocab_size())
    for path in (slow_files(spoken, tmp_path / "slow") if slow else spoken).iterdir():
        (tmp_path / "hf" / path.name).write_bytes(path.read_bytes())
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf")))[0]
    found = load_tokenizer(open_checkpoint(result.path), expected.get_vocab_size())
    encode = encoder(found).encode
    for text in SPOKEN:
        assert encode(text, bos=False, special=True) == expected.encode(text, add_special_tokens=False).ids, text
    assert found.tokens[expected.token_to_id("<|0.24|>")] == "<|0.24|>"
    assert result.receipt["tokenizer"]["equal"] == result.receipt["tokenizer"]["texts"] > 0


def test_the_prompt_that_gguf_cannot_say_is_said(spoken: Path) -> None:
    """Its bos is <|endoftext|>, which nobody puts in front: add_bos would."""
    found = load(str(spoken))
    assert found.flags["add_bos"] is False and found.flags["add_eos"] is True
    assert any("puts <|startoftranscript|> <|notimestamps|> before a text" in note for note in found.notes)


def test_a_pt_says_how_to_get_a_vocabulary(tiny: Path, spoken: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes((tiny / "tiny.pt").read_bytes())
    with pytest.raises(MissingError, match="no tokenizer file was found") as caught:
        convert(Request(str(tmp_path / "tiny.pt"), str(tmp_path / "x.gguf")))
    assert "--no-vocab" in str(caught.value) and "--tokenizer" in str(caught.value)
    beside = VocabOptions(source=str(spoken))
    with_one = Request(str(tmp_path / "tiny.pt"), str(tmp_path / "x.gguf"), vocab=beside, level="fast")
    found = load_tokenizer(open_checkpoint(convert(with_one)[0].path), 600)
    assert len(found.tokens) == 600 and found.tokens[400] == "<|startoftranscript|>"
