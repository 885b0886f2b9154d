"""Fence around torch.compile's private API: what TorchDynamo counts and Inductor keeps.

Known for torch 2.13; `tests/private/test_fences.py` fails first where a name is gone. Importing it
takes a second, since TorchDynamo does: import it where it is used.
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
    """A context in which Inductor compiles anew, whatever its cache on disk has."""
    from torch._inductor import utils

    found: AbstractContextManager[None] = utils.fresh_cache()
    return found


def inductor_after(rewrite: Callable[[fx.GraphModule, Any], fx.GraphModule]) -> Callable[..., Any]:
    """A backend of torch.compile: Inductor, on what `rewrite` makes of a graph and its inputs."""
    inductor = lookup_backend("inductor")
    return lambda graph, inputs, **how: inductor(rewrite(graph, inputs), inputs, **how)


def compile_package(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    """Compiles an exported program ahead of time, and writes the package to a `.pt2` file."""
    from torch._inductor import aoti_compile_and_package

    configs = {"aot_inductor.metadata": metadata}
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)


def load_package(path: Path) -> Any:
    """A package as what takes the program's inputs and gives its outputs as a list."""
    from torch._inductor import aoti_load_package

    found = aoti_load_package(str(path))
    return lambda *tensors: [*found(*tensors)]


def package_metadata(path: Path) -> dict[str, str]:
    """What `compile_package` wrote beside the code of a package."""
    from torch._inductor import aoti_load_package

    found: dict[str, str] = aoti_load_package(str(path)).get_metadata()
    return found
