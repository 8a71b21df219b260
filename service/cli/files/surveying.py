"""The commands that look at all of a model: hash, diff; and `verify` of one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from ggferry.converters.conversion.options import options_of
from ggferry.formats.errors import UsageError, VerificationError
from ggferry.formats.files.sources import known_by
from ggferry.service.cli.options import (
    HeadedCommand,
    follow_redirects,
    print_json,
    say,
    size_of,
    stage_of,
    takes,
    tell,
)
from ggferry.service.operations import diff as diffing
from ggferry.service.operations import hashes
from ggferry.service.operations.diff import DiffCommand
from ggferry.service.operations.hashes import HashCommand, ManifestResult

if TYPE_CHECKING:
    from ggferry.converters.analysis.differences.diff import Difference, TensorDifference
    from ggferry.service.operations._json_forms import HashedModel

commands = typer.Typer(rich_markup_mode=None)

CORRUPT = 5
ALONE = ("level", "as_json", "cache", "follow_redirects")
"""The options of `verify` that say something of a file alone."""


@commands.command("hash", cls=HeadedCommand)
@takes(HashCommand)
def hash_(request: HashCommand) -> None:
    """Print the digests, or compare with a manifest."""
    if request.check is not None:
        named = () if isinstance(request.algorithm, str) else request.algorithm
        if len(named) > 1:
            raise UsageError("--algorithm: one is compared", found=named[1])
        _show_check(hashes.compare_with_manifest(request, request.check, named[0] if named else None), request.as_json)
        return
    found = hashes.digest(request, layers=request.layers)
    if request.as_json:
        hashed: HashedModel = {
            "path": found.path,
            "digests": [
                {"algorithm": each.algorithm, "tensor": each.tensor, "digest": each.hex} for each in found.digests
            ],
        }
        print_json(hashed)
        return
    for each in found.digests:
        tell(each.line(found.path))


def _show_check(result: ManifestResult, as_json: bool) -> None:
    found, name = result.checked, result.path
    if as_json:
        print_json({"path": name, "holds": found.holds, **asdict(found)})
    else:
        for tensor in found.wrong:
            tell(f"differs  {tensor or 'all tensors together'}")
        for tensor in found.absent:
            tell(f"absent   {tensor}")
    if found.wrong or found.absent or not found.right:
        wrong = (
            f"{len(found.wrong)} of {len(found.wrong) + found.right} digests differ, {len(found.absent)} tensors absent"
        )
        raise VerificationError("not what the manifest says", path=name, found=wrong)
    if found.undeclared:  # llama-gguf-hash fails here too
        raise VerificationError(
            f"{found.right} digests are as the manifest says, but it does not list every tensor",
            path=name,
            found=f"{len(found.undeclared)} tensors that are not in the manifest: {_first_names(found.undeclared)}",
        )
    if not as_json:
        tell(f"{name}: {found.right} digests ({found.algorithm}) as the manifest says")


def _first_names(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@commands.command(cls=HeadedCommand)
@takes(DiffCommand)
def diff(request: DiffCommand) -> None:
    """Compare two models, and print what differs."""
    found = diffing.compare(request)
    if found.by_roles:
        say("note     compared by roles, through the layouts of both containers: names are GGUF's")
    if request.as_json:
        print_json({"first": found.first, "second": found.second, **_finite(found.difference.as_dict())})
    else:
        _tell_difference(found.difference, found.first, found.second)
    if found.difference.differs:
        raise typer.Exit(1)


def _finite(value: Any) -> Any:
    """Return plain data with infinities as texts, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return "inf" if value == float("inf") else value


def _tell_difference(found: Difference, first: str, second: str) -> None:
    for key in found.keys:
        for line in key.lines:
            tell(line)
    for tensor in found.tensors:
        tell(_tensor_line(tensor))
    if not found.differs:
        data = "every tensor byte for byte" if found.looked and not found.same_values else "every tensor"
        tell(f"equal: {found.same_keys} keys, {data}")
        return
    tell(f"--- {first}")
    tell(f"+++ {second}")
    values = f", {found.same_values} with other bytes and the same values" if found.same_values else ""
    tell(
        f"{len(found.keys)} keys differ, {found.same_keys} do not; "
        f"{len(found.tensors)} tensors differ, {found.same_tensors} do not{values}"
    )


def _tensor_line(tensor: TensorDifference) -> str:
    if tensor.first is None or tensor.second is None:
        mark, facts = ("+", tensor.second) if tensor.first is None else ("-", tensor.first)
        assert facts is not None
        return f"{mark} tensor {tensor.name}: {facts[0]} {'×'.join(map(str, facts[1]))}"
    types = tensor.first[0] if tensor.first[0] == tensor.second[0] else f"{tensor.first[0]} → {tensor.second[0]}"
    if tensor.first[1] != tensor.second[1]:
        shapes = " → ".join("×".join(map(str, facts[1])) for facts in (tensor.first, tensor.second))
        return f"~ tensor {tensor.name}: {types}, {shapes}"
    if tensor.not_finite:
        return f"~ tensor {tensor.name}: {types}, not all values are finite"
    if tensor.relative_rms is None:
        return f"~ tensor {tensor.name}: {types}"
    return f"~ tensor {tensor.name}: {types}, relative RMS {tensor.relative_rms:.3g}, largest {tensor.largest:.3g}"


def judge(file: str, given: dict[str, Any]) -> None:
    """Judge one file by itself, for `verify`; exit code 5 where there is a fault."""
    from ggferry.service.operations.examine import ExamineRequest, run

    for option in options_of("verify"):
        if option.name not in ALONE and given[option.name] not in (option.default, None, (), []):
            raise UsageError(f"{option.flag}: of a file alone nothing is compared", hint="verify SOURCE OUTPUT")
    if given["level"] not in ("full", "fast"):
        raise UsageError("--level", found=given["level"], expected="fast, full")
    if given["follow_redirects"]:
        follow_redirects()
    cache, stage = given["cache"], stage_of(visible=not given["as_json"])
    nbytes = None if cache is None else size_of(cache, "--cache")
    report = run(ExamineRequest(file, data=given["level"] == "full", cache=nbytes, progress=stage))
    if given["as_json"]:
        print_json({**report.as_dict(), "path": known_by(report.path)})
    else:
        tell(f"read     {known_by(report.path)}: {report.what}")
        for finding in report.findings:
            tell(f"{finding.grade:<8} {finding.about}: {finding.text}")
        for runtime in report.runtimes:
            tell(
                f"{'loads' if runtime.loads else 'refuses':<8} {runtime.name}{': ' if runtime.why_not else ''}"
                f"{'; '.join(runtime.why_not)}"
            )
        looked = f"{report.tensors} tensors checked" if given["level"] == "full" else "no tensor data read"
        tell(f"{'sound' if report.sound else 'faulty':<8} {looked}")
    if not report.sound:
        raise typer.Exit(CORRUPT)
