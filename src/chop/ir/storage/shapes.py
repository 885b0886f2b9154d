"""Shapes of nodes that a file does not describe, derived without computing what it asks for.

Only operators with one cost for any data are run, on tensors without data: those of the operator
table, those that work element by element, and arithmetic of sizes. Loops and results are counted.
What is left is described by what the file notes, or stays without a shape.
"""

from __future__ import annotations

import itertools
import logging
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from chop.base.notices import at_level
from chop.captured.guards.shape_guards import power, product
from chop.captured.huggingface.cache import NODE_FUNCTIONS
from chop.captured.module import CapturedModule
from chop.captured.nodes.modes import is_of_training
from chop.captured.runtime import ByMode
from chop.captured.specs import TensorSpec
from chop.captured.state.preserve_state import preserve_state
from chop.ir.metadata import MaseMetadata, TensorInfo, node_metadata
from chop.ir.ops import OPS, module_of_node, of_node
from chop.private.modules import own_buffers, own_parameters
from chop.private.torch_api import NOISY_LOGGERS, FakeTensorMode, TorchDispatchMode, get_schema

MAX_PARTS = 4096
"""Of a tensor that is split or unbound; also items of a sequence."""
CALLS_PER_NODE = 200
MODULE_HOMES = ("torch.nn.modules.", "chop.nn.")
OPERANDS = (Tensor, int, float)
# Operators beside those of the table that cost one step for any data.
PLAIN = (
    *("amax", "amin", "argmax", "argmin", "clone", "cumsum", "detach", "dim", "gather"),
    *("expand_as", "index_select", "logsumexp", "max", "min", "narrow", "norm", "select"),
    *("std", "unflatten", "var", "view_as", "new_empty", "new_full", "new_ones"),
    *("new_zeros", "empty_like", "full_like", "ones_like", "zeros_like"),
    *("bool", "double", "int", "long"),
)


class _Unknown:
    """The value of a node that is not run."""


UNKNOWN = _Unknown()


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not all(isinstance(x, int | float) for x in args):
            raise TypeError("expected numbers")
        return function(*args)

    return call


def _add(a: Any, b: Any) -> Any:
    are_sequences = isinstance(a, tuple | list) and isinstance(b, tuple | list)
    if are_sequences and len(a) + len(b) <= MAX_PARTS:
        return a + b
    return _of_numbers(operator.add)(a, b)


SIZE_CALLS: Mapping[Any, Callable[..., Any]] = {
    operator.add: _add,
    operator.mul: _of_numbers(product),
    operator.pow: _of_numbers(power),
    operator.getitem: operator.getitem,
    **{make: make for make in (torch.arange, torch.empty, torch.full, torch.ones, torch.zeros)},
    **{
        function: _of_numbers(function)
        for function in (
            *(operator.sub, operator.floordiv, operator.truediv, operator.mod, operator.neg),
            *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
            *(operator.not_, max, min, int, float, abs, math.floor, math.ceil, math.trunc),
            math.sqrt,
        )
    },
}
"""How each size operator is computed, with operands that are bounded."""


def describe_missing(model: CapturedModule) -> None:
    """Describes the nodes that were put in after the others had been described.

    Nodes whose shapes would take running more than the module's text says are named in a warning.
    """
    described = {
        n for n in model.graph.nodes if "mase" in n.meta and node_metadata(n).common.mase_op
    }
    nodes = (node for node in model.graph.nodes if not is_of_training(node))
    missing = [node for node in nodes if node not in described]
    if not described or not missing:
        return
    values = _evaluate(model, missing)
    for node in missing:
        node.meta["mase"] = MaseMetadata(node)
        common, row = node_metadata(node).common, of_node(node, model)
        common.mase_op, common.mase_type = row.name, row.mase_type
        inputs = [values[n] for n in node.all_input_nodes]
        tensors = [TensorInfo.of(x) for x in inputs if isinstance(x, Tensor)]
        common.args = {f"data_in_{i}": info for i, info in enumerate(tensors)}
        if isinstance(values[node], Tensor):
            common.results = {"data_out_0": TensorInfo.of(values[node])}
    unknown = [node.name for node in missing if values[node] is UNKNOWN]
    if unknown:
        warnings.warn(
            f"the shapes of {len(unknown)} nodes ({', '.join(unknown)[:200]}) are not in the file, "
            "and reading it runs nothing; add_common_metadata_analysis_pass(mg) finds them.",
            stacklevel=4,
        )


def _evaluate(model: CapturedModule, wanted: list[fx.Node]) -> dict[fx.Node, Any]:
    """Fake values of `wanted`, and of all nodes that lead to them."""
    noted = {node: _noted(node) for node in model.graph.nodes}
    needed = set(wanted)
    for node in reversed(model.graph.nodes):
        if node in needed and noted[node] is None:
            needed.update(node.all_input_nodes)
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    runner = _Runner(model, mode)
    values: dict[fx.Node, Any] = {}
    counted = _CountedTensor(CALLS_PER_NODE * len(model.graph.nodes))
    # Sizes that overflow are handled here; torch would also print a traceback.
    quiet = at_level(logging.CRITICAL, *NOISY_LOGGERS)
    with quiet, preserve_state(model), torch.no_grad(), mode, counted:
        model.eval()
        for node in model.graph.nodes:
            if node in needed:
                info = noted[node]
                values[node] = runner.run(node, values) if info is None else _empty(info)
    return values


