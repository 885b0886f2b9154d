"""Collectives: communication between processes, counted while a model runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.private.torch_api import TorchDispatchMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SILENT = ("wait_tensor", "_wrap_tensor_autograd")
"""Operators of functional collectives that do not communicate."""
NAMESPACES = ("_c10d_functional", "_dtensor")


@dataclass(frozen=True)
class Sent:
    """One collective call of this process.

    Attributes:
        operation: name, such as `all_reduce` or `all_gather_into_tensor`.
        size_bytes: bytes of this process's input tensor.
        axis: mesh axis; None for several axes at once.
    """

    operation: str
    size_bytes: float
    axis: int | None


@dataclass(frozen=True)
class Collective:
    """Calls of one collective operation by one process in a forward pass.

    Attributes:
        operation: name, such as `all_reduce` or `all_gather_into_tensor`.
        calls: number of calls.
        size_bytes: bytes of this process's input tensors.
    """

    operation: str
    calls: int
    size_bytes: int


def totals(sent: Iterable[Sent]) -> list[Collective]:
    """Sums calls and bytes of each operation, in the order of the first calls.

    >>> totals([Sent("all_reduce", 4, 0), Sent("all_reduce", 8, 0)])
    [Collective(operation='all_reduce', calls=2, size_bytes=12)]
    """
    collectives: dict[str, Collective] = {}
    for each in sent:
        so_far = collectives.get(each.operation, Collective(each.operation, 0, 0))
        collectives[each.operation] = Collective(
            each.operation, so_far.calls + 1, so_far.size_bytes + int(each.size_bytes)
        )
    return list(collectives.values())


def is_silent(operator: Any) -> bool:
    """Returns whether an operator belongs to collectives but returns its input unchanged."""
    return operator.namespace in NAMESPACES and operator.__name__.partition(".")[0] in SILENT


def _is_collective(operator: Any) -> bool:
    return operator.namespace in NAMESPACES and not is_silent(operator)


def buffer_bytes(operator: Any, arguments: Sequence[Any], result: Any, backend: str) -> int:
    """Returns the buffer bytes of a collective, without input and result; 0 for other operators.

    Gloo gathers into a buffer for all chunks, and reduces in a copy of the whole input before it
    takes its chunk. nccl's buffers do not depend on the tensors.

    Args:
        operator: the operator overload.
        arguments: its arguments.
        result: its result.
        backend: "gloo" or "nccl".
    """
    if backend != "gloo" or not _is_collective(operator):
        return 0
    if operator.__name__.startswith("all_gather"):
        return int(result.nbytes)
    return int(arguments[0].nbytes) if operator.__name__.startswith("reduce_scatter") else 0


@contextmanager
def counted_collectives(mesh: DeviceMesh | None = None) -> Iterator[list[Sent]]:
    """Yields a list that collects this process's collective calls within the block.

    Args:
        mesh: mesh whose axes are distinguished; None attributes all calls to all axes.
    """
    dims = range(mesh.ndim) if mesh is not None else ()
    axes = {str(mesh.get_group(d).group_name): d for d in dims} if mesh is not None else {}
    with _Counter(axes) as counter:
        yield counter.sent


class _Counter(TorchDispatchMode):
    """Records functional collectives, which DTensor uses."""

    def __init__(self, axes: dict[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.axes, self.sent = axes, list[Sent]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs and counts an operator on local tensors."""
        from torch.distributed.tensor import DTensor

        # DTensor then runs its own dispatch, which calls the operators on local tensors.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if _is_collective(func):
            name = func.__name__.partition(".")[0]
            self.sent.append(Sent(name, args[0].nbytes, self.axes.get(args[-1])))
        return func(*args, **(kwargs or {}))
