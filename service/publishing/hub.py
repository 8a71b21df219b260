"""Speak to the Hugging Face Hub through huggingface_hub: make a repository, upload, commit, ask what arrived."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ggferry.converters.metadata.model_card import MAX_CARD
from ggferry.formats.errors import (
    AccessError,
    ChangedError,
    GgferryError,
    NotFoundError,
    RefusedError,
    TransportError,
    UnreachableError,
    UsageError,
    of_os,
)
from ggferry.formats.files.local_files import Named, read_bytes
from ggferry.service.publishing.outputs import Upload
from ggferry.service.publishing.places import without_tokens
from ggferry.service.storage.urls import mask
from ggferry.support.progress import Phase, Progress, Stage
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
TOKEN = "set HF_TOKEN, or run `hf auth login`; the token needs write access to the repository"
ROOM = "the token needs write access to the repository, and its owner room for the files"
_LIBRARIES = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "hf_xet")
_AT_ONCE = 100
"""Files that the Hub is asked about in one request."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a commit goes.

    Attributes:
        repository: OWNER/NAME.
        revision: A branch, made where it is not there; None for main.
        create_pr: Whether a pull request is opened instead.
        private: Whether a new repository is private, and an existing one must be.
        message: First line of the commit.
    """

    repository: str
    revision: str | None
    create_pr: bool
    private: bool
    message: str

    @property
    def url(self) -> str:
        """The repository as a source."""
        return f"hf://{self.repository}"


@dataclass(frozen=True, slots=True)
class Commit:
    """What the Hub answered.

    Attributes:
        commit: Its id.
        url: Where it can be seen.
        pull_request: The address of the pull request; None for a commit to a branch.
        card: The README.md as it was committed.
        notes: What a person should know of it.
    """

    commit: str
    url: str
    pull_request: str | None
    card: str
    notes: tuple[str, ...] = ()


MakeCard = Callable[[str | None, Sequence[str]], tuple[str, tuple[str, ...]]]
"""Returns a README.md and notes; takes that of the repository, and the names of the files there."""


def publish_files(target: Target, files: Sequence[Upload], make_card: MakeCard, stage: Stage) -> Commit:
    """Upload files and commit them together with the card; return once the Hub has confirmed their digests.

    What was uploaded before an interruption is not uploaded again, file by file.

    Raises:
        AccessError: The Hub does not accept the token, or does not allow it.
        NotFoundError: A pull request to a repository that is not there.
        RefusedError: `private`, and the repository is public.
        ChangedError: A file, or the repository, changed meanwhile.
        UnreachableError: The Hub does not answer, or is in trouble.
        TransportError: The Hub has other bytes.
    """
    api = _api()
    with _failures(target) as notes:
        parent, present = _repository(api, target)
        card, card_notes = make_card(_card_of(api, target, parent) if CARD in present else None, present)
        operations = _uploaded(api, target, files, stage)
        readme = _addition(CARD, card.encode())
        for each in files:
            each.check_unchanged()
        made = api.create_commit(
            target.repository,
            [*operations, readme],
            commit_message=target.message,
            revision=target.revision,
            create_pr=target.create_pr,
            parent_commit=parent,
        )
        request = made.pr_url if target.create_pr else None
        where = (made.pr_revision if target.create_pr else None) or str(made.oid)
        _confirm(api, target, where, files, card.encode())
    return Commit(str(made.oid), str(made.commit_url), request, card, (*card_notes, *notes))


def _api() -> HfApi:
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise UsageError(
            "publish needs a package that is not here: huggingface_hub", hint="pip install 'ggferry[hub]'"
        ) from None
    disable_progress_bars()  # ours shows all files together
    # huggingface_hub reads it once, when it is imported
    api = HfApi(endpoint=(os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None, library_name="ggferry")
    if not _token():
        raise AccessError("no token for the Hub", path=str(api.endpoint), hint=TOKEN)
    return api


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _repository(api: HfApi, target: Target) -> tuple[str, list[str]]:
    """Return the commit that ours follows, and the files there; the repository or branch is made where it is absent."""
    if not _is_there(api, target):
        if target.create_pr:
            raise NotFoundError("no such repository, so nothing to request of it", path=target.url)
        api.create_repo(target.repository, private=target.private or None, exist_ok=True)
    if target.revision is not None:
        api.create_branch(target.repository, branch=target.revision, exist_ok=True)
    info = api.model_info(target.repository, revision=target.revision)
    return str(info.sha), [each.rfilename for each in info.siblings or ()]


def _is_there(api: HfApi, target: Target) -> bool:
    """Return whether the repository exists. Raises RefusedError for one that is public and must not be."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.model_info(target.repository)
    except RepositoryNotFoundError as error:
        if error.response is not None and error.response.status_code == 401:
            raise
        return False
    if target.private and info.private is False:
        hint = "make it private on the Hub, or leave out --private"
        raise RefusedError("the repository is public", path=target.url, found="--private", hint=hint)
    return True


