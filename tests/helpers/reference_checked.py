"""Records which models the tests against other programs compute alike: `pytest --reference-checked` over those tests
writes
`converters/proof/reference_checked.txt` anew for the tests that ran and passed (`make reference-checked` runs them
all).

What a test computes is seen where it calls `forward`; whom it asks is said here, one line a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import ggferry
from ggferry.converters.forward import evaluate
from ggferry.converters.proof import reference_checked

TABLE = Path(ggferry.__file__).parent / "converters" / "proof" / reference_checked.LIST
HEAD = """\
# Models that tests against other programs computed alike: architecture | features | by whom | in which test.
# Made by `make reference-checked` (tests/helpers/reference_checked.py); not edited by hand.
"""
TRANSFORMERS = f"transformers {version('transformers')}"
LLAMA_CPP = f"llama.cpp b{version('xllamacpp').rpartition('.')[2]}"
QWEN_TTS, POCKET_TTS = "qwen-tts 0.1.1", "pocket-tts 4.0.1"
ORACLE, EQUATIONS = "logits recorded with the model", "the published equations"
_A, _L = "tests/converters/architectures/", "tests/converters/legacy/"
WITNESSES = {
    f"{_A}test_in_transformers.py::test_both_sides_compute_what_transformers_computes": TRANSFORMERS,
    f"{_A}test_in_llama_cpp.py::test_llama_cpp_continues_alike": LLAMA_CPP,
    f"{_A}test_published_names.py::test_ling_2_is_glms_graph": TRANSFORMERS,
    f"{_A}test_published_names.py::test_sarvam_is_ling_2_whose_whole_heads_turn": TRANSFORMERS,
    f"{_A}test_published_names.py::test_grovemoe_adds_a_smaller_expert_a_group": EQUATIONS,
    f"{_A}test_publishers_code.py::test_a_model_that_fills_in_masked_tokens_sees_all": TRANSFORMERS,
    f"{_A}test_publishers_code.py::test_the_output_of_baichuan_2_has_rows_one_long": TRANSFORMERS,
    f"{_A}test_published_names.py::test_the_first_of_ling_and_deepseek_are_ernies_graph": TRANSFORMERS,
    f"{_A}test_published_names.py::test_llama_cpp_continues_an_arctic_with_experts": LLAMA_CPP,
    f"{_A}test_published_names.py::test_what_thinks_of_deepseek_ocr_is_ernies_graph": TRANSFORMERS,
    f"{_A}test_publishers_code.py::test_a_published_model_computes_what_its_kin_does": TRANSFORMERS,
    f"{_A}test_drafts.py::test_llama_cpp_proposes_what_our_pass_does": LLAMA_CPP,
    f"{_A}test_drafts.py::test_llama_cpp_proposes_what_gemmas_assistant_does": LLAMA_CPP,
    f"{_A}test_drafts.py::test_gemmas_assistant_is_transformers": TRANSFORMERS,
    f"{_A}test_drafts.py::test_muse_glimmers_assistant_is_transformers": TRANSFORMERS,
    f"{_A}test_encoders.py::test_states_are_transformers": TRANSFORMERS,
    f"{_A}test_lfm2_embeddings.py::test_states_are_transformers": TRANSFORMERS,
    f"{_A}test_codes.py::test_lfm2_codes_as_transformers": TRANSFORMERS,
    f"{_A}test_codes.py::test_wavtokenizer_as_torch": EQUATIONS,
    f"{_A}test_qwen3_tts.py::test_both_sides_compute_what_the_publishers_classes_do": QWEN_TTS,
    f"{_A}test_qwen3_tts.py::test_llama_cpp_continues_alike": LLAMA_CPP,
    f"{_A}test_pocket_tts.py::test_both_sides_compute_what_the_publishers_classes_do": POCKET_TTS,
    f"{_A}test_pocket_tts.py::test_llama_cpp_computes_the_same_probabilities": LLAMA_CPP,
    f"{_A}test_nomic_bert_moe.py::test_nomic_2_by_its_definition": EQUATIONS,
    f"{_A}test_jina_bert_v3.py::test_jina_3_by_its_definition": EQUATIONS,
    f"{_A}test_encoders.py::test_neobert_by_its_definition": EQUATIONS,
    f"{_A}test_encoders.py::test_jina_by_its_definition": EQUATIONS,
    f"{_A}test_encoders.py::test_a_llama_that_sees_what_follows": TRANSFORMERS,
    f"{_A}test_unclassed.py::test_llama_cpp_continues_alike": LLAMA_CPP,
    f"{_A}test_granite_switch.py::test_merged_weights": TRANSFORMERS,
    f"{_A}test_runtime_alone.py::test_llama_cpp_computes_the_same_probabilities": LLAMA_CPP,
    f"{_A}test_chameleon.py::test_llama_cpp_continues_a_chameleon_without_pictures": LLAMA_CPP,
    f"{_A}test_oracle.py::test_forward_is_transformers": ORACLE,
    f"{_A}test_rerankers.py::test_a_reranker_scores_as_published": TRANSFORMERS,
    f"{_A}test_jina_bert_v3.py::test_what_transformers_saves_computes_what_transformers_does": TRANSFORMERS,
    f"{_A}test_bert.py::test_bert_is_the_oracles": ORACLE,
    f"{_A}test_bert.py::test_variants_against_transformers": TRANSFORMERS,
    f"{_A}test_bert.py::test_llama_cpp_embeds_with_our_bert": LLAMA_CPP,
    f"{_A}test_bert.py::test_llama_cpp_embeds_with_our_nomic_bert": LLAMA_CPP,
    f"{_A}test_bert.py::test_nomic_by_its_published_equations": EQUATIONS,
    f"{_A}test_t5.py::test_t5_is_the_oracles": ORACLE,
    f"{_A}test_t5.py::test_variants_against_transformers": TRANSFORMERS,
    f"{_A}test_whisper.py::test_both_sides_compute_the_oracles_states_and_logits": ORACLE,
    f"{_A}test_rwkv.py::test_both_sides_compute_the_equations": EQUATIONS,
    f"{_A}test_rwkv.py::test_llama_cpp_continues_alike": LLAMA_CPP,
    f"{_A}test_rwkv.py::test_rwkv4_pth_computes_the_oracles_logits_from_both_sides": ORACLE,
    f"{_A}test_meta_llama.py::test_the_oracles_shards_compute_the_float64_logits": ORACLE,
    f"{_A}test_meta_llama.py::test_metas_names_order_and_scaled_rope": TRANSFORMERS,
    f"{_L}test_llama.py::test_converts_with_full_proof": ORACLE,
    f"{_L}test_llama.py::test_llama_cpp_runs_one_file_of_each_folder": LLAMA_CPP,
    f"{_L}test_families.py::test_converts_with_full_proof": ORACLE,
    f"{_L}test_clip_cpp.py::test_embeddings_are_transformers": TRANSFORMERS,
    "tests/converters/projectors/test_published_towers.py::test_rows_are_the_publishers": EQUATIONS,
    "tests/corpus/test_arch_oracle.py::test_both_sides_compute_what_transformers_does": ORACLE,
    "tests/corpus/test_arch_oracle.py::test_llama_cpp_continues_as_we_do": LLAMA_CPP,
}


_P = Path(__file__).parents[1] / "converters" / "projectors"
WITNESSES |= {
    f"tests/converters/projectors/{path.name}::test_rows_are_transformers": TRANSFORMERS
    for path in _P.glob("test_*.py")
    if "def test_rows_are_transformers(" in path.read_text(encoding="utf-8")
}
_E = "tests/converters/projectors/test_audio_encoders.py"
WITNESSES |= {
    f"{_E}::test_llama_cpp_makes_the_same_rows": LLAMA_CPP,
    f"{_E}::test_rows_are_those_of_the_published_formula": EQUATIONS,
}


class Recorder:
    """Keeps what is computed while a test runs. A plugin: its hooks have pytest's names."""

    def __init__(self) -> None:
        self.test = ""
        self.found: dict[str, set[str]] = {}
        self.passed: set[str] = set()
        self.plain = evaluate.forward
        evaluate.forward = self.forward  # before any test module takes it by name

    def forward(self, graph: Any, *arguments: Any, **named: Any) -> Any:
        name = _test(self.test)
        if name in WITNESSES:
            row = reference_checked.written(
                graph.architecture.identity, reference_checked.features(graph), WITNESSES[name], self.test
            )
            self.found.setdefault(self.test, set()).add(row)
        return self.plain(graph, *arguments, **named)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Only the tests that ask others."""
        others = [item for item in items if _test(item.nodeid) not in WITNESSES]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        yield
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Rows of the tests that ran take the place of theirs; rows of tests that are no more go."""
        kept = {
            line
            for line in lines(TABLE)
            if _test(test := reference_checked.parsed(line)[3]) in WITNESSES and test not in self.passed
        }
        kept |= {row for test in self.passed for row in self.found.get(test, ())}
        TABLE.write_text(HEAD + "".join(f"{row}\n" for row in sorted(kept)), encoding="utf-8")


def lines(table: Path) -> list[str]:
    """The rows of the table as they stand."""
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _test(nodeid: str) -> str:
    return nodeid.partition("[")[0]
