"""Every GGML-era file beside LLaMA, from end to end: against the weights and logits of the Hugging Face model it was
made of, the runtimes of its time, and the llama.cpp of today that must run what comes out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import laid_out_values, values_of
from ggferry.converters.proof.logits import EXACT_LOGITS
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import (
    InconsistentError,
)
from ggferry.quant.codec import codec
from helpers.legacy_families import BY_NAME, ENTRIES, path_of, relative, rewritten, vocabulary
from helpers.third_party_fixtures import entry_cases, witness

FOUR_BIT_ACTIVATIONS = ("rwkvOld-q4_0",)
"""The runtime of that day quantized what it multiplied: its logits are 0.18 away from those of its own weights."""
CLOSE = 1e-5
NOT_COPIED = {"time_mix_decay.weight": 1e-6, "mel_filters.weight": 1e-7}
RUNTIME = {"F32": 1e-3, "F16": 1e-3}
"""Relative RMS to the runtimes of the time, by the type of the matrices; 0.025 for all others, whose products are
of values quantized to 8 bits."""


FIRST = {entry["arch"]: entry["file"] for _, entry in reversed(ENTRIES)}
"""One file a family; the others are converted by the slow tests."""
EACH = pytest.mark.parametrize(("root", "entry"), entry_cases(ENTRIES, quick=FIRST.values()))


@pytest.mark.sampled(4)
@EACH
def test_converts_with_full_proof(root: Path, entry: dict, tmp_path: Path) -> None:
    source = str(root / entry["file"])
    result = convert(Request(source, str(tmp_path / "out.gguf"), vocab=vocabulary(root, entry)))[0]
    receipt = result.receipt
    figures = receipt["logits"]
    proved = figures["relative_rms"] if figures["structure"] is None else figures["structure"]
    assert receipt["verified"] == "full" and proved <= figures["limit"] <= 2 * EXACT_LOGITS
    ids = json.loads((root / entry["hf_dir"] / "logits.json").read_text())["ids"]
    before, after = (forward(graph_of(path), ids, inputs=spectrum(entry)) for path in (source, result.path))
    kinds = set(entry["tensor_types"])
    if kinds <= {"F32", "F16"}:
        target = np.load(root / entry["oracle_logits"])
        assert relative(before, target) <= CLOSE and relative(after, target) <= CLOSE
    if "runtime_logits" in entry and not any(word in entry["file"] for word in FOUR_BIT_ACTIVATIONS):
        runtime = np.load(root / entry["runtime_logits"])
        limit = max((RUNTIME.get(kind, 0.025) for kind in kinds), default=0)
        assert relative(before, runtime) <= limit and relative(after, runtime) <= limit
    check_weights(entry, result.path)


def spectrum(entry: dict) -> dict[str, np.ndarray] | None:
    """What the runtimes of Whisper heard."""
    name = f"legacy-other/{entry['hf_dir']}/mel_seed.npz"
    return {"mel": np.load(witness(name))["mel"]} if entry["arch"] == "whisper" else None


def check_weights(entry: dict, path: str) -> None:
    """The float tensors of the output are the Hugging Face model's, laid out by its own table."""
    source = f"legacy-other/{entry['hf_dir']}"
    source += {"rwkv": "/rwkv4-tiny.pth", "whisper": "/tiny.pt"}.get(entry["arch"], "")
    if "k256" in source:  # too large to keep
        return
    graph = understand(open_checkpoint(str(witness(source))))
    output = graph_of(path)
    named = dict(graph.by_name)
    if graph.architecture.name == "mpt" or "output.weight" not in named:
        named.setdefault("output.weight", named["token_embd.weight"])  # written though tied
    assert set(output.by_name) <= set(named)
    assert set(graph.by_name) <= set(output.by_name)
    compared = 0
    for name, node in output.by_name.items():
        if node.inputs[0].type.quantized:
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


# --- what the files lack ----------------------------------------------------------------------------------------


