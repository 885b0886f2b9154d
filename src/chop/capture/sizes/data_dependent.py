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

# Longer reads are mostly tables, which a node should not contain.
_MAX_READ_ELEMENTS = 1024


class DataDependentReads:
    """Values of data-dependent reads during one recording, guarded by nodes.

    Args:
        emit: creates a node.
        find_node: returns the node of a tensor.
        eager_reads: values that the model's Python read from tensors in an eager run.

    Attributes:
        mutated_buffers: buffers that the model's Python reads and its forward writes.
        model_tensors: tensors of the model, by identity.
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
        self._find_node = find_node
        self._eager_reads = eager_reads

    def read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Returns the result of `func(*args, **kwargs)` for the model's Python.

        Raises:
            CaptureError: it depends on the inputs, and no eager run provides it.
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
        """Adds a guard on a value of a buffer, which may change at run time."""
        node = self._find_node(tensor)
        if str(node.target) in self.mutated_buffers and self._eager_reads is None:
            raise CaptureError(
                f"the model's Python reads its buffer {node.target}, which its forward writes"
            )
        if reading not in SCALAR_READS:
            if tensor.numel() > _MAX_READ_ELEMENTS:
                raise CaptureError(
                    f"the model's Python reads all {tensor.numel()} values of {node.target}; a "
                    f"graph can check at most {_MAX_READ_ELEMENTS}"
                )
            with outside_fake_mode():
                reading, value = "tolist", tensor.tolist()
        arguments = (tensor, reading, value, current_line(), str(node.target))
        self._emit("call_function", guard_value, arguments, {}, None)

    def _read_from_eager_run(self, tensor: Tensor, reading: str) -> Any:
        """Returns the value of the eager run, guarded at run time."""
        where = current_line()
        answer = self._eager_reads.answer(where) if self._eager_reads is not None else None
        if answer is None or reading not in SCALAR_READS:
            raise CaptureError(
                "the model's Python reads the value of a tensor computed from its inputs: "
                f"{reading.strip('_')}() of {self._find_node(tensor)}"
            )
        self._emit("call_function", guard_value, (tensor, reading, answer, where), {}, None)
        return answer
