"""Publish GGUF files on the Hugging Face Hub, with their receipts and a model card."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import CorruptError, UsageError
from ggferry.service.operation import (
    AsJson,
    DryRun,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
)
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.formats.json_files.kinds import JSONObject
    from ggferry.service.publishing.card import Quality
    from ggferry.service.publishing.hub import Target
    from ggferry.service.publishing.outputs import PublishedModel
    from ggferry.service.publishing.readme import CardParts

SCHEME = "hf://"
_PART = r"(?=.{1,96}(?:/|$))[A-Za-z0-9_](?:[A-Za-z0-9_]|[.-](?![.-]))*(?<![.-])"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{|\.lock$))[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}(?<![./])")


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What is published, and where."""

    paths: Annotated[
        StrPath | Sequence[StrPath],
        argument("GGUF files, or folders of them; shards and mmproj files go along with their model.", Kind.FILES,
                 metavar="OUT", python="A GGUF file or a folder of them, or several; shards and mmproj files too."),
    ]
    to: Annotated[
        str,
        declare(Kind.TEXT, "The repository: hf://OWNER/NAME, or hf://OWNER/NAME@BRANCH; made if absent.", "--to",
                metavar="REPO"),
    ]
    _: KW_ONLY
    revision: Annotated[
        str | None,
        declare(Kind.TEXT, "The branch to commit to (default: main); made if absent.", metavar="BRANCH"),
    ] = None
    create_pr: Annotated[bool, declare(Kind.FLAG, "Open a pull request instead.")] = False
    private: Annotated[
        bool, declare(Kind.FLAG, "Make a new repository private; refuse one that is public.")
    ] = False
    allow_unproved: Annotated[
        bool, declare(Kind.FLAG, "Publish files without a receipt that proves their bytes; the card says so.")
    ] = False
    base_model: Annotated[
        Sequence[str],
        declare(Kind.TEXTS, "The repository that the files were made of, where their headers state none; repeatable.",
                metavar="OWNER/NAME"),
    ] = ()
    quality: Annotated[
        Sequence[str],
        declare(Kind.TEXTS, "What `ggferry compare --json` printed of a file, for the card; repeatable.",
                metavar="NAME=FILE"),
    ] = ()
    message: Annotated[str | None, declare(Kind.TEXT, "First line of the commit.", "--message", "-m")] = None
    dry_run: DryRun = False
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class PublishCommand(PublishRequest):
    """Publish GGUF files on the Hugging Face Hub in one commit, with their receipts and a model card.

    Only files are published that their receipts prove, byte for byte. --dry-run prints the card and the list of files,
    and needs no network and no token.
    """

    _: KW_ONLY
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of the commit.

    Attributes:
        name: Its path in the repository.
        bytes: Its size.
        sha256: In hex.
        model: The first file of the model that it belongs to.
    """

    name: str
    bytes: int
    sha256: str
    model: str


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published, or would be.

    Attributes:
        repository: OWNER/NAME.
        files: The files besides README.md.
        card: The text of README.md.
        commit: The id of the commit; None for a dry run.
        url: Where the commit can be seen; None for a dry run.
        pull_request: The address of the pull request; None where none was opened.
        notes: What a person should know of it.
    """

    repository: str
    files: tuple[PublishedFile, ...]
    card: str
    commit: str | None = None
    url: str | None = None
    pull_request: str | None = None
    notes: tuple[str, ...] = ()


def run(request: PublishRequest) -> Publication:
    """Publish GGUF files on the Hugging Face Hub in one commit, as `ggferry publish` does.

    The token is that of huggingface_hub: HF_TOKEN, or its login. With `dry_run`, nothing is sent or asked.

    Returns:
        The files, the card and the commit. The Hub has confirmed the digest of every file.

    Raises:
        UsageError: An option is not understood, or two files have one name.
        RefusedError: A file is not proved, or holds a local path, or the repository is public and `private` is set.
        ChecksumError: The bytes of a file are not those of its receipt.
        AccessError: The Hub does not accept the token, or does not allow it.
        UnreachableError: The Hub does not answer; publish again to continue.

    Example:
        >>> ggferry.publish("model-Q8_0.gguf", "hf://me/model-GGUF", dry_run=True).files[0].name
        'model-Q8_0.gguf'
    """
    from ggferry.service.publishing.outputs import collect
    from ggferry.service.publishing.readme import with_card

    target = target_of(request)
    paths = [request.paths] if isinstance(request.paths, str | os.PathLike) else request.paths
    models, notes = collect(
        [os.fspath(path) for path in paths], allow_unproved=request.allow_unproved, stage=request.progress
    )
    parts, card_notes = _card_parts(request, models, target.repository)
    uploads = [upload for model in models for upload in model.uploads]
    files = _files(models)
    if request.dry_run:
        planned = card_of(request, models)
        return replace(planned, notes=(*notes, *planned.notes))
    from ggferry.service.publishing.card import address
    from ggferry.service.publishing.hub import publish_files

    done = publish_files(
        target,
        uploads,
        lambda existing, present: with_card(existing, parts, {address(name) for name in present}),
        request.progress,
    )
    return Publication(
        target.repository, files, done.card, done.commit, done.url, done.pull_request,
        (*notes, *card_notes, *done.notes),
    )