def check_access(target: Target) -> None:
    """Raise what keeps a commit from beginning, as far as it is known before: no token, or one that is not accepted."""
    api = _api()
    with _failures(target):
        _is_there(api, target)


def holds(target: Target, digests: Mapping[str, str]) -> bool:
    """Return whether the repository has files of these SHA-256, by their paths."""
    api = _api()
    with _failures(target):
        if not _is_there(api, target) or not api.revision_exists(target.repository, target.revision or "main"):
            return False
        infos = api.get_paths_info(target.repository, [*digests], revision=target.revision)
        large = {each.path: getattr(each, "lfs", None) for each in infos}
    return {path: str(lfs.sha256) for path, lfs in large.items() if lfs is not None} == {**digests}


def _card_of(api: HfApi, target: Target, commit: str) -> str:
    """Return the README.md of a commit. Raises UsageError for one that is not UTF-8."""
    with tempfile.TemporaryDirectory(prefix="ggferry-") as folder:
        path = api.hf_hub_download(target.repository, CARD, revision=commit, local_dir=folder)
        data = read_bytes(Named(path), MAX_CARD)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError("README.md of the repository is not UTF-8", path=f"{target.url}/{CARD}") from None


def _addition(name: str, content: str | bytes, sent: _Sent | None = None) -> Any:
    """Return the operation of a commit that adds a file; what is read of it for its upload is reported to `sent`."""
    from huggingface_hub import CommitOperationAdd

    class Reported(CommitOperationAdd):
        @contextmanager
        def as_file(self, with_tqdm: bool = False) -> Iterator[Any]:
            if sent is None or not with_tqdm or not isinstance(content, str):
                with super().as_file(with_tqdm) as file:
                    yield file
                return
            with _ReportedFile(content, sent) as file:
                yield file

    return Reported(name, content)


def _uploaded(api: HfApi, target: Target, files: Sequence[Upload], stage: Stage) -> list[Any]:
    """Upload the bytes of files; return the operations of the commit."""
    operations = []
    with stage(Phase.UPLOADING, sum(each.size for each in files)) as progress:
        for each in files:
            each.check_unchanged()
            content = each.data if each.data is not None else os.path.abspath(str(each.path))
            sent = _Sent(each.size, progress)
            operation = _addition(each.name, content, sent)
            api.preupload_lfs_files(
                target.repository, [operation], revision=target.revision, create_pr=target.create_pr
            )
            if operation.upload_info.sha256.hex() != each.sha256:
                raise ChangedError("the file changed while it was published", path=each.path, hint="publish it again")
            operations.append(operation)
            sent.finish()
    return operations


