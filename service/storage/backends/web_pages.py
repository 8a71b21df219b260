"""Walk a web server's pages like folders: what their links name, as far as it lies below the first page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from ggferry.formats.errors import GgferryError, OutsideLinkError, TransportError, UnsupportedError
from ggferry.service.storage import urls
from ggferry.service.storage.backends.web_facts import look
from ggferry.service.storage.backends.web_requests import origin, request
from ggferry.service.storage.places import Found, by_status, unreadable
from ggferry.service.storage.retry import retry

PAGES, DEPTH = 5000, 32  # of one root
PAGE_CAP = 16 << 20  # bytes of one page
AT_ONCE = 16  # files asked for at a time


def walk(root: str) -> Iterator[Found]:
    """Yield the file at `root` or, where that is a page, every file that it and the pages below it link to.

    What cannot be read is listed with its error.
    """
    first = look(root)
    if not first.page:
        yield first.found
        return
    pages = _Pages(root)
    files = list(pages.walk())
    if not files and not pages.troubles:
        yield first.found  # a page without links: a file like any other
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from sorted([*pool.map(_found, files), *pages.troubles], key=lambda found: found.path)


def _found(url: str) -> Found:
    try:
        return look(url).found
    except GgferryError as error:
        return unreadable(url, error)


@dataclass
class _Page:
    url: str
    depth: int
    above: frozenset[str]  # digests of the pages that led here


@dataclass
class _Pages:
    """The pages below `root`; `troubles` is what they link to and could not be read."""

    root: str
    troubles: list[Found] = field(default_factory=list)

    def walk(self) -> Iterator[str]:
        """Yield the names of files, each once."""
        left, seen, count = deque([_Page(self.root, 0, frozenset())]), {self.root}, 0
        while left:
            page = left.popleft()
            count += 1
            if count > PAGES:
                error = UnsupportedError(f"more than {PAGES} pages below it", path=self.root, hint="name its folders")
                self.troubles.append(unreadable(page.url, error))
                return
            for url, is_page in self._links(page):
                if url in seen:
                    continue
                seen.add(url)
                if is_page:
                    left.append(_Page(url, page.depth + 1, page.above))
                else:
                    yield url

    def _links(self, page: _Page) -> list[tuple[str, bool]]:
        """Return the names a page links to, and whether each is itself a page."""
        from blake3 import blake3

        try:
            if page.depth > DEPTH:
                raise UnsupportedError(f"page is more than {DEPTH} links deep", path=page.url)
            text = _text(page.url)
            mark = str(blake3(text).hexdigest())
            if mark in page.above:
                raise UnsupportedError("link loop in listing", path=page.url)
            page.above |= {mark}
            return list(self._named(page.url, text))
        except GgferryError as error:
            if page.url == self.root:
                raise
            self.troubles.append(unreadable(page.url, error))
            return []

    def _named(self, name: str, text: bytes) -> Iterator[tuple[str, bool]]:
        here, base = _folder(urls.whole(name)), _folder(urls.whole(self.root))
        below = urlsplit(base).path
        for link in _hrefs(text):
            try:
                target = urljoin(here, link)
                parts = urlsplit(target)
                inside = parts.scheme in urls.WEB and origin(target) == origin(base)
            except (ValueError, GgferryError):
                continue
            if parts.scheme not in urls.WEB or parts.path == urlsplit(here).path:
                continue
            if not inside or not parts.path.startswith(below) or parts.path == below:
                error = OutsideLinkError("link leads out of the page", path=urls.redact(target))
                self.troubles.append(unreadable(urls.redact(target), error))
                continue
            user = urlsplit(here).netloc.rpartition("@")[0]
            if user and "@" not in parts.netloc:
                parts = parts._replace(netloc=f"{user}@{parts.netloc}")
            yield urls.redact_in(parts._replace(fragment="").geturl()), parts.path.endswith("/")


def _folder(url: str) -> str:
    """Return what a page's links are relative to.

    `…/models` is a folder without its slash, `…/index.html` is in one.
    """
    parts = urlsplit(url)
    folder, _, last = parts.path.rpartition("/")
    inner = last if last and not last.lower().endswith((".html", ".htm", ".php")) else ""
    return parts._replace(path=f"{folder}/{inner}/" if inner else f"{folder}/", query="", fragment="").geturl()


def _text(url: str) -> bytes:
    def ask() -> bytes:
        with request("GET", url, {}) as answer:
            if answer.status != 200:
                raise by_status(answer.status, url)
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise UnsupportedError("page is compressed", path=url)
            text = answer.read(PAGE_CAP + 1)
            if len(text) > PAGE_CAP:
                raise UnsupportedError(f"page is larger than {PAGE_CAP} bytes", path=url)
            if answer.length:
                raise TransportError("the page ended early", path=url)  # and with it what it links to
            return text

    return retry(ask)


def _hrefs(text: bytes) -> list[str]:
    parser = _Links()
    parser.feed(text.decode("utf-8", "replace"))
    return parser.links


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value.strip() for name, value in attrs if tag == "a" and name == "href" and value]
