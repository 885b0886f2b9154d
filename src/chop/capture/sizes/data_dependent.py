"""Data-dependent reads of tensors by Python: constants of the graph, guarded at run time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, fx

from chop.capture.recording.eager_probe import SCALAR_READS, EagerReads
from chop.capture.recording.source import current_line
from chop.capture.sizes.symbols import get_constant
from chop.captured.runtime import guard_value
from chop.errors import CaptureError
from chop.private.symbolic_shapes import outside_fake_mode

# Most readings of more numbers than these are tables, which a node should not hold.
_MAX_READ_ELEMENTS = 1024


class DataDependentReads:
    """Returns the values of data-dependent reads during one recording, and guards them by nodes.

    Args:
        emit: makes a node.
        find_node: the node of a tensor.
        eager_reads: what the model's Python read from tensors in a real run.

    Attributes:
        moving: buffers that the model's Python reads and its forward writes.
        model_tensors: the tensors that the model holds, by identity.
    """

    def __init__(
        self,
        emit: Callable[..., fx.Node],
        find_node: Callable[[Tensor], fx.Node],
        eager_reads: EagerReads | None,
    ) -> None:
        self.mutated_buffers: Collection[str] = ()
        self.model_tensors: Mapping[int, Tensor] = {}
        self._emit = emit
        self._node_of = find_node
        self._eager_reads = eager_reads

    def read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """What `func(*args, **kwargs)` tells the model's Python.

        Raises:
            CaptureError: it depends on the inputs, and there is no decision to take it from.
        """
        constant = get_constant(args[0])
        if constant is None:
            return self._read_from_eager_run(args[0], name)
        with outside_fake_mode():
            value = func(constant, *args[1:], **kwargs)
        if constant is args[0] and id(constant) in self.model_tensors:
            self._read_state(constant, name, value)
        return value

    def _read_state(self, tensor: Tensor, reading: str, value: Any) -> None:
        """A value of a buffer, which may be another one at run time."""
        node = self._node_of(tensor)
        if str(node.target) in self.mutated_buffers and self._eager_reads is None:
            raise CaptureError(
                f"the model's Python needs the value of its buffer {node.target}, which its "
                "forward writes"
            )
        if reading not in SCALAR_READS:
            if tensor.numel() > _MAX_READ_ELEMENTS:
                raise CaptureError(
                    f"the model's Python reads the {tensor.numel()} values of {node.target}"
                )
            with outside_fake_mode():
                reading, value = "tolist", tensor.tolist()
        arguments = (tensor, reading, value, current_line(), str(node.target))
        self._emit("call_function", guard_value, arguments, {}, None)

    def _read_from_eager_run(self, tensor: Tensor, reading: str) -> Any:
        """The value that the model's Python read here in a real run, checked at run time."""
        where = current_line()
        answer = self._eager_reads.answer(where) if self._eager_reads is not None else None
        if answer is None or reading not in SCALAR_READS:
            raise CaptureError(
                "the model's Python needs the value of a tensor computed from its inputs: "
                f"{reading.strip('_')}() of {self._node_of(tensor)}"
            )
        self._emit("call_function", guard_value, (tensor, reading, answer, where), {}, None)
        return answer