def _noted(node: fx.Node) -> TensorInfo | None:
    """What the file notes of the one tensor that a node returns; None where it does not say."""
    infos = list(node_metadata(node).common.results.values()) if "mase" in node.meta else []
    may_be_sequence = any(user.target is operator.getitem for user in node.users)
    is_tensor = len(infos) == 1 and infos[0].torch_dtype is not None
    return infos[0] if is_tensor and not may_be_sequence else None


def _empty(info: TensorInfo) -> Any:
    try:
        return torch.empty(info.shape, dtype=info.torch_dtype)
    except (ArithmeticError, RuntimeError, TypeError, ValueError):
        return UNKNOWN


class _CountedTensor(TorchDispatchMode):
    """Stops after a number of operators, and before one that returns countless tensors."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = limit

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._left -= 1
        makes_list = any(result.type.kind() == "ListType" for result in get_schema(func).returns)
        is_long = makes_list and max(getattr(args[0], "shape", ()), default=0) > MAX_PARTS
        if self._left < 0 or is_long:
            raise OverflowError("more operators or tensors than a file may ask for")
        return func(*args, **(kwargs or {}))


class _Runner:
    """Gives the fake value of one node after the other.

    Args:
        model: the captured model.
        mode: makes tensors without data.
    """

    def __init__(self, model: CapturedModule, mode: FakeTensorMode) -> None:
        self._model = model
        self._mode = mode

    def run(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """The value of a node; `UNKNOWN` where it may not be run, or fails."""
        try:
            return self._run(node, values)
        except Exception:
            # Each operator refuses arguments in its own way.
            return UNKNOWN

    def _run(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node.op == "placeholder" and node.args:
            return node.args[0]
        if node.op == "placeholder":
            return self._fake(self._model.record.example_inputs[str(node.target)])
        if node.op == "get_attr":
            return self._mode.from_tensor(_on_cpu(_tensor(self._model, str(node.target))))
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
        leaves: list[Any] = []
        fx.node.map_aggregate((args, kwargs), leaves.append)
        if any(leaf is UNKNOWN for leaf in leaves):
            return UNKNOWN
        if node.op == "output":
            return args[0]
        if isinstance(node.target, type) and issubclass(node.target, dict):
            return kwargs  # a class that holds the model's outputs
        call: Any = node.target
        if call in NODE_FUNCTIONS:
            return call(*args, **kwargs)
        has_tensors = any(isinstance(leaf, Tensor) for leaf in leaves)
        call = self._tensor_call(node, args) if has_tensors else self._size_call(node)
        return UNKNOWN if call is None else call(*args, **kwargs)

    def _tensor_call(self, node: fx.Node, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What to call with tensors; None if that is not known to cost the same for any data."""
        name = of_node(node, self._model).name
        if node.op == "call_module":
            module = module_of_node(node, self._model)
            return _with_memory(module) if module and name in OPS and _is_plain(module) else None
        call: Any = node.target
        if node.op == "call_method":
            call = getattr(torch.Tensor, str(node.target))
        is_python = getattr(call, "__module__", None) == operator.add.__module__
        if is_python and name != "getitem" and not all(isinstance(x, OPERANDS) for x in args):
            return None  # sums and products of sequences
        if name == "chunk" and not all(x <= MAX_PARTS for x in args[1:]):
            return None
        return call if name in OPS or name in PLAIN or _is_elementwise(name) else None

    def _size_call(self, node: fx.Node) -> Callable[..., Any] | None:
        """The same without tensors: arithmetic, looking into shapes, and tensors of a size."""
        module = module_of_node(node, self._model)
        return module if isinstance(module, ByMode) else SIZE_CALLS.get(node.target)

    def _fake(self, spec: Any) -> Any:
        if isinstance(spec, TensorSpec):
            return torch.empty([int(size) for size in spec.shape], dtype=spec.dtype)
        if isinstance(spec, Mapping):
            return {key: self._fake(item) for key, item in spec.items()}
        if isinstance(spec, tuple | list):
            return type(spec)(self._fake(item) for item in spec)
        return spec


def _tensor(model: nn.Module, target: str) -> Any:
    """A parameter or buffer as it is stored: what is parametrized is not computed."""
    path, _, name = target.rpartition(".")
    owner = model.get_submodule(path)
    return (
        own_parameters(owner)[name] if name in own_parameters(owner) else own_buffers(owner)[name]
    )


def _with_memory(module: nn.Module) -> Callable[..., Any]:
    """The module, with fake tensors beside its inputs in place of those on the meta device."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    fakes = {name: _on_cpu(x) for name, x in tensors if x.is_meta}
    if not fakes:
        return module
    return lambda *args, **kwargs: torch.func.functional_call(module, fakes, args, kwargs)


def _on_cpu(tensor: Any) -> Any:
    """Where tensors are fake: a tensor that inputs can meet, for one on the meta device."""
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor


def _is_elementwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.isidentifier() else None
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, kind).tags for kind in packet.overloads())


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is torch's or ours throughout; others may loop as their settings say."""
    return all(
        type(part).__module__.startswith(MODULE_HOMES) and not parametrize.is_parametrized(part)
        for part in module.modules()
    )
