"""Files of the blocks that predict further tokens alone: what they hold, their proof, and llama.cpp drafting by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.next_token_blocks import LOADED_ALONE
from ggferry.converters.proof.runtime_keys import check
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import UsageError, VerificationError
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.llama_cpp import draft_candidates
from helpers.next_tokens import MODELS, predicting
from helpers.tiny import TOKENS
from helpers.tiny_models import make, write

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
    with pytest.raises(UsageError, match=r"--mtp-only: .* found llama, expected deepseek2"):
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
