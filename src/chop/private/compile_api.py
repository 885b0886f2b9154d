"""Private API of torch.compile: TorchDynamo's counters and Inductor's caches.

Tested with torch 2.13; `tests/private/test_fences.py` fails first if a name is missing. Importing
this module takes a second because of TorchDynamo, so import it where it is used.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import fx
from torch._dynamo import explain, lookup_backend
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics
from torch.export import ExportedProgram

__all__ = [
    "clear_compilation_metrics",
    "compile_package",
    "explain",
    "fresh_cache",
    "get_compilation_metrics",
    "inductor_after",
    "load_package",
    "package_metadata",
]


def fresh_cache() -> AbstractContextManager[None]:
    """Context manager in which Inductor ignores its disk cache."""
    from torch._inductor import utils

    context: AbstractContextManager[None] = utils.fresh_cache()
    return context


def inductor_after(rewrite: Callable[[fx.GraphModule, Any], fx.GraphModule]) -> Callable[..., Any]:
    """Returns a torch.compile backend: Inductor on the graph that `rewrite` returns."""
    inductor = lookup_backend("inductor")
    return lambda graph, inputs, **how: inductor(rewrite(graph, inputs), inputs, **how)


def compile_package(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    """Compiles an exported program ahead of time into a `.pt2` package."""
    from torch._inductor import aoti_compile_and_package

    configs = {"aot_inductor.metadata": metadata}
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)


def load_package(path: Path) -> Any:
    """Loads a package as a function from inputs to a list of outputs."""
    from torch._inductor import aoti_load_package

    run = aoti_load_package(str(path))
    return lambda *tensors: [*run(*tensors)]


def package_metadata(path: Path) -> dict[str, str]:
    """Returns the metadata stored by `compile_package`."""
    from torch._inductor import aoti_load_package

    metadata: dict[str, str] = aoti_load_package(str(path)).get_metadata()
    return metadata
