"""Shared modules and parameters: who else would notice if a parameter changed."""

from __future__ import annotations

from collections import Counter

from torch import fx

from chop.ir.graph import MaseGraph


class Ownership:
    """How many nodes use each module, and how many modules each parameter.

    Args:
        mg: the graph, as it is now.
    """

    def __init__(self, mg: MaseGraph) -> None:
        self._mg = mg
        self._uses: Counter[str] = Counter()
        for node in mg.nodes:
            if node.op == "call_module":
                self._uses[str(node.target)] += 1
            elif node.op == "get_attr":
                self._uses[str(node.target).rpartition(".")[0]] += 1
        self._owners = Counter(
            id(parameter)
            for module in mg.model.modules()
            for parameter in module.parameters(recurse=False)
        )

    def why_shared(self, node: fx.Node) -> str | None:
        """Why the parameters of a node's module are shared; None if they are its own."""
        module = self._mg.module_of(node)
        if module is None:
            return "is a function call, not a module"
        if self._uses[str(node.target)] > 1:
            return "is used in several places"
        if any(self._owners[id(parameter)] > 1 for parameter in module.parameters(recurse=False)):
            return "shares its parameters with another module"
        return None

    def is_parameter_shared(self, node: fx.Node) -> bool:
        """True where something else has the parameter of a `get_attr` node, or reads it."""
        path = str(node.target)
        owner = path.rpartition(".")[0]
        readers = [n for n in self._mg.nodes if n.op == "get_attr" and str(n.target) == path]
        callers = [n for n in self._mg.nodes if n.op == "call_module" and n.target == owner]
        users = sum(len(reader.users) for reader in readers) + len(callers)
        return users > 1 or self._owners[id(self._mg.model.get_parameter(path))] > 1
