"""`class_defaults.txt` is what the tool makes of the installed transformers."""

from __future__ import annotations

import pytest
import transformers_defaults

from helpers.third_party_fixtures import ROOT


@pytest.mark.slow
def test_the_file_is_what_the_tool_makes(capsys: pytest.CaptureFixture[str]) -> None:
    transformers_defaults.main()
    assert capsys.readouterr().out == (ROOT / "converters/model_graph/class_defaults/text_models.txt").read_text(
        "utf-8"
    )