def card_of(request: PublishRequest, models: Sequence[PublishedModel]) -> Publication:
    """Return what a request would publish of models, with the card of a new repository."""
    from ggferry.service.publishing.readme import with_card

    repository = target_of(request).repository
    parts, notes = _card_parts(request, models, repository)
    card, _ = with_card(None, parts)
    return Publication(repository, _files(models), card, notes=notes)


def _files(models: Sequence[PublishedModel]) -> tuple[PublishedFile, ...]:
    return tuple(
        PublishedFile(each.name, each.size, each.sha256, model.name) for model in models for each in model.uploads
    )


def target_of(request: PublishRequest) -> Target:
    """Return the repository of a request. Raises UsageError."""
    from ggferry import __version__
    from ggferry.service.publishing.hub import Target

    name, separator, branch = request.to.removeprefix(SCHEME).partition("@")
    if not request.to.startswith(SCHEME) or not _REPOSITORY.fullmatch(name):
        expected = "hf://OWNER/NAME, or hf://OWNER/NAME@BRANCH"
        raise UsageError("not a repository of the Hub", found=request.to, expected=expected)
    if separator and request.revision not in (None, branch):
        raise UsageError("two branches are named", found=f"{request.to}, --revision {request.revision}")
    revision = branch if separator else request.revision
    if revision is not None and not _BRANCH.fullmatch(revision):
        raise UsageError("not the name of a branch", found=revision)
    if revision is not None and request.create_pr:
        raise UsageError("--create-pr: a pull request has a branch of its own", found=revision)
    message = " ".join((request.message or "").split())
    if request.message is not None and not message:
        raise UsageError("--message: no text")
    message = message or f"Upload GGUF files with ggferry {__version__}"
    return Target(name, revision, request.create_pr, request.private, message)


def _card_parts(
    request: PublishRequest, models: Sequence[PublishedModel], target: str
) -> tuple[CardParts, tuple[str, ...]]:
    """Return what is put into the card, and notes."""
    from ggferry.service.publishing.card import base_models, explanation, front_matter, rows
    from ggferry.service.publishing.readme import CardParts

    declared = [request.base_model] if isinstance(request.base_model, str) else list(request.base_model)
    for name in declared:
        if not _REPOSITORY.fullmatch(name):
            raise UsageError("--base-model: not a repository of the Hub", found=name, expected="OWNER/NAME")
    bases = declared or base_models(models, target)
    notes = () if bases else ("no header names the repository that the files were made of: --base-model states it",)
    parts = CardParts(
        front_matter(models, target, bases),
        rows(models, _qualities(request, models)),
        explanation(models, bases, target),
        target.partition("/")[2],
    )
    return parts, notes


def _qualities(request: PublishRequest, models: Sequence[PublishedModel]) -> Mapping[str, Quality]:
    """Return what `compare` measured, by the path of the file in the repository."""
    from ggferry.formats.files.local_files import Named
    from ggferry.formats.json_files.text import load_object
    from ggferry.service.publishing.card import Quality

    found: dict[str, Quality] = {}
    for text in [request.quality] if isinstance(request.quality, str) else request.quality:
        name, sign, path = text.partition("=")
        names = [model.name for model in models if os.path.basename(model.name) == name]
        if not sign or not path or not names:
            shown = ", ".join(os.path.basename(model.name) for model in models[:5])
            raise UsageError("--quality: not NAME=FILE of a published file", found=text, expected=f"one of {shown}")
        try:
            last = _compared(load_object(Named(path)), name, path)["chunks"][-1]
            kl, top = last["kl_divergence"], last["same_top"]
            found[names[0]] = Quality(float(kl["value"]), float(kl["error"]), float(top["value"]))
        except (KeyError, IndexError, TypeError, ValueError):
            raise CorruptError("not what `ggferry compare --json` prints", path=path) from None
    return found


def _compared(found: JSONObject, name: str, path: str) -> JSONObject:
    """Return what is of the file `name` where several models were compared. Raises UsageError where none is."""
    others = found.get("others")
    if not others:
        return found
    named: list[JSONObject] = [each for each in (found, *others) if os.path.basename(str(each["model"])) == name]
    if len(named) != 1:
        shown = ", ".join(os.path.basename(str(each["model"])) for each in (found, *others))
        raise UsageError("--quality: several models were compared", path=path, found=name, expected=f"one of {shown}")
    return named[0]


publish = library_function("publish", PublishRequest, run)
