"""Buffers replaced in training: the graph copies the new value into the old tensor.

`self.mean = ...` and `weight.data = ...` equal a copy if nothing else reads the old tensor or
writes into the new one later.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from chop.capture.recording.graph_writer import GraphWriter
from chop.captured.nodes.writes import get_memory, written_by
from chop.errors import CaptureError


class ReplacedBuffers:
    """Buffer replacements of one recording.

    Args:
        writer: writer of the recording.
    """

    def __init__(self, writer: GraphWriter) -> None:
        self._writer = writer
        self._first: dict[int, Tensor] = {}
        self._copies: list[tuple[fx.Node, fx.Node, fx.Node, bool]] = []
        self._alive: list[Any] = []

    def write(self, old: Any, new: Any) -> bool:
        """Copies a new buffer into the memory of the old one; returns False if that is not
        equivalent.
        """
        if not (isinstance(old, Tensor) and isinstance(new, Tensor)):
            return False
        if id(new) in self._first:
            return True
        # A buffer can be replaced several times; all copies go into the one that the graph reads.
        first = self._first.get(id(old), old)
        if not self._fits(first, new):
            return False
        self._copy(first, first, new)
        self._first[id(new)] = first
        return True

    def set_data(self, tensor: Tensor, value: Any) -> bool:
        """Copies the value of `tensor.data = value`; returns False if that is not equivalent.

        Args:
            tensor: a parameter or buffer.
            value: its new data.
        """
        if not (isinstance(value, Tensor) and self._fits(tensor, value)):
            return False
        data = tensor.detach()
        self._writer.emit("call_function", getattr, (tensor, "data"), {}, data)
        self._copy(tensor, data, value)
        return True

    def _fits(self, old: Tensor, new: Tensor) -> bool:
        """Returns whether a copy is equivalent: same kind, no history, own memory."""
        kinds = [(x.shape, x.dtype, x.device, x.layout) for x in (old, new)]
        is_own = get_memory(self._writer.find_node(new)).op != "get_attr"
        is_member = self._writer.find_node(old).op == "get_attr"
        return kinds[0] == kinds[1] and not new.requires_grad and is_own and is_member

    def _copy(self, first: Tensor, target: Tensor, new: Tensor) -> None:
        copy = self._writer.emit("call_method", "copy_", (target, new), {}, None)
        nodes = self._writer.find_node(first), self._writer.find_node(new)
        self._copies.append((copy, *nodes, first is target))
        self._alive += (first, target, new)

    def check(self) -> None:
        """Checks that nothing reads an old buffer, or writes into a new one, after its copy.

        Raises:
            CaptureError: a node does.
        """
        copies = {copy for copy, *_ in self._copies}
        for copy, target, value, is_replaced in self._copies:
            node = copy.next
            # The node list is a ring whose root follows the last node.
            while node.op != "root":
                reads = is_replaced and any(get_memory(x) is target for x in node.all_input_nodes)
                writes = any(get_memory(x) is get_memory(value) for x in written_by(node))
                if node not in copies and (reads or writes):
                    raise CaptureError(
                        f"the model replaces {target.target} while it runs and still uses the old "
                        f"tensor; write into it instead (self.{target.target}.copy_(...))"
                    )
                node = node.next
