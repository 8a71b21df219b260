"""The list of models that were computed as other programs compute them claims nothing that no test shows, and a model
with something else says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ggferry
from ggferry.converters.conversion.plan import plan_conversion
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.forward import evaluate
from ggferry.converters.model_graph.hparams import Param
from ggferry.converters.model_graph.open_checkpoint import architectures, open_checkpoint, projectors
from ggferry.converters.proof import reference_checked
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from ggferry.support.progress import silent
from helpers import reference_checked as recorder
from helpers.third_party_fixtures import FIXTURES, ROOT, hf_models
from helpers.tiny_models import TINY, make

pytestmark = pytest.mark.filterwarnings("ignore")
BOTH = "llama: no independent reference test with a sliding window and yarn"


def functions(path: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_test_that_is_there() -> None:
    known = {path: functions(path) for path in {test.partition("::")[0] for test in recorder.WITNESSES}}
    for test in recorder.WITNESSES:
        path, _, name = test.partition("::")
        assert name in known[path], test
    tables = {spec.identity for spec in (*architectures().values(), *projectors().values())}
    for architecture, _, witness, test in reference_checked.rows():
        function, _, case = test.partition("[")
        assert architecture in tables and witness and function in recorder.WITNESSES, test
        if "test_in_" in function and "architectures" in function:
            assert case.removesuffix("]") in TINY, test


def test_the_list_is_as_its_maker_writes_it() -> None:
    lines = recorder.lines(recorder.TABLE)
    assert (
        lines == sorted(set(lines)) == [reference_checked.written(*row) for row in map(reference_checked.parsed, lines)]
    )
    assert recorder.TABLE.read_text(encoding="utf-8").startswith(recorder.HEAD)


@pytest.mark.parametrize("name", sorted(hf_models()))
def test_nothing_is_unseen_of_the_fixtures(name: str) -> None:
    if (FIXTURES / "hf/ckpt" / name).is_dir():
        assert reference_checked.unchecked(graph_of(str(FIXTURES / "hf/ckpt" / name))) == ()


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LLaMA with yarn and a window, which no test has together."""
    folder = tmp_path_factory.mktemp("unseen") / "hf"
    make("mistral window", folder, rope_parameters=TINY["llama yarn"].config["rope_parameters"])
    return str(folder)


def test_a_conversion_says_what_no_test_has_seen(unseen: str, tmp_path: Path) -> None:
    request = Request(unseen, str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True))
    assert BOTH in plan_conversion(request, open_checkpoint(unseen)).outputs[0].plan.notes
    assert BOTH in convert(request)[0].receipt["notes"]
    assert BOTH in reverify(replace(request, level="fast"), str(tmp_path / "x.gguf"), silent).notes


def test_the_line_names_a_few_and_counts_the_rest(unseen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(unseen)
    (line,) = reference_checked.unchecked(
        replace(graph, hparams={**graph.hparams, "attn_softcap": Param(5.0, "planted")})
    )
    assert line == f"llama: no independent reference test with capped scores, nor with {BOTH.partition('with ')[2]}"
    monkeypatch.setattr(reference_checked, "seen", lambda: {"llama": (frozenset(),)})
    assert reference_checked.unchecked(graph)[0].endswith("more combinations") is (
        len(reference_checked.features(graph)) > 3
    )
    monkeypatch.setattr(reference_checked, "seen", dict)
    assert reference_checked.unchecked(graph) == ("llama: no independent reference test",)


@pytest.fixture
def recording() -> Iterator[recorder.Recorder]:
    plain = evaluate.forward
    found = recorder.Recorder()
    yield found
    evaluate.forward = plain


def test_a_test_that_passes_is_recorded(
    recording: recorder.Recorder, unseen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "reference_checked.txt"
    monkeypatch.setattr(recorder, "TABLE", table)
    test = next(iter(recorder.WITNESSES))
    table.write_text(
        f"llama | nothing else | somebody | {test}[old]\nllama | yarn | somebody | {test}[gone]\n"
        "llama | yarn | somebody | tests/no.py::test_more\n"
    )
    for case in ("old", "failed"):
        recording.test = f"{test}[{case}]"
        evaluate.forward(graph_of(unseen), [1, 2])
    recording.passed = {f"{test}[old]"}
    recording.pytest_sessionfinish()
    rows = [reference_checked.parsed(line) for line in recorder.lines(table)]
    assert [row[3] for row in rows] == [f"{test}[old]", f"{test}[gone]"]
    assert {"yarn", "a sliding window"} <= rows[0][1] and rows[0][2].startswith("transformers 5.")


def test_the_package_has_it() -> None:
    assert (Path(ggferry.__file__).parent / "converters/proof" / reference_checked.LIST).stat().st_size < 220_000
