"""Check of a site that was made: its links lead somewhere, and reading it asks no network."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""Element -> attribute with the file that a browser loads for it."""


class Page(HTMLParser):
    """Ids, links and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what an element has."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(LOADED.get(tag, "")):
            self.loaded.append(values[LOADED[tag]])


def problems(folder: Path) -> list[str]:
    """Links to files or ids that are not there, and files that a browser would fetch.

    Args:
        folder: of the site.
    """
    pages = {path.resolve(): _read(path) for path in sorted(folder.rglob("*.html"))}
    return [text for path in pages for text in _problems(path, pages, folder.resolve())]


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


def _problems(path: Path, pages: dict[Path, Page], folder: Path) -> Iterator[str]:
    name, page = path.relative_to(folder), pages[path]
    for link in (*page.links, *page.loaded):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if link in page.loaded and parts.scheme != "data":
                yield f"{name}: fetches {link}"
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            yield f"{name}: no file {link}"
        elif parts.fragment and target in pages and parts.fragment not in pages[target].ids:
            yield f"{name}: no heading {link}"
