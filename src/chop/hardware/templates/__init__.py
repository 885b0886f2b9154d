"""Templates of emitted SystemVerilog and C++: `NAME.jinja` in this folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "render",
]


def render(name: str, **values: Any) -> str:
    """Renders a template.

    Args:
        name: file name without `.jinja`.
        values: every name that the template reads; a missing one is an error.
    """
    return _environment().get_template(f"{name}.jinja").render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
