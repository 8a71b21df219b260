"""Files of the blocks that predict further tokens alone: what they hold, their proof, and llama.cpp drafting by one."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.model import Places
from ggferry.converters.next_token_blocks import LOADED_ALONE
from ggferry.converters.proof.logits import check_logits
from ggferry.converters.proof.runtime_keys import check
from ggferry.converters.rewrite.next_tokens import graft
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import RefusedError, UsageError, VerificationError
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.llama_cpp import draft_candidates
from helpers.next_tokens import APART, LAST, MODELS, ONLY_ALONE, further_logits, most, predicting, states_before
from helpers.tiny import TOKENS
from helpers.tiny_models import check_streaming, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
OF_DECODER = ("token_embd.weight", "output_norm.weight", "output.weight")
"""What convert_hf_to_gguf.py --mtp keeps besides the blocks (`filter_tensors` of `conversion/qwen.py`, `glm.py`)."""


def request_of(source: Path, out: Path, **more: Any) -> Request:
    """The request for float32 without a vocabulary."""
    return Request(str(source), str(out), options=Options(outtype="f32"), vocab=VocabOptions(none=True), **more)


def contents(path: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The bytes of every tensor of a GGUF file, and its keys."""
    made = open_gguf(str(path))
    data = {name: made.files[0].read(ref.spans[0].offset, ref.nbytes) for name, ref in made.tensors.items()}
    return data, dict(made.metadata)


@pytest.mark.parametrize("name", ["qwen35", pytest.param("glm4moe", marks=pytest.mark.slow)])
def test_tensors_and_keys(name: str, tmp_path: Path) -> None:
    predicting(name, tmp_path / "hf")
    convert(request_of(tmp_path / "hf", tmp_path / "all.gguf", level="fast"))
    (made,) = convert(request_of(tmp_path / "hf", tmp_path / "only.gguf", mtp_only=True))
    whole, keys = contents(tmp_path / "all.gguf")
    only, own = contents(tmp_path / "only.gguf")
    last = keys[f"{made.receipt['architecture']}.block_count"].data - 1
    expected = {n: data for n, data in whole.items() if n in OF_DECODER or n.startswith(f"blk.{last}.")}
    assert only == expected and "blk.0.attn_norm.weight" in whole
    assert {k: v for k, v in own.items() if "size_label" not in k} == {
        k: v for k, v in keys.items() if "size_label" not in k
    }
    assert not [found for found in check(own["general.architecture"].data, own, only) if "tensor" in found.kind]
    assert any("of the decoder" in note for note in made.receipt["notes"])
    proved = made.receipt["logits"]
    assert proved["what"].startswith("logits of the blocks that predict further tokens (over fixed states")
    assert "blocks that predict further tokens: 1" in proved["reached"] and proved["limit"] < 1e-5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*MODELS, *ONLY_ALONE])
def test_over_the_decoders_states_it_computes_what_transformers_module_does(name: str, tmp_path: Path) -> None:
    count = most(name)
    predicting(name, tmp_path / "hf", count)
    further = further_logits(name, tmp_path / "hf", count)
    states = states_before(name, tmp_path / "hf")
    source = understand(graph_of(str(tmp_path / "hf")).checkpoint, mtp_only=True)
    assert relative(further, forward(source, TOKENS, inputs={"states": states})) <= 1e-5
    made = graph_of(str(write(source, tmp_path / "x.gguf")))
    whole = forward(made, TOKENS, inputs={"states": states})
    assert relative(further, whole) <= 1e-5
    some = forward(made, TOKENS, inputs={"states": states}, places=Places(rows=(0, 1)))
    assert len(some) == 2 * count and relative(whole[:2], some[:2]) <= 1e-5
    with pytest.raises(UsageError, match="one a token"):
        forward(made, TOKENS, inputs={"states": states[1:]})


@pytest.mark.parametrize("wrong", ["nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight"])
def test_a_mistake_in_the_layout_is_noticed_by_the_forward_pass(wrong: str, tmp_path: Path) -> None:
    """Qwen's norms are written with 1 added: one that is not has the values that the layout, so planted, asks for."""
    predicting("qwen35", tmp_path / "hf")
    source = understand(graph_of(str(tmp_path / "hf")).checkpoint, mtp_only=True)
    nodes = [replace(node, layout=SAME) if node.name.endswith(f".{wrong}") else node for node in source.nodes]
    planted = replace(source, nodes=tuple(nodes), by_name={node.name: node for node in nodes})
    assert check_logits(source, graph_of(str(write(source, tmp_path / "good.gguf")))).relative_rms < 1e-5
    with pytest.raises(VerificationError, match="the forward pass of the output differs"):
        check_logits(source, graph_of(str(write(planted, tmp_path / "x.gguf"))))


