"""Writes names of tables where help and pages show them: `python -m docs.write_names`.

Help reads `registered.json`; pages have the lines between `<!-- targets -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chop.actions.compress.ptq import METHODS
from chop.base.files import write_text
from chop.base.plugins import Registry
from chop.base.tables import markdown_table
from chop.cli.names import FILE, SAME, TABLES
from chop.export.targets import TARGETS
from chop.formats import REGISTRY, Integer, NumberFormat
from chop.ir.ops import quantizable_operators
from chop.passes import PASSES
from chop.problems.mixed_precision.candidates import DERIVED_FIELDS, WITH_BIAS
from chop.search.registry import SAMPLERS
from chop.train.tasks import TASKS

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def registered() -> str:
    """Returns the content of `registered.json`."""
    return json.dumps({group: rows(group) for group in TABLES}, indent=1) + "\n"


def rows(group: str) -> dict[str, str]:
    """Returns the names that chop defines, with the text of each for help.

    Args:
        group: key of `TABLES`.
    """
    module, _, attribute = TABLES[group].partition(":")
    table = getattr(__import__(module, fromlist=[attribute]), attribute)
    names = table() if callable(table) else table
    if isinstance(table, Registry):
        names = table.own_rows()
    if group == "operators":
        names = [name for name in names if name in quantizable_operators(opt_in=True)]
    if group == "metrics":
        names = sorted(_own_metrics())
    return {name: TEXTS[group](name) if group in TEXTS else "" for name in names}


def searched(name: str) -> str:
    """Returns what a search varies of a format, `= name` of a second name, "" of a plain float."""
    kind = REGISTRY[name]
    if kind.name != name:
        return f"{SAME}{kind.name}"
    return "; ".join(_varied(kind))


def _varied(kind: type[NumberFormat]) -> Iterator[str]:
    for field, values in kind.search_space.items():
        if field == "width":
            yield field
        elif field not in DERIVED_FIELDS:
            yield f"{field} {', '.join(map(str, values))}"
    if kind is Integer or issubclass(kind, WITH_BIAS):
        yield f"{DERIVED_FIELDS[kind is not Integer]} derived"


def _own_metrics() -> set[str]:
    tasks = TASKS.own_rows().values()
    return {metric.name for task in tasks for metric in (task.metric, *task.metrics.values())}


TEXTS: Mapping[str, Callable[[str], str]] = {
    "formats": searched,
    "methods": lambda name: METHODS[name].summary,
    "targets": lambda name: f"({TARGETS[name].engines}): {TARGETS[name].takes}",
    "tasks": lambda name: TASKS[name].summary,
}


def targets() -> str:
    """Returns the table of export targets."""
    targets = TARGETS.own_rows().values()
    return markdown_table(
        [{"target": f"`{x.name}`", "made for": x.engines, "holds": x.takes} for x in targets]
    )


def passes() -> str:
    """Returns the table of passes, by name."""
    own = sorted(PASSES.own_rows().items())
    return markdown_table([{"pass": f"`{x}`", "what it does": _summary(row)} for x, row in own])


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def tasks() -> str:
    """Returns the table of tasks with their metrics."""
    return markdown_table(
        [
            {
                "`--task`": f"`{name}`",
                "a model answers": TASKS[name].summary,
                "`--metric`": ", ".join(_metrics(name)),
            }
            for name in rows("tasks")
        ]
    )


def _metrics(name: str) -> list[str]:
    task = TASKS[name]
    return [f"`{name}`" for name in dict.fromkeys((task.metric.name, *task.metrics))]


def samplers() -> str:
    """Returns the table of samplers, and the names of pruners as a sentence."""
    table = markdown_table(
        [{"`--sampler`": f"`{x}`", "proposes": SAMPLERS[x].summary} for x in rows("samplers")]
    )
    pruners = ", ".join(f"`{x}`" for x in rows("pruners"))
    return f"{table}\n\n`--pruner` takes {pruners}."


BLOCKS: Mapping[str, Callable[[], str]] = {
    "passes": passes,
    "samplers": samplers,
    "targets": targets,
    "tasks": tasks,
}
"""Text of a block of a page, by its name."""


def page(text: str) -> str:
    """Returns a page with its blocks written anew."""
    return BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]()}\n{match[4]}", text)


def write() -> None:
    """Writes all of them."""
    write_text(FILE, registered())
    for path in sorted(DOCS.rglob("*.md")):
        if BLOCK.search(text := path.read_text()):
            write_text(path, page(text))


if __name__ == "__main__":
    write()
