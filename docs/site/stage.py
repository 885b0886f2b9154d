"""Source tree of the site: pages as they lie in the repository, and generated ones beside them."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.site import api, commands, course, errors, notebook_pages, notebooks

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
INDEX = "docs/index.md"
HOME = "README.md"
"""The page that a reader of the site sees first."""
OTHERS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "SECURITY.md",
)
RESULTS = "benchmarks/RESULTS.md"
MEASUREMENTS = tuple(
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "benchmarks/results").glob("*.md"))
)
"""A page for each topic, which the page of results lists."""
ENTRY = re.compile(r"^- \[[^]]+\]\(([^)#]+\.md)\)", re.MULTILINE)
LISTED = (f"{commands.FOLDER}/", f"{api.FOLDER}/", f"{notebooks.FOLDER}/")
"""Folders of generated pages that a page lists. In the contents at the side, which every page has,
they would take more room and time than all else."""
ORPHAN = "---\norphan: true\n---\n\n"
GENERATED = {
    "Reference": {
        api.PASSES_PAGE: "[All passes](reference/passes.md): settings of each, by name.",
        f"{api.FOLDER}.md": "[Python API](reference/python.md): signatures and docstrings.",
        errors.PAGE: "[Errors by name](reference/errors.md): what each means and what raises it.",
    }
}
"""Section of the index -> generated pages that it lists, with their lines."""
EXAMPLES = "docs/examples.md"
TO_HOME = re.compile(r"\]\((?:\.\./)*README\.md(?=[#)])")


def pages(reports: Mapping[str, str] | None = None) -> dict[str, str]:
    """All generated texts by their paths in the tree.

    Args:
        reports: line of Markdown by name of the report page that it speaks of.
    """
    made = {**course.pages(), **commands.pages(), **api.pages(), **errors.pages()}
    made[INDEX] = _index((ROOT / INDEX).read_text())
    made["docs/guide/commands.md"] = _with_commands()
    if reports:
        made[EXAMPLES] = _examples(reports)
        made[INDEX] = made[INDEX].replace(
            "\n## Reference",
            f"- [Sample report pages](examples.md): {len(reports)} small runs.\n\n## Reference",
        )
    made[course.PAGE] += (
        f"\n{_toctree([path for path in made if path.startswith(f'{course.FOLDER}/')])}"
    )
    made[RESULTS] = f"{(ROOT / RESULTS).read_text()}\n{_toctree([*MEASUREMENTS])}"
    made["index.md"] = _home((ROOT / HOME).read_text(), made[INDEX])
    return made


def _index(text: str) -> str:
    for section, lines in GENERATED.items():
        added = "".join(f"- {line}\n" for line in lines.values())
        text = re.sub(rf"(^## {section}\n\n)", rf"\g<1>{added}", text, flags=re.MULTILINE)
    return text


def _with_commands() -> str:
    text = (ROOT / "docs/guide/commands.md").read_text()
    links = (
        f"- [`chop {name}`](../{commands.settings_path(name).removeprefix(DOCS)})"
        for name in sorted(commands.commands())
    )
    listed = "\n".join(links)
    return f"{text}\n## All commands\n\n{listed}\n"


def _home(readme: str, index: str) -> str:
    """The first page: the README, with the sections of the index as the contents of all pages.

    Args:
        readme: its text, whose links are those of the tree's root.
        index: text of the page that lists all others.
    """
    parts = re.split(r"^## (.*)\n", index, flags=re.MULTILINE)
    trees = []
    for title, section in zip(parts[1::2], parts[2::2], strict=True):
        pages = [posixpath.normpath(DOCS + path) for path in ENTRY.findall(section)]
        trees.append(_toctree(pages if trees else [INDEX, *pages], title))
    return f"{readme.rstrip()}\n\n" + "\n".join(trees)


def _toctree(paths: list[str], caption: str = "") -> str:
    lines = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n".join([*lines, *(f"/{path.removesuffix('.md')}" for path in paths), "```", ""])


def _examples(reports: Mapping[str, str]) -> str:
    lines = [f"- <a href='reports/{name}.html'>{name}</a>: {t}" for name, t in reports.items()]
    text = "[Report pages](guide/report.md) of small runs, as each command writes them."
    return "\n\n".join(["# Sample report pages", text, "\n".join(lines), ""])


def stage(
    folder: Path,
    reports: Mapping[str, str] | None = None,
    executed: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Writes the tree.

    Args:
        folder: a new folder.
        reports: see `pages`.
        executed: notebooks with outputs, by name.
    """
    for path in _files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    notebook_texts = notebook_pages.pages(course.page_of_scripts(), executed or {})
    for name, text in {**pages(reports), **notebook_texts}.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        is_listed = name.startswith(LISTED) and name.endswith(".md")
        data = text.encode() if isinstance(text, str) else text
        target.write_bytes(ORPHAN.encode() * is_listed + data)
    security = folder / "SECURITY.md"  # one link leads there, from the page on trust
    security.write_text(ORPHAN + security.read_text())
    for path in folder.rglob("*.md"):
        path.write_text(TO_HOME.sub("](/index.md", path.read_text()))


def _files() -> Iterator[Path]:
    yield from (ROOT / name for name in (*OTHERS, *MEASUREMENTS))
    for pattern in ("*.md", "*.svg"):
        yield from sorted((ROOT / "docs").rglob(pattern))
