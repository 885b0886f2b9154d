"""Pages of the course, one for each tutorial and lab: of `course.md` and of the examples' files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs.site.markdown import code
from docs.site.notebooks import described
from docs.site.notebooks import get_name as name_of_notebook

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/course.md"
FOLDER = "docs/course"
LINK = re.compile(r"\]\((?!#|\w+:)")
SCRIPT = re.compile(r"`python (examples/\w+\.py)")
CALL = re.compile(r"python \S+ *(?P<options>.*?) *\(.*, (?P<time>[^,()\n]+)\)$", re.MULTILINE)
"""A call in a script's docstring, whose remark ends with a time."""
TIMES = (
    *("seconds", "half a minute", "a minute", "two minutes", "a few minutes", "five minutes"),
    *("ten minutes", "a quarter of an hour"),
)
"""Rough, of one core of a laptop."""
DIFFER = "If your numbers differ"


def sections(text: str) -> dict[str, str]:
    """The sections of the page by their titles."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def get_name(title: str) -> str:
    """`lab-4-software` of `Lab 4, software: what is fast`."""
    return re.sub(r"\W+", "-", title.partition(":")[0].lower())


def pages() -> dict[str, str]:
    """The page of the course without its sections, and a page for each of them."""
    text = (ROOT / PAGE).read_text()
    text_by_title = sections(text)
    differ = text_by_title.pop(DIFFER)
    made = {f"{FOLDER}/{get_name(title)}.md": title for title in text_by_title}
    links = [f"- [{title}]({path.removeprefix('docs/')})" for path, title in made.items()]
    start = text[: text.index("\n## ")].strip()
    parts = [start, "## Tutorials and labs", "\n".join(links), f"## {DIFFER}", differ.strip()]
    return {
        PAGE: "\n\n".join(parts) + "\n",
        **{path: _page(title, text_by_title[title], differ) for path, title in made.items()},
    }


def _page(title: str, text: str, differ: str) -> str:
    scripts = list(dict.fromkeys(SCRIPT.findall(text)))
    taken = [*map(_taken, scripts)]
    parts = [f"# {title}", *taken, text.strip(), f"## {DIFFER}", differ.strip()]
    page = LINK.sub("](../", "\n\n".join(parts))
    return "\n\n".join([page, *(part for script in scripts for part in _script(script))]) + "\n"


def times(script: str) -> dict[str, str]:
    """The times of a script's calls as its docstring has them, by their options."""
    said = ast.get_docstring(ast.parse((ROOT / script).read_text())) or ""
    durations = {call["options"]: call["time"] for call in CALL.finditer(said)}
    return {options: time for options, time in durations.items() if time in TIMES}


def _taken(script: str) -> str:
    durations = times(script)
    quick = f", or {durations['--quick']} with `--quick`," if "--quick" in durations else ""
    return f"`python {script}` takes about {durations['']}{quick} on one core of a laptop."


def _script(script: str) -> Iterator[str]:
    """Description of a script, its calls with their times, its notebook and its source."""
    source, name = (ROOT / script).read_text(), name_of_notebook(script)
    yield f"## `{script}`"
    yield from described(ast.get_docstring(ast.parse(source)) or "")
    yield f"[As a notebook, with outputs](notebooks/{name}.md)."
    yield "<details>\n<summary>The whole script</summary>"
    yield code(source, "python")
    yield "</details>"


def page_of_scripts() -> dict[str, str]:
    """The name of the page that a script's rows are on, by script."""
    parts = sections((ROOT / PAGE).read_text())
    return {s: get_name(title) for title, text in parts.items() for s in SCRIPT.findall(text)}
