"""Collectives: what processes send one another, counted while a model runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.private.torch_api import TorchDispatchMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SILENT = ("wait_tensor", "_wrap_tensor_autograd")
"""Operators of functional collectives that send nothing."""
NAMESPACES = ("_c10d_functional", "_dtensor")


@dataclass(frozen=True)
class Sent:
    """One call of a collective by this process.

    Attributes:
        operation: as `all_reduce`, `all_gather_into_tensor`.
        size_bytes: of the tensor that the process gave it.
        axis: of the mesh, along which it was sent; None: over several axes at once.
    """

    operation: str
    size_bytes: float
    axis: int | None


@dataclass(frozen=True)
class Collective:
    """Calls of one collective operation in a forward, by one process.

    Attributes:
        operation: as `all_reduce`, `all_gather_into_tensor`.
        calls: how many.
        size_bytes: of the tensors that the process gave it.
    """

    operation: str
    calls: int
    size_bytes: int


def totals(sent: Iterable[Sent]) -> list[Collective]:
    """Calls and bytes of each operation, in the order of the first calls.

    >>> totals([Sent("all_reduce", 4, 0), Sent("all_reduce", 8, 0)])
    [Collective(operation='all_reduce', calls=2, size_bytes=12)]
    """
    found: dict[str, Collective] = {}
    for each in sent:
        so_far = found.get(each.operation, Collective(each.operation, 0, 0))
        found[each.operation] = Collective(
            each.operation, so_far.calls + 1, so_far.size_bytes + int(each.size_bytes)
        )
    return list(found.values())


def is_silent(operator: Any) -> bool:
    """Whether an operator belongs to collectives and sends nothing: it gives what it is given."""
    return operator.namespace in NAMESPACES and operator.__name__.partition(".")[0] in SILENT


def _is_collective(operator: Any) -> bool:
    """Whether an operator sends."""
    return operator.namespace in NAMESPACES and not is_silent(operator)


def buffer_bytes(operator: Any, arguments: Sequence[Any], result: Any, backend: str) -> int:
    """Bytes that a collective needs beside its input and its result; 0 of other operators.

    Gloo gathers into a buffer for all chunks, and adds up in a copy of the whole input before it
    takes its chunk. Those of nccl do not depend on the tensors.

    Args:
        operator: the overload.
        arguments: of its call.
        result: of its call.
        backend: "gloo" or "nccl".
    """
    if backend != "gloo" or not _is_collective(operator):
        return 0
    if operator.__name__.startswith("all_gather"):
        return int(result.nbytes)
    return int(arguments[0].nbytes) if operator.__name__.startswith("reduce_scatter") else 0


@contextmanager
def counted_collectives(mesh: DeviceMesh | None = None) -> Iterator[list[Sent]]:
    """Yields a list that grows by what this process sends inside the block.

    Args:
        mesh: whose axes are distinguished; None: all is taken to go over all axes.
    """
    dims = range(mesh.ndim) if mesh is not None else ()
    axes = {str(mesh.get_group(d).group_name): d for d in dims} if mesh is not None else {}
    with _Counter(axes) as counter:
        yield counter.sent


class _Counter(TorchDispatchMode):
    """Notes functional collectives, which DTensor's are."""

    def __init__(self, axes: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.axes, self.sent = axes, list[Sent]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs the operator; DTensor's come again as those on its local tensors."""
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if _is_collective(func):
            name = func.__name__.partition(".")[0]
            self.sent.append(Sent(name, args[0].nbytes, self.axes.get(args[-1])))
        return func(*args, **(kwargs or {}))
