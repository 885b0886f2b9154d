"""Arguments and help of module passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from chop.base.docstrings import entries
from chop.passes.documentation import pass_docstring

F = TypeVar("F", bound=Callable[..., Any])


def documented(config: Any, result: str = "the module") -> Callable[[F], F]:
    """Completes the help of a pass with its types, its settings and the keys of its `info`.

    Args:
        config: see `chop.passes.documentation.pass_docstring`.
        result: description of the first of the two returned values.
    """

    def decorate(function: F) -> F:
        arguments = entries(function, "Args")
        function.__annotations__ = get_type_hints(function)
        function.__doc__ = pass_docstring(function, config, arguments, result)
        return function

    return decorate
