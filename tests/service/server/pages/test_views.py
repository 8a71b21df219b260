"""Views of real things: a receipt, headers, a plan, the index; what the page says of them is what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ggferry
from ggferry.service.server.pages import archive_view, model_view, plan_view, render
from ggferry.service.server.pages.model_page import ModelPage
from ggferry.service.server.pages.option_form import form_of
from ggferry.service.server.pages.plan_pages import AddPage
from ggferry.service.server.pages.views import PER_PAGE, ArchiveAddress
from ggferry.service.workers.questions import answer
from helpers.page_samples import SHELL

JOB: dict[str, Any] = {
    "id": "a" * 32,
    "source": "/archive/llama/old.bin",
    "state": "done",
    "container": "ggjt",
    "version": 1,
    "era": None,
    "architecture": "llama",
    "types": "Q4_0_V1 ×16, F32 ×5",
    "bytes_in": 357024,
    "bytes_out": 328960,
    "error": None,
    "reason": "",
    "updated": 1.79e9,
    "progress": None,
    "output": "/out/old.gguf",
    "entry": {},
    "tried": [{"attempt": 1, "outcome": "done", "error": None, "started": 1.0, "ended": 7.0}],
}


@pytest.fixture(scope="module")
def old(fixtures: Path) -> Path:
    return fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"


@pytest.fixture(scope="module")
def receipt(old: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("views") / "new.gguf"
    return dict(ggferry.convert(old, out, outtype="q8_0", allow_requantize=True, witness=["none"]).receipt)


def test_a_done_model_is_what_its_receipt_says(receipt: dict[str, Any]) -> None:
    page = model_view.with_receipt(model_view.page_of(JOB), receipt, "/files")
    assert "LLaMA model of 558 thousand weights in a GGJT v1 file" in page.sentence
    assert {fact.name for fact in page.assumed} == {"n_ctx", "eps", "rope_base"}
    assert [tensor.relative_rms for tensor in page.tensors] == [each["relative_rms"] for each in receipt["tensors"]]
    assert sum(tensor.bytes_in or 0 for tensor in page.tensors) == 350720
    assert page.proof is not None and page.proof.grades["rounded"] == 16 and page.proof.texts_equal == 40
    structure, cost = page.proof.agreements
    assert (structure.worst, structure.limit) == (receipt["logits"]["structure"], receipt["logits"]["limit"])
    assert (cost.worst, cost.limit) == (receipt["logits"]["relative_rms"], None) and 0.001 < cost.worst < 0.1
    exact = {**receipt, "logits": {**receipt["logits"], "structure": None, "relative_rms": 1e-7}}
    (both,) = model_view.with_receipt(model_view.page_of(JOB), exact, "/files").proof.agreements  # type: ignore[union-attr]
    assert (both.worst, both.limit) == (1e-7, receipt["logits"]["limit"])
    assert page.files[0].blake3 == receipt["output"]["files"][0]["blake3"] and page.files[0].url == "/files/new.gguf"
    assert page.has_vocabulary and not page.can_retry and not page.can_cancel
    text = render.page("model", SHELL, model=model_view.with_tensors(page, "", 1))
    assert page.proof.alone and "Verified without an independent reference" in text
    assert "100%" in text and "19 rounded" not in text and "16 rounded" in text


def test_nothing_is_called_proved_of_which_nothing_was_compared(receipt: dict[str, Any]) -> None:
    """A rendered chat template says nothing of weights, and a level is no comparison."""
    rendered = {
        "witness": "jinja2 3.1.6",
        "version": "",
        "what": "conversations",
        "side": "output",
        "count": 12,
        "worst": None,
        "limit": None,
        "place": None,
        "why": None,
        "missed": [],
    }
    page = model_view.with_receipt(model_view.page_of(JOB), {**receipt, "testimonies": [rendered]}, "/files")
    assert page.is_proved and page.proof is not None and page.proof.alone
    nothing = {**receipt, "tensors": [], "tokenizer": {}, "logits": None, "testimonies": []}
    page = model_view.with_receipt(model_view.page_of(JOB), nothing, "/files")
    assert page.proof is not None and page.proof.level == "full" and not page.is_proved


def test_a_witness_that_testified_and_one_that_did_not(receipt: dict[str, Any]) -> None:
    said = [
        {
            "witness": "llama.cpp",
            "version": "b1",
            "what": "logits",
            "side": "output",
            "count": 16,
            "worst": 3e-3,
            "limit": 0.1,
            "place": "prompt start, row 3",
            "why": None,
            "missed": [],
        },
        {
            "witness": "transformers",
            "version": "",
            "what": "logits",
            "side": "source",
            "count": 0,
            "worst": None,
            "limit": None,
            "place": None,
            "why": "it is not installed",
            "missed": [],
        },
    ]
    page = model_view.with_receipt(model_view.page_of(JOB), {**receipt, "testimonies": said}, "/files")
    text = render.page("model", SHELL, model=model_view.with_tensors(page, "", 1))
    assert "llama.cpp b1" in text and "furthest apart at prompt start, row 3" in text
    assert "Verified without an independent reference" not in text
    assert "not compared" in text and "it is not installed" in text


def test_an_adapter_is_shown_by_what_its_pairs_add(receipt: dict[str, Any]) -> None:
    deltas = {"pairs": 4, "vectors": 0, "relative_rms": 2e-7, "worst": "blk.0.attn_q.weight", "limit": 1e-5}
    page = model_view.with_receipt(model_view.page_of(JOB), {**receipt, "logits": None, "deltas": deltas}, "/files")
    text = render.page("model", SHELL, model=model_view.with_tensors(page, "", 1))
    assert "Agreement of the products" in text and "what 4 pairs add" in text and "≤ 1e-05" in text


def looked_at(old: Path) -> ModelPage:
    page = model_view.page_of({**JOB, "state": "planned", "output": None, "tried": []})
    page = model_view.with_inspection(page, answer("inspect", str(old), {}))
    return model_view.with_plan(page, answer("plan", str(old), {"outtype": "keep"}))


def test_a_model_that_is_only_planned_shows_its_headers(old: Path) -> None:
    page = looked_at(old)
    assert {fact.name: fact.value for fact in page.header}["n_vocab"] == "512"
    assert {fact.name: (fact.value, fact.assumed) for fact in page.hparams}["context_length"] == ("2048", True)
    assert {fact.name: fact.value for fact in page.keys}["tokenizer.ggml.tokens"].startswith("512 values: <unk>")
    assert page.proof is None and not page.files and len(page.tensors) == 21
    text = render.fragment("model_parts", "facts", model_view.with_tensors(page, "", 1))
    assert "repacked" not in text.partition("Tensors")[0] and "Q4_0_V1" in text


def test_tensors_are_found_by_name_and_paged(old: Path) -> None:
    page = looked_at(old)
    shown = model_view.with_tensors(page, "attn Q", 1).shown
    assert [row.name for row in shown.rows] == ["blk.0.attn_q.weight", "blk.1.attn_q.weight"] and shown.total == 2
    assert model_view.with_tensors(page, "", 99).shown.number == 1
    assert model_view.with_tensors(page, "nothing", 1).shown.rows == ()
    assert PER_PAGE >= 21


def test_an_error_is_told_with_its_place_and_a_way_out() -> None:
    try:
        raise ggferry.TruncatedError("ends early", path="/a/b.bin", offset=17, found=3, expected=9)
    except ggferry.GgferryError as error:
        problem = model_view.problem_of(error.as_dict())
    assert (problem.path, problem.offset, problem.found, problem.expected) == ("/a/b.bin", 17, "3", "9")
    assert problem.code == "truncated_error" and "fetch it again" in problem.advice
    assert model_view.problem_of({"message": "x", "hint": "do y", "code": "truncated_error"}).advice == "do y"


def test_a_line_of_several_types_shows_every_output() -> None:
    line = {
        "id": "1",
        "source": "/a.bin",
        "verdict": "convert",
        "container": "ggjt",
        "version": 1,
        "types": "Q4_0 ×1",
        "architecture": "llama",
        "bytes_in": 9,
        "bytes_out": 12,
        "output": "/a-Q4_0.gguf",
        "further": [{"outtype": "q8_0", "output": "/a-Q8_0.gguf", "bytes_out": 5}],
    }
    found = {"id": "p", "state": "ready", "source": "/", "options": {"outtype": "q4_0,q8_0"}, "error": None}
    page = plan_view.page_of({**found, "summary": {"verdicts": {"convert": 1}}}, [line], "", 1)
    (model,) = page.models
    assert (model.bytes_out, [each.bytes_out for each in model.further]) == (7, [5])
    text = render.page("plan", SHELL, plan=page)
    assert all(words in text for words in ("GGUF v3, llama, Q4_0", "GGUF v3, llama, Q8_0", "and:"))


def test_a_job_of_several_outputs_shows_each(receipt: dict[str, Any]) -> None:
    other = {**receipt, "options": {**receipt["options"], "outtype": "f16"}}
    other["output"] = {"files": [{**receipt["output"]["files"][0], "name": "other.gguf"}]}
    page = model_view.with_receipt(
        model_view.page_of({**JOB, "state": "done"}), {**receipt, "further": [other]}, "/files"
    )
    assert [each.outtype for each in page.ratings] == ["q8_0", "f16"] and len(page.files) == 2
    text = render.page("model", SHELL, model=model_view.with_tensors(page, "", 1))
    assert "/receipt?file=other.gguf" in text and text.count("Download") == 2


def test_the_form_keeps_what_was_typed_in() -> None:
    text = render.page("add", SHELL, add=AddPage(("/a",), form=form_of({"outtype": "q8_0,q4_k_m"})))
    assert 'name="further"' in text and 'value="q4_k_m"' in text


@pytest.mark.parametrize("verdict", ["", "convert", "corrupt"])
def test_a_plan_shows_what_is_and_what_would_be(verdict: str) -> None:
    lines = [
        {
            "id": "1",
            "source": "/a.bin",
            "verdict": "convert",
            "container": "ggjt",
            "version": 1,
            "types": "Q4_0 ×1",
            "architecture": "llama",
            "bytes_in": 9,
            "bytes_out": 7,
            "output": "/a.gguf",
            "grades": {"repacked": 1},
        },
        {"id": "2", "source": "/b.bin", "verdict": "corrupt", "error": {"code": "x", "message": "broken", "offset": 3}},
        {"id": "3", "source": "/c.txt", "verdict": "other"},
    ]
    summary = {"verdicts": {"convert": 1, "corrupt": 1, "other": 1}, "bytes_in": 9}
    found = {"id": "p", "state": "ready", "source": "/", "options": {"outtype": "q8_0"}, "submitted": None}
    found |= {"summary": summary, "error": None}
    page = plan_view.page_of(found, lines, verdict, 1)
    assert [model.source for model in page.models] == {
        "": ["/a.bin", "/b.bin"],
        "convert": ["/a.bin"],
        "corrupt": ["/b.bin"],
    }[verdict]
    assert page.counts == {"convert": 1, "corrupt": 1}
    text = render.page("plan", SHELL, plan=page)
    assert ("GGUF v3, llama, Q8_0" in text) is (verdict != "corrupt")
    assert ("broken" in text) is (verdict != "convert")


@pytest.mark.parametrize(
    ("given", "query"),
    [
        ({}, ArchiveAddress()),
        ({"sort": "-before", "page": "2", "q": "x"}, ArchiveAddress("x", sort="before", descending=True, page=2)),
        ({"sort": "id; drop", "page": "-1"}, ArchiveAddress()),
        ({"page": "9" * 30}, ArchiveAddress()),
        ({"page": "²"}, ArchiveAddress()),
        ({"view": "tree", "under": "/a"}, ArchiveAddress(tree=True, under="/a")),
    ],
)
def test_what_an_address_asks_for(given: dict[str, str], query: ArchiveAddress) -> None:
    assert archive_view.query_of(given, []) == query


def test_a_row_of_the_index() -> None:
    done = archive_view.row_of(JOB)
    assert (done.container, done.reason, done.bytes_out) == ("GGJT v1", "", 328960)
    failed = archive_view.row_of({**JOB, "state": "failed", "error": {"message": "no room"}, "bytes_out": 0})
    assert (failed.reason, failed.bytes_out) == ("no room", None)
    going = archive_view.row_of({**JOB, "state": "running", "progress": {"phase": "writing", "done": 3, "total": 9}})
    assert going.progress is not None and (going.progress.phase, going.progress.eta) == ("writing", None)