def test_what_was_assumed_is_named_and_a_configuration_wins(tmp_path: Path) -> None:
    root, entry = BY_NAME["falcon/falcon40b-s64-jploski-f16.bin"]
    source = path_of(entry["file"])
    bare = convert(Request(source, str(tmp_path / "1.gguf"), level="fast"))[0].receipt["hparams"]
    assert bare["eps"]["origin"].startswith("default: ") and bare["n_ctx"]["origin"].startswith("default: ")
    config = str(root / entry["hf_dir"])
    told = convert(Request(source, str(tmp_path / "2.gguf"), level="fast", config=config))[0].receipt["hparams"]
    assert told["eps"].items() >= {"value": 1e-05, "origin": "config.json: layer_norm_epsilon"}.items()
    assert told["n_ctx"]["origin"].startswith("config.json: ")
    assert {name: param["value"] for name, param in bare.items()}.items() <= {
        name: param["value"] for name, param in told.items()
    }.items()


def test_another_model_s_configuration_is_refused(tmp_path: Path) -> None:
    root, entry = BY_NAME["gpt2/gpt2-s64-g04-q4_3.bin"]
    config = json.loads((root / entry["hf_dir"] / "config.json").read_text()) | {"n_head": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InconsistentError, match="n_head: the configuration does not fit the tensors"):
        convert(Request(path_of(entry["file"]), str(tmp_path / "out.gguf"), config=str(tmp_path)))


def test_first_quantizers_of_mpt_are_told_by_the_receipt(tmp_path: Path) -> None:
    receipt = convert(Request(path_of("replit/replit-s64-g1-q4_1.bin"), str(tmp_path / "x.gguf"), level="fast"))[
        0
    ].receipt
    assert any("states no quantization version" in note for note in receipt["notes"])


# --- StarCoder's repeated keys and values -----------------------------------------------------------------------


def test_starcoder_is_told_by_its_repeated_keys_and_values(tmp_path: Path) -> None:
    source = path_of("starcoder/starcoder-s64-g2-q5_1.bin")
    one = convert(Request(source, str(tmp_path / "1.gguf")))[0]
    assert one.receipt["architecture"] == "starcoder" and one.receipt["hparams"]["n_head_kv"]["value"] == 1
    assert len(one.receipt["dropped"]) == 8  # keys and values, weights and biases, of two blocks
    all_heads = convert(Request(source, str(tmp_path / "4.gguf"), arch="gpt2"))[0]
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
    assert convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf"), arch="gpt2"))[0].receipt["verified"]


# --- eras no witness is left of, made from the others -----------------------------------------------------------


def test_old_orientation_quantized_is_turned_by_decoding(tmp_path: Path) -> None:
    """No runtime ever loaded such a file; the script of then and a quantizer of now make one."""

    def quantized(name, code, shape, data):
        if code != 1 or name == "model/wpe":
            return code, shape, data
        values = np.frombuffer(data, "<f2").astype(np.float32).reshape(shape)
        return 8, shape, codec("Q8_0").encode(values, None).tobytes()

    data = bytearray(rewritten(path_of("gpt2/gpt2-s64-pre20230329-h5script-f16.bin"), quantized))
    struct.pack_into("<i", data, 24, 2007)
    (tmp_path / "m.bin").write_bytes(data)
    result = convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf")))[0]
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
    result = convert(Request(str(tmp_path / "m.bin"), str(tmp_path / "out.gguf")))[0]
    ids = json.loads((root / entry["hf_dir"] / "logits.json").read_text())["ids"]
    assert relative(forward(graph_of(result.path), ids), np.load(root / entry["oracle_logits"])) <= CLOSE
    assert result.receipt["hparams"]["n_head_kv"]["value"] == groups


def test_plan_is_free_of_weights(tmp_path: Path) -> None:
    """An inspection of a file whose tensors cannot be read still tells what it is."""
    checkpoint = open_checkpoint(path_of("gptj/gptj-s64-g1-q4_1.bin"))
    graph = understand(checkpoint)
    assert graph.architecture.name == "gptj" and graph.dialect.name == "ggml"
    assert graph.sizes["n_ff"] == 256 and graph.hparams["n_ff"].origin.startswith("shape of")


def test_options_still_apply(tmp_path: Path) -> None:
    source = path_of("gptneox/gptneox-seq-s64-f16.bin")
    root, entry = BY_NAME["gptneox/gptneox-seq-s64-f16.bin"]
    result = convert(Request(source, str(tmp_path / "o.gguf"), Options(outtype="q8_0"), vocab=vocabulary(root, entry)))[
        0
    ]
    kinds = {tensor["type"] for tensor in result.receipt["tensors"] if len(tensor["shape"]) > 1}
    assert kinds == {"Q8_0"} and result.receipt["verified"] == "full"
