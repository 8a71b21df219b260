"""What is kept of one model for the next of the same content gives what the next would have given by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.kinds import gguf, gguf_plan, kept_models
from ggferry.converters.conversion.kinds.gguf import plan_in
from ggferry.converters.conversion.plan import plan_source
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.support.content_cache import Recent, keeping
from helpers.builders import Llama
from helpers.hf_llama import hf_llama
from helpers.third_party_fixtures import cases, listed, witness

NAMES = ("tiny-a", "another-name-that-is-much-longer-than-the-first-v2", "Phi-3-mini-4k", "Qwen3-Reranker-1B", "tiny-b")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_models, "_KNOWN", Recent(64 << 20))


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths of the models that are bound to their architecture."""
    found: list[str] = []
    whole = gguf_plan._understood

    def counted(request: Request, checkpoint: Any) -> Any:
        found.append(checkpoint.path)
        return whole(request, checkpoint)

    monkeypatch.setattr(gguf_plan, "_understood", counted)
    yield found


def said(source: Path, outtype: str = "keep", **more: Any) -> Any:
    """Everything that is planned, down to the bytes of the headers."""
    plan = plan_source(Request(str(source), options=Options(outtype=outtype), **more))
    outputs = [(output.paths, plan_in(output)) for output in plan.outputs]
    return [
        (paths, one.as_dict(), one.metadata, one.layouts, [(step.name, step.offset) for step in one.steps], one.notes)
        for paths, one in outputs
    ], [one.objections for _, one in outputs]


def copies(source: Path, folder: Path) -> list[Path]:
    found = []
    for name in NAMES:
        place = folder / name / source.name if source.is_file() else folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copy if source.is_file() else shutil.copytree)(source, place)
        found.append(place)
    return found


@pytest.mark.parametrize("outtype", ["keep", "q8_0,f16"])
def test_models_of_one_content_and_other_names(outtype: str, tmp_path: Path, bound: list[str]) -> None:
    models = copies(hf_llama(tmp_path / "first"), tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tiny.bin").write_bytes(Llama().bytes())
    models += copies(tmp_path / "old" / "tiny.bin", tmp_path / "files")
    alone = [said(each, outtype) for each in models]
    del bound[:]
    with keeping():
        assert [said(each, outtype) for each in models] == alone
    assert len(bound) == 4  # one of each kind, and the two whose folders say what they are for


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(listed("hf/ckpt/*")))
def test_every_kind_of_checkpoint(name: str, tmp_path: Path) -> None:
    def told(path: Path) -> Any:
        try:
            return said(path)
        except Exception as error:
            return type(error), str(error)

    models = copies(witness(name), tmp_path)
    alone = [told(each) for each in models]
    with keeping():
        assert [told(each) for each in models] == alone


def test_what_differs_is_bound_anew(tmp_path: Path, bound: list[str]) -> None:
    first, same, theta, words, card = (hf_llama(tmp_path / name) for name in ("a", "b", "c", "d", "e"))
    config = json.loads((theta / "config.json").read_text())
    (theta / "config.json").write_text(json.dumps({**config, "rope_theta": 20000.0}))
    (words / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    (card / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    models = [first, same, theta, words, card]
    alone = [said(each) for each in models]
    del bound[:]
    with keeping():
        assert [said(each) for each in models] == alone
    assert [Path(path).parent.name for path in bound] == ["a", "c", "d", "e"]


def test_a_model_that_is_written_to_meanwhile_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = hf_llama(tmp_path / "first"), hf_llama(tmp_path / "second")
    alone, whole = said(second), gguf_plan._understood
    config = json.loads((first / "config.json").read_text())

    def disturbed(request: Request, checkpoint: Any) -> Any:
        found = whole(request, checkpoint)
        (first / "config.json").write_text(json.dumps({**config, "rope_theta": 20000.0}))
        return found

    with keeping():
        monkeypatch.setattr(gguf_plan, "_understood", disturbed)
        said(first)
        monkeypatch.setattr(gguf_plan, "_understood", whole)
        assert not kept_models._KNOWN._kept
        assert said(second) == alone


def test_a_model_of_very_many_tensors_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = hf_llama(tmp_path / "first"), hf_llama(tmp_path / "second")
    monkeypatch.setattr(kept_models, "MOST_TENSORS", 19)  # it has 20
    with keeping():
        said(first)
        assert not kept_models._KNOWN._kept
        monkeypatch.setattr(kept_models, "MOST_TENSORS", 20)
        said(second)
        assert len(kept_models._KNOWN._kept) == 1


def converted(source: Path, out: Path) -> tuple[bytes, Any]:
    out.parent.mkdir(exist_ok=True)
    [result] = convert(Request(str(source), out=str(out), level="fast", mmproj="none"))
    return out.read_bytes(), result.receipt


@pytest.mark.slow
def test_the_vocabulary_of_one_content_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [hf_llama(tmp_path / name) for name in ("a", "b", "c")]
    alone = [converted(each, tmp_path / "alone" / f"{each.name}.gguf") for each in models]
    asked: list[str] = []
    whole = gguf.check_tokenizer
    monkeypatch.setattr(gguf, "check_tokenizer", lambda *all, **more: asked.append(all[1]) or whole(*all, **more))
    with keeping():
        again = [converted(each, tmp_path / "kept" / f"{each.name}.gguf") for each in models]
    assert again == alone
    assert len(asked) == 1


def test_another_vocabulary_in_the_output_is_compared_anew(tmp_path: Path) -> None:
    source = hf_llama(tmp_path / "a")
    request = Request(str(source))
    with keeping():
        [output] = plan_source(replace(request, mmproj="none")).outputs
        read, asked = output.tokenizer, []
        assert read is not None

        def found(words: str) -> Any:
            asked.append(words)
            return {"why": words}

        def compare(tokenizer: Any, words: str, how: Request = request) -> Any:
            return kept_models.compared(output.known, tokenizer, how, lambda: found(words))

        assert compare(read, "1") == compare(read, "never") == {"why": "1"}
        assert compare(replace(read, tokens=("x", *read.tokens[1:])), "2") == {"why": "2"}
        assert compare(read, "3", replace(request, level="fast")) == {"why": "3"}
    assert compare(read, "4") == {"why": "4"}  # elsewhere
    assert asked == ["1", "2", "3", "4"]