EXCHANGED = {
    "glm 5.3 flash": (
        ("5.enorm", "5.hnorm"),
        ("5.input_layernorm", "5.post_attention_layernorm"),
        ("5.embed_tokens", "5.shared_head.head"),
    ),
    "mimo2": (
        ("mtp.layers.0.enorm", "mtp.layers.0.hnorm"),
        ("mtp.layers.0.input_layernorm", "mtp.layers.0.pre_mlp_layernorm"),
        ("mtp.layers.0.final_layernorm", "model.norm"),
        ("mtp.layers.0.mlp.gate_proj", "mtp.layers.0.mlp.up_proj"),
    ),
    "nemotron-h latent": (
        ("mtp.layers.0.enorm", "mtp.layers.0.hnorm"),
        ("mtp.layers.0.norm", "mtp.layers.1.norm"),
        ("mtp.layers.1.norm", "mtp.layers.1.final_layernorm"),
    ),
    "qwen4exp": (
        ("mtp.fc_embedding", "mtp.fc_hidden"),
        ("mtp.pre_fc_norm_hidden", "mtp.hyper_connection_mixer.hc_norm"),
        ("mtp.layers.0.attn_hyper_connection.hc_norm", "mtp.layers.0.mlp_hyper_connection.hc_norm"),
    ),
    "deepseek v4": (
        ("mtp.0.e_proj", "mtp.0.h_proj"),
        ("mtp.0.enorm", "mtp.0.hnorm"),
        ("mtp.0.attn_norm", "mtp.0.ffn_norm"),
        ("mtp.0.norm", "model.norm"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pair"), [(name, pair) for name, pairs in EXCHANGED.items() for pair in pairs])
def test_tensors_exchanged_are_noticed(name: str, pair: tuple[str, str], tmp_path: Path) -> None:
    """As a table would take them that has two of one shape in each other's place."""
    predicting(name, tmp_path / "hf")
    further, states = further_logits(name, tmp_path / "hf"), states_before(name, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    one, other = (next(n for n in tensors if n.endswith(f"{end}.weight")) for end in pair)
    save_file({**tensors, one: tensors[other], other: tensors[one]}, path)
    source = understand(graph_of(str(tmp_path / "hf")).checkpoint, mtp_only=True)
    assert relative(further, forward(source, TOKENS, inputs={"states": states})) > 1e-3


UNSEEN = re.compile(r"experts\.\d|_bias|bias$|indexer")
"""What may not be seen in what a block gives: experts that no token chooses, and what only chooses them, or tokens."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LAST, *APART])
def test_norms_exchanged_and_values_out_of_place_are_noticed(name: str, tmp_path: Path) -> None:
    """Of the blocks that are copies of a decoder's: each norm in another's place, and each row one value further."""
    predicting(name, tmp_path / "hf")
    further, states = further_logits(name, tmp_path / "hf"), states_before(name, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    tensors, decoder = load_file(path), make(name, tmp_path / "plain", **MODELS[name])
    own = sorted(load_file(path).keys() - load_file(tmp_path / "plain" / "model.safetensors").keys())
    assert len(decoder) == len(TOKENS)
    norms = [one for one in own if "norm" in one and tensors[one].shape == (len(states[0]),)]
    for one, other in pairwise(norms):
        save_file({**tensors, one: tensors[other], other: tensors[one]}, path)
        check_seen(tmp_path / "hf", states, further, one)
    for one in own:
        save_file({**tensors, one: np.roll(tensors[one], 1, -1)}, path)
        if not UNSEEN.search(one):
            check_seen(tmp_path / "hf", states, further, one)


def check_seen(folder: Path, states: np.ndarray, further: np.ndarray, what: str) -> None:
    source = understand(graph_of(str(folder)).checkpoint, mtp_only=True)
    assert relative(further, forward(source, TOKENS, inputs={"states": states})) > 1e-3, what


def test_it_is_verified_without_an_option_and_not_taken_for_another(tmp_path: Path) -> None:
    predicting("qwen35", tmp_path / "hf")
    request = request_of(tmp_path / "hf", tmp_path, mtp_only=True, level="fast")
    made = Path(convert(request)[0].path)
    assert made.name.startswith("mtp-")  # as convert_hf_to_gguf.py calls it
    made.with_name(f"{made.name}.receipt.json").unlink()
    plain = request_of(tmp_path / "hf", made)
    assert reverify(plain, str(made), silent).proof.tensors
    assert graph_of(str(made)).by_name.keys() == {n.name for n in graph_of(str(made)).nodes}
    data = bytearray(made.read_bytes())
    data[-40] ^= 0xFF
    made.write_bytes(data)
    with pytest.raises(VerificationError):
        reverify(plain, str(made), silent)


def test_refusals(tmp_path: Path) -> None:
    make("llama", tmp_path / "llama")
    with pytest.raises(UsageError, match=r"--mtp-only: .* found llama, expected bailingmoe2, .*cohere2moe, "):
        convert(request_of(tmp_path / "llama", tmp_path / "x.gguf", mtp_only=True))
    predicting("qwen35", tmp_path / "hf")
    with pytest.raises(UsageError, match="--no-mtp and --mtp-only"):
        convert(request_of(tmp_path / "hf", tmp_path / "x.gguf", mtp_only=True, mtp=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_drafts_with_it_as_with_the_whole_file(name: str, tmp_path: Path) -> None:
    """Beside a file of the decoder alone: the same proposals, token by token, with the same probabilities."""
    predicting(name, tmp_path / "hf")
    source = str(tmp_path / "hf")
    files = [
        write(understand(graph_of(source).checkpoint, **options), tmp_path / f"{number}.gguf")
        for number, options in enumerate(({}, {"mtp": False}, {"mtp_only": True}))
    ]
    assert graph_of(str(files[2])).architecture.name in LOADED_ALONE
    together, _ = draft_candidates(TOKENS[:12], 4, files[0], files[0], "MTP", 1)
    apart, _ = draft_candidates(TOKENS[:12], 4, files[1], files[2], "MTP", 1)
    assert apart == together and together


Shares = list[tuple[int, float]]
ALIKE = {"glm 5.3 flash": {"index_topk": 63}}
"""Configurations of which llama.cpp's decoder computes what transformers' does: its indexers may choose otherwise."""


def first_proposal(name: str, folder: Path) -> tuple[Shares, Shares]:
    """What llama.cpp proposes first behind a prompt and a token of the decoder's, and what our pass does: the likeliest
    three tokens, with their shares of ten."""
    predicting(name, folder / "hf", **ALIKE.get(name, {}))
    checkpoint, tokens = graph_of(str(folder / "hf")).checkpoint, TOKENS[:12]
    decoder = write(understand(checkpoint, mtp=False), folder / "decoder.gguf")
    block = write(understand(checkpoint, mtp_only=True), folder / "block.gguf")
    proposed, _ = draft_candidates(tokens, 4, decoder, block, "MTP", 1)
    tokens = [*tokens, int(forward(graph_of(str(decoder)), tokens)[-1].argmax())]
    states = states_before(name, folder / "hf", tokens)
    # its draft also reads the first token, beside a state of zeros (common/speculative.cpp, `draft_mtp::process`)
    states = np.concatenate((np.zeros_like(states[:1]), states))
    logits = forward(graph_of(str(block)), [0, *tokens], inputs={"states": states})[-1]
    best = np.argsort(-logits)[:10]
    shares = np.exp(logits[best] - logits[best[0]])
    shares /= shares.sum()
    expected = [(int(token), float(share)) for token, share in zip(best[:3], shares[:3], strict=True)]
    return [proposed[0][each] for each in sorted(proposed[0])], expected


def are_alike(found: Shares, expected: Shares) -> bool:
    return len(found) == 3 and all(
        one == other and abs(share - likely) < 1e-3
        for (one, share), (other, likely) in zip(found, expected, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glm4moe", "glm 5.3 flash", "mimo2", *ONLY_ALONE])
def test_llama_cpp_proposes_what_our_pass_does(name: str, tmp_path: Path) -> None:
    found, expected = first_proposal(name, tmp_path)
    assert are_alike(found, expected), (found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nemotron-h latent", "qwen4exp"])
def test_where_a_note_says_so_llama_cpp_proposes_otherwise(name: str, tmp_path: Path) -> None:
    """The day it does not, the note goes."""
    found, expected = first_proposal(name, tmp_path)
    assert not are_alike(found, expected), (found, expected)
    notes = understand(graph_of(str(tmp_path / "hf")).checkpoint).notes
    assert any("other proposals, the same answers" in note for note in notes)


def test_a_block_that_no_file_has_beside_its_decoder(tmp_path: Path) -> None:
    """DeepSeek V4's mixes its streams by tensors of its own, which GGUF calls as the decoder's."""
    predicting("deepseek v4", tmp_path / "hf")
    source = str(tmp_path / "hf")
    check_streaming(understand(graph_of(source).checkpoint, mtp_only=True))
    whole = understand(graph_of(source).checkpoint)
    assert not whole.sizes.get("n_nextn") and any("predicts further tokens" in drop.reason for drop in whole.dropped)
    with pytest.raises(UsageError, match="a file holds the blocks that predict further tokens alone, or the decoder"):
        understand(graph_of(source).checkpoint, mtp=True)
    convert(request_of(tmp_path / "hf", tmp_path / "trunk.gguf", level="fast"))
    convert(request_of(tmp_path / "hf", tmp_path / "only.gguf", mtp_only=True))
    trunk, only = (contents(tmp_path / f"{name}.gguf")[0] for name in ("trunk", "only"))
    assert trunk["output_hc_fn.weight"] != only["output_hc_fn.weight"]
    assert trunk["token_embd.weight"] == only["token_embd.weight"] and "blk.5.nextn.eh_proj.weight" in only
    with pytest.raises(RefusedError, match="reads two files"):
        graft(str(tmp_path / "trunk.gguf"), str(tmp_path / "only.gguf"), str(tmp_path / "both.gguf"))
