"""The command line. Data goes to stdout, everything else to stderr.

Exit codes are as in README.md; no user sees a traceback.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ggferry.formats.errors import GgferryError, OutOfMemoryError, UsageError, of_os
from ggferry.formats.files.opened_files import recorded
from ggferry.formats.memory_cap import HEADERS, ration
from ggferry.quant.kernels import forget_expected, on_compilation
from ggferry.service.cli.options import PlainCommand, PlainGroup, print_json, say, tell
from ggferry.service.cli.terminal import ERROR, Manner, manner, set_manner

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "convert": {
        "convert": "Convert a model to GGUF v3 and prove it.",
        "quantize": "Quantize a GGUF model of any architecture.",
        "verify": "Compare a source with its conversion.",
    },
    "inspect": {"inspect": "Show what a file holds, without reading tensor data."},
    "files.running": {
        "forward": "Run the reference forward pass.",
        "imatrix": "Compute an importance matrix.",
        "tokenize": "Encode text by the file's own vocabulary.",
    },
    "supported": {
        "architectures": "List the families of models that are read.",
        "types": "List the types a model can be converted to.",
    },
    "files.editing": {"edit": "Change keys and names of tensors in a GGUF file."},
    "files.doctoring": {"doctor": "Identify files and check integrity."},
    "files.surveying": {
        "hash": "Digest every tensor, and all together.",
        "diff": "Show how two models differ.",
    },
    "files.comparing": {"compare": "Compare the predictions of two models on a text."},
    "files.rewriting": {
        "split": "Cut a GGUF file into shards.",
        "merge": "Join shards, or the pieces of a file.",
    },
    "files.signing": {"sign": "Sign a GGUF file and its receipt with a key."},
    "files.publishing": {"publish": "Publish GGUF files on the Hugging Face Hub."},
    "archive": {
        "plan": "Scan an archive and write a migration plan.",
        "apply": "Execute a plan.",
        "ledger": "Show job status from a ledger.",
    },
    "server.serve": {"serve": "Serve the HTTP API and the page."},
    "server.remote": {"remote": "Client for a ggferry server."},
}
"""Modules, the commands in them, and what each does in the words of `ggferry --help`.

typer examines every option of every command it is given (0.1 s of CPU for all), so it is given the commands of the
module that is asked for. The overview is made of the words here, and imports none.
"""

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130
COMPLETING = "_GGFERRY_COMPLETE"
"""What a shell sets that asks typer for completions, of options too."""


def _app(arguments: list[str], alone: bool) -> Any:
    """Return typer's application: with all commands, or with the one that `arguments` name, as a program of its own."""
    import typer

    app = typer.Typer(
        name="ggferry",
        cls=PlainGroup,
        help="Converts language-model weights from legacy and training formats to GGUF v3, and proves the result.",
        no_args_is_help=not alone,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    first = next((each for each in arguments if not each.startswith("-")), "")
    modules = [module for module, names in COMMANDS.items() if first in names]
    if not modules and COMPLETING not in os.environ:
        for name, words in ((name, words) for names in COMMANDS.values() for name, words in names.items()):
            app.command(name, help=words, cls=PlainCommand)(_named_only)
        return app
    if alone:
        offered = import_module(f"ggferry.service.cli.{modules[0]}").commands.registered_commands
        app.registered_commands += [each for each in offered if each.callback.__name__ == arguments[0]]
        return app
    for module in modules or COMMANDS:
        app.add_typer(import_module(f"ggferry.service.cli.{module}").commands)
    return app


def _named_only() -> None:
    """Stand for a command in the overview."""


def _run(arguments: list[str], alone: bool = False) -> int:
    """Run a command line and return its exit code; every error becomes one line on stderr (JSON with `--json`).

    `alone`: the first word names a program of its own.
    """
    from ggferry import __version__

    set_manner(Manner())
    on_compilation(_say_compilation)
    if arguments[:1] == ["--version"]:
        tell(f"ggferry {__version__}")
        return 0
    ration(HEADERS)
    try:
        with recorded():  # options are files too: what is read for a command is none of its targets
            name, left = (arguments[0], arguments[1:]) if alone else ("ggferry", arguments)
            code = _app(arguments, alone)(args=left, prog_name=name, standalone_mode=False)
        return _interrupted(arguments) if code == INTERRUPTED else int(code or 0)  # which typer makes of an interrupt
    except SystemExit as end:  # a reader of our output that left early
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except GgferryError as error:
        return _fail(error, arguments)
    except KeyboardInterrupt:
        return _interrupted(arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # of a disk or a folder that nobody asked about; those who know the file say more
        if os.environ.get("GGFERRY_TRACEBACK") or manner().verbose:
            raise
        return _fail(of_os(error), arguments)
    except MemoryError:
        return _fail(OutOfMemoryError("out of memory", hint="--jobs 1 takes less; a limit may be set"), arguments)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":  # an installation without dependencies
            hint = "pip install torch; what computes no logits needs none: --verify fast"
            return _fail(UsageError("forward passes need torch, which is not installed", hint=hint), arguments)
        if callable(getattr(error, "format_message", None)):
            return _wrong_arguments(error)
        if os.environ.get("GGFERRY_TRACEBACK") or manner().verbose:
            raise
        say(
            f"error: internal: {type(error).__name__}: {error} (GGFERRY_TRACEBACK=1 shows where; please report it)",
            level=ERROR,
        )
        return INTERNAL_ERROR


def _say_compilation(kept: bool) -> None:
    once = "once a machine" if kept else "in every run: no folder can keep them (NUMBA_CACHE_DIR names one)"
    say(f"note     compiling the kernels for this processor: seconds a type, {once}")


def _fail(error: GgferryError, arguments: list[str]) -> int:
    if "--json" in arguments:
        print_json({"error": error.as_dict()})
    say(f"error: {error}", level=ERROR)
    return error.exit_code


def _wrong_arguments(error: Any) -> int:
    """Report what typer says about arguments, in its own words; they may contain file names that a shell put there."""
    context, message = getattr(error, "ctx", None), error.format_message()
    help_text = context.get_help() if context is not None else ""
    if message == help_text:  # no argument at all
        lines = help_text.splitlines()
        if context is not None and context.parent is None and context.command.name == "ggferry":
            lines += import_module("ggferry.service.cli.current_folder").suggestions()
    else:
        usage = context.get_usage().splitlines() if context is not None else []
        hint = [f"Try '{context.command_path} -h' for help.", ""] if context is not None else []
        lines = [*usage, *hint, f"Error: {message}"]
    for line in lines:
        say(line, level=ERROR)
    return int(error.exit_code)


def _interrupted(arguments: list[str]) -> int:
    """Return the exit code of an interrupt; `apply` has cleaned up by then and has reported what stayed."""
    say("interrupted" if "apply" in arguments[:1] else "interrupted; nothing unfinished was left behind", level=ERROR)
    return INTERRUPTED


def _exit(run: Callable[[], int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code = run()
    if code:
        forget_expected()
    gc.freeze()  # all of it ends with the process: Python's last look for garbage took a tenth of `inspect`
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but the interpreter's own end
    sys.stdout.flush()
    if code == INTERRUPTED:
        # CPython ends itself by the signal where C code of a library (torch) saw the interrupt on its way up.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """Run the command `ggferry`."""
    _exit(lambda: _run(sys.argv[1:]))


def convert_main() -> None:
    """Run the command `convert`: `convert old.bin --to gguf`."""
    version = sys.argv[1:2] == ["--version"]
    _exit(lambda: _run(["--version"]) if version else _run(["convert", *sys.argv[1:]], alone=True))