class _Sent:
    """How much of a file has been read for its upload, which a retry reads again."""

    def __init__(self, size: int, progress: Progress) -> None:
        self._size, self._progress, self._reported = size, progress, 0

    def read_to(self, position: int) -> None:
        """Report what lies before `position` and was not reported."""
        if position > self._reported:
            self._progress(position - self._reported)
            self._reported = position

    def finish(self) -> None:
        """Report what nobody read: the Hub had the file, or hf_xet sends it, which reads by itself."""
        self.read_to(self._size)


class _ReportedFile(io.FileIO):
    """A file that reports how far it is read."""

    def __init__(self, path: str, sent: _Sent) -> None:
        super().__init__(path)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._sent.read_to(self.tell())
        return data or b""


def _confirm(api: HfApi, target: Target, revision: str, files: Sequence[Upload], card: bytes) -> None:
    """Ask the Hub for the digests of what it has, and compare them. Raises TransportError."""
    expected: dict[str, tuple[str, ...]] = {each.name: _digests_of(each) for each in files}
    expected[CARD] = (_blob(card),)
    names, found = [*expected], {}
    for start in range(0, len(names), _AT_ONCE):
        for each in api.get_paths_info(target.repository, names[start : start + _AT_ONCE], revision=revision):
            lfs = getattr(each, "lfs", None)
            found[each.path] = str(lfs.sha256) if lfs is not None else str(getattr(each, "blob_id", ""))
    for name, digests in expected.items():
        if found.get(name) not in digests:
            raise TransportError(
                "the Hub does not have the bytes that were sent",
                path=f"{target.url}/{name}",
                found=found.get(name, "no such file"),
                expected=digests[0],
                hint="publish it again",
            )


def _digests_of(upload: Upload) -> tuple[str, ...]:
    """Return by what the Hub may know a file: SHA-256 of one in its large storage, else the id of a Git blob."""
    if upload.data is not None:
        return upload.sha256, _blob(upload.data)
    if upload.path is not None and upload.size <= MAX_CARD * 16:
        return upload.sha256, _blob(read_bytes(Named(upload.path), MAX_CARD * 16))
    return (upload.sha256,)


def _blob(data: bytes) -> str:
    """Return the id that Git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def _failures(target: Target) -> Iterator[list[str]]:
    """Make errors of huggingface_hub ours; yield a list that its warnings are added to."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield notes
        except GgferryError:
            raise
        except Exception as error:
            if not isinstance(error, OSError | ValueError) and type(error).__module__.split(".")[0] not in _LIBRARIES:
                raise
            raise failure(error, target) from None
        notes += dict.fromkeys(" ".join(str(each.message).split()) for each in caught if each.category is UserWarning)


def failure(error: Exception, target: Target) -> GgferryError:
    """Return an error of huggingface_hub, or of what it uses, as one of ours."""
    if isinstance(error, OSError) and error.filename is not None:  # of this machine's disk
        return of_os(error)
    status = int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
    words = without_tokens(mask(str(getattr(error, "server_message", None) or error)))
    words = " ".join(words.split())[:300]
    found = f"HTTP {status}: {words}" if status else words
    if status == 401:
        return AccessError("the Hub does not accept the token", path=target.url, found=f"HTTP {status}", hint=TOKEN)
    if status in (402, 403):
        return AccessError("the Hub does not allow it", path=target.url, found=found, hint=ROOM)
    if status == 404:
        return NotFoundError("no such repository or branch on the Hub", path=target.url, found=found, hint=TOKEN)
    if status in (409, 412):
        return ChangedError("the repository changed meanwhile", path=target.url, found=found, hint="publish again")
    if status == 429 or status >= 500:
        hint = "publish again: files that were uploaded whole are not sent again"
        return UnreachableError("the Hub failed to answer", path=target.url, found=found, hint=hint)
    if status or isinstance(error, ValueError):
        return AccessError("the Hub refuses the upload", path=target.url, found=found)
    hint = "publish again: files that were uploaded whole are not sent again"
    return UnreachableError("the Hub cannot be reached", path=target.url, found=words, hint=hint)
