"""Pages of notebooks: their cells with what these print and show, and the file to take along."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chop.base.installed import __version__
from docs.site.markdown import code
from docs.site.notebooks import FOLDER, get_name, notebook, scripts

Notebook = dict[str, Any]
LONGEST_OUTPUT = 30
"""Lines; longer ones are folded."""
NOT_IN_ALT = re.compile(r"[^\w/.,]+")
SUFFIX = {"image/svg+xml": "svg", "image/png": "png"}
MADE = (
    "This notebook is made from `{script}`. Its questions and answers are in "
    "[the course](../{page}.md). You can download it as [{name}.ipynb]({name}.ipynb). {ran}"
)
RAN = "With chop {version} its cells took {seconds:.0f} seconds on one core."
NOT_RUN = "Its cells have not been run."


def pages(of: Mapping[str, str], executed: Mapping[str, Notebook]) -> dict[str, str | bytes]:
    """A page, a file `.ipynb` and its figures, for each script.

    Args:
        of: page of the course by script, without folder and suffix.
        executed: notebooks with outputs, by name; the others are shown without.
    """
    made: dict[str, str | bytes] = {}
    for script in scripts():
        name = get_name(script)
        executed_notebook = executed.get(name) or notebook(script)
        made[f"{FOLDER}/{name}.ipynb"] = json.dumps(executed_notebook, indent=1)
        figures: dict[str, str | bytes] = {}
        first, *others = [
            part for cell in executed_notebook["cells"] for part in _parts(cell, name, figures)
        ]
        parts = [first, _made(script, of[script], executed_notebook), *others]
        made[f"{FOLDER}/{name}.md"] = "\n\n".join(parts) + "\n"
        made |= {f"{FOLDER}/{file}": data for file, data in figures.items()}
    return made


def _made(script: str, page: str, notebook: Notebook) -> str:
    about = notebook["metadata"].get("chop")
    ran = RAN.format(version=__version__, **about) if about else NOT_RUN
    return MADE.format(script=script, page=page, name=get_name(script), ran=ran)


def _parts(cell: dict[str, Any], name: str, figures: dict[str, str | bytes]) -> Iterator[str]:
    """A cell as Markdown; pictures that it shows go to `figures` by their files."""
    if cell["cell_type"] == "markdown":
        yield cell["source"]
        return
    yield code(cell["source"], "python")
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield _printed(output["text"])
        else:
            yield _render(output["data"], name, figures)


def _printed(text: str) -> str:
    lines = len(text.splitlines())
    # Longer than any of the text's own, which would end the block.
    fence = "`" * max([3, *(1 + len(each) for each in re.findall("`+", text))])
    block = f"{fence}{{code-block}} text\n:class: output\n\n{text.rstrip()}\n{fence}"
    if lines <= LONGEST_OUTPUT:
        return block
    return f"<details>\n<summary>{lines} lines are printed</summary>\n\n{block}\n\n</details>"


def _render(data: Mapping[str, str], name: str, figures: dict[str, str | bytes]) -> str:
    """A picture, HTML as it is, or a text."""
    for kind, suffix in SUFFIX.items():
        if kind in data:
            file = f"{name}-{len(figures) + 1}.{suffix}"
            figures[file] = base64.b64decode(data[kind]) if suffix == "png" else data[kind]
            return f"![{NOT_IN_ALT.sub(' ', data['text/plain'])}]({file})"
    if "text/html" in data:
        return f"```{{raw}} html\n<div class='shown'>\n{data['text/html']}\n</div>\n```"
    return _printed(data["text/plain"])
