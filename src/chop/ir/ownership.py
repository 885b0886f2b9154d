"""Shared modules and parameters: users affected by a change of a parameter."""

from __future__ import annotations

from collections import Counter

from torch import Tensor, fx, nn

from chop.ir.graph import MaseGraph


class Ownership:
    """Number of nodes that use each module, and of modules that use each parameter.

    Args:
        mg: the graph in its present state.
    """

    def __init__(self, mg: MaseGraph) -> None:
        self._mg = mg
        self._uses: Counter[int] = Counter()
        for node in mg.nodes:
            # A leaf may call its submodules, so that their uses include those of the leaf.
            called = mg.get_module(node)
            self._uses.update(map(id, () if called is None else called.modules()))
            if node.op == "get_attr":
                self._uses[id(self._owner(node))] += 1
        self._owners = Counter(
            _memory(tensor)
            for module in mg.model.modules()
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        )

    def _owner(self, node: fx.Node) -> nn.Module:
        return self._mg.model.get_submodule(str(node.target).rpartition(".")[0])

    def why_shared(self, node: fx.Node) -> str | None:
        """Returns why the parameters of a node's module are shared; None if they are not."""
        module = self._mg.get_module(node)
        if module is None:
            return "is a function call, not a module"
        if self._uses[id(module)] > 1:
            return "is used in several places"
        if any(self._owners[_memory(x)] > 1 for x in module.parameters(recurse=False)):
            return "shares its parameters with another module"
        return None

    def is_parameter_shared(self, node: fx.Node) -> bool:
        """Returns whether the parameter of a `get_attr` node has another owner or reader."""
        path = str(node.target)
        owner = self._owner(node)
        readers = [n for n in self._mg.nodes if n.op == "get_attr" and str(n.target) == path]
        callers = self._uses[id(owner)] - sum(
            1 for n in self._mg.nodes if n.op == "get_attr" and self._owner(n) is owner
        )
        users = sum(len(reader.users) for reader in readers) + callers
        return users > 1 or self._owners[_memory(self._mg.model.get_parameter(path))] > 1


def _memory(tensor: Tensor) -> int:
    """Returns the start address of a tensor; views of the same data at the start share it."""
    is_real = tensor.device.type != "meta" and type(tensor) in (Tensor, nn.Parameter)
    return tensor.data_ptr() if is_real and tensor.numel() else id(tensor)
