"""An option is declared once: the command line, plans, requests and receipts all follow the table."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from laws.test_operations import requests
from typer.main import get_command

from ggferry.converters.conversion.options import OPTIONS, PLAN_NAMES, Heading, Kind, Option, options_of
from ggferry.converters.conversion.receipt_options import declared_options, with_receipt_options
from ggferry.converters.conversion.request import Request, request_of
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.errors import CorruptError, UsageError
from ggferry.service.cli import archive, convert, supported
from ggferry.service.cli import inspect as looking
from ggferry.service.cli.files import doctoring, editing, rewriting, running, surveying
from ggferry.service.workers.analyze import request_of as of_plan
from helpers.third_party_fixtures import FIXTURES

COMMANDS = {
    name: command
    for module in (convert, looking, running, supported, doctoring, editing, surveying, rewriting, archive)
    for made in (get_command(module.commands),)
    for name, command in getattr(made, "commands", {made.name: made}).items()  # a single one is no group
}
REQUESTS = requests()
"""Command → the record that declares it; test_operations.py is about these."""
PLAN_NAMES_OF_NOVEMBER_2026 = {
    "outtype",
    "verify",
    "expand",
    "allow_requantize",
    "allow_nonfinite",
    "big_endian",
    "pure",
    "leave_output_tensor",
    "output_tensor_type",
    "token_embedding_type",
    "tokenizer_model",
    "pre",
    "huggingface_json",
    "trim_vocab",
    "no_vocab",
    "tokenizer",
    "hparams",
    "model_name",
    "base",
    "ggla_permute",
    "imatrix",
    "arch",
    "config",
}
"""What lines of plans that people keep say."""
VALUES = {
    Kind.FLAG: True,
    Kind.NUMBER: 7,
    Kind.SIZE: "2KiB",
    Kind.DECIMAL: 2.5,
    Kind.FILE: "folder/a.bin",
    Kind.TEXTS: ["x", "y"],
    Kind.ADAPTERS: ["folder/x:0.5", "y"],
    Kind.PAIRS: {"a.b": "3"},
    Kind.TYPES: ["attn_v=Q5_K"],
    Kind.JSON_FILE: {"general.license": "mit"},
    Kind.TEXT: "Some",
}


def value_of(option: Option, folder: str) -> object:
    if option.kind is Kind.TEXT_FILE and option.in_plan:
        return ["recipe mine", "default Q8_0"]
    if option.kind in (Kind.TEXT_FILE, Kind.TYPES_FILE):
        with open(f"{folder}/text", "w") as file:
            file.write("recipe mine\ndefault Q8_0\n" if option.kind is Kind.TEXT_FILE else "attn_q=Q8_0")
        return f"{folder}/text"
    if option.kind is Kind.LIKE_FILE:
        return str(FIXTURES / "quantize/k256.Q4_K_M.gguf")
    if option.name in ("outtype", "output_tensor_type", "token_embedding_type"):
        return "q8_0"
    if isinstance(option.choices, tuple) and option.choices:
        return next((each for each in option.choices if each != option.default), option.choices[0])
    return not option.default if option.kind is Kind.FLAG else VALUES[option.kind]


def test_the_types_of_expand_are_those_that_blocks_expand_to() -> None:
    from ggferry.quant.types import EXPANSIONS

    assert next(option.choices for option in OPTIONS if option.name == "expand") == EXPANSIONS


def test_every_field_of_a_request_is_the_target_of_options() -> None:
    targets = {option.target for option in OPTIONS if option.target}
    wanted = {f"options.{each.name}" for each in fields(Options)} | {
        f"vocab.{each.name}" for each in fields(VocabOptions)
    }
    wanted |= {each.name for each in fields(Request)} - {"source", "options", "vocab", "out_paths"}
    assert targets == wanted


def test_names_and_flags_are_unique() -> None:
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names)
    for command in COMMANDS:
        flags = [flag for option in options_of(command) for flag in option.all_flags]
        assert len(set(flags)) == len(flags)


def test_old_plans_are_read() -> None:
    assert set(PLAN_NAMES) >= PLAN_NAMES_OF_NOVEMBER_2026


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.in_plan], ids=lambda each: each.name)
def test_a_plan_and_a_command_line_mean_the_same(option: Option, tmp_path: Path) -> None:
    value = value_of(option, str(tmp_path))
    found = of_plan("x", {option.name: value})
    assert found == request_of("x", {option.name: value}) != request_of("x", {})
    with pytest.raises(UsageError, match=option.name):
        of_plan("x", {option.name: 5.5 if option.kind is not Kind.DECIMAL else "5.5"})


@pytest.mark.parametrize("option", [each for each in OPTIONS if each.receipt], ids=lambda each: each.name)
def test_a_receipt_states_it_and_verify_takes_it_from_there(option: Option, tmp_path: Path) -> None:
    request = request_of("x", {option.name: value_of(option, str(tmp_path))})
    stated = declared_options(request, adapter=True)
    assert stated != declared_options(Request("x"), adapter=True)
    again = with_receipt_options(Request("x"), json.loads(json.dumps(stated)), "x.receipt.json")
    if option.kind in (Kind.FILE, Kind.ADAPTERS) or option.target == "level":
        assert again == Request("x")
    else:
        assert again == request
        holder, _, key = (option.receipt or "").rpartition(".")
        odd = {holder: {key: [[5]]}} if holder else {key: 5.5}
        with pytest.raises(CorruptError, match="receipt's options"):
            with_receipt_options(Request("x"), odd, "x.receipt.json")


@pytest.mark.parametrize(
    "command",
    [
        "convert",
        "quantize",
        "verify",
        "plan",
        "split",
        "merge",
    ],
)
def test_the_command_line_has_what_the_table_says(command: str) -> None:
    offered = {param.name: param for param in COMMANDS[command].params}
    for option in options_of(command):
        param = offered[option.name]
        assert set(option.all_flags) == {*param.opts, *param.secondary_opts}, option.name
        assert option.help in param.help and param.rich_help_panel == option.heading


@pytest.mark.parametrize(
    ("flags", "expected"), [([], None), (["--mtp"], True), (["--no-mtp"], False), (["--no-nextn"], False)]
)
def test_a_flag_may_say_no_by_two_names(flags: list[str], expected: bool | None) -> None:
    """`--no-nextn` is convert_hf_to_gguf.py's name of today, and `--no-mtp` its older one."""
    assert COMMANDS["convert"].make_context("convert", ["model", *flags]).params["mtp"] is expected


def test_help_has_headings() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "ggferry", "convert", "--help"], capture_output=True, text=True, check=True
    )
    lines = text.stdout.splitlines()
    used = {option.heading for option in options_of("convert")} | {Heading.OPTIONS}
    assert [line for line in lines if line in {f"{each}:" for each in Heading}] == [
        f"{e}:" for e in Heading if e in used
    ]
    assert len(used) >= 7


OTHER_MEANING = {
    ("quantize", "out"),
    ("quantize", "outtype"),  # arguments, as llama-quantize has them
}


def test_nothing_is_declared_beside_the_table() -> None:
    """A name of the table means the same in every command, or is listed."""
    names = {option.name for option in OPTIONS}
    found = {
        (command, param.name)
        for command, made in COMMANDS.items()
        for param in getattr(made, "params", ())
        if param.name in names
        and command not in REQUESTS
        and param.name not in {option.name for option in options_of(command)}
    }
    assert found == OTHER_MEANING
