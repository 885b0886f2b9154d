"""Shape derivation for nodes that a file does not describe, at bounded cost.

Only operators with data-independent cost run, on tensors without data: those of the operator table,
element-wise ones, and size arithmetic. Loops and results are counted. Other nodes get the shapes
recorded in the file, or none.
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
from chop.ir.ops import OPS, get_node_row, module_of_node
from chop.private.modules import own_buffers, own_parameters
from chop.private.torch_api import NOISY_LOGGERS, FakeTensorMode, TorchDispatchMode, get_schema

MAX_PARTS = 4096
"""Maximum number of parts of a split or unbound tensor, and of items in a sequence."""
CALLS_PER_NODE = 200
MODULE_HOMES = ("torch.nn.modules.", "chop.nn.")
OPERANDS = (Tensor, int, float)
# Operators outside the table with data-independent cost.
PLAIN = (
    *("amax", "amin", "argmax", "argmin", "clone", "cumsum", "detach", "dim", "gather"),
    *("expand_as", "index_select", "logsumexp", "max", "min", "narrow", "norm", "select"),
    *("std", "unflatten", "var", "view_as", "new_empty", "new_full", "new_ones"),
    *("new_zeros", "empty_like", "full_like", "ones_like", "zeros_like"),
    *("bool", "double", "int", "long"),
)


class _Unknown:
    """Value of a node that is not run."""


UNKNOWN = _Unknown()


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not all(isinstance(x, int | float) for x in args):
            raise TypeError("expected numbers")
        return function(*args)

    return call


def _add(a: Any, b: Any) -> Any:
    are_sequences = isinstance(a, tuple | list) and isinstance(b, tuple | list)
    if are_sequences and len(a) + len(b) <= MAX_PARTS:
        return a + b
    return _on_numbers(operator.add)(a, b)


SIZE_CALLS: Mapping[Any, Callable[..., Any]] = {
    operator.add: _add,
    operator.mul: _on_numbers(product),
    operator.pow: _on_numbers(power),
    operator.getitem: operator.getitem,
    **{make: make for make in (torch.arange, torch.empty, torch.full, torch.ones, torch.zeros)},
    **{
        function: _on_numbers(function)
        for function in (
            *(operator.sub, operator.floordiv, operator.truediv, operator.mod, operator.neg),
            *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
            *(operator.not_, max, min, int, float, abs, math.floor, math.ceil, math.trunc),
            math.sqrt,
        )
    },
}
"""Size operators with bounded operands."""


def describe_missing(model: CapturedModule) -> None:
    """Adds metadata to nodes that were inserted after the others had been described.

    Warns of nodes whose shapes would need operators beyond the module docstring.
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
        common, row = node_metadata(node).common, get_node_row(node, model)
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
            "and reading it runs no graph; add_common_metadata_analysis_pass(mg) adds them.",
            stacklevel=4,
        )


def _evaluate(model: CapturedModule, wanted: list[fx.Node]) -> dict[fx.Node, Any]:
    """Returns fake values of `wanted` and of all nodes that they depend on."""
    recorded = {node: _recorded(node) for node in model.graph.nodes}
    needed = set(wanted)  # recorded nodes end the search for inputs
    for node in reversed(model.graph.nodes):
        if node in needed and recorded[node] is None:
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
                info = recorded[node]
                values[node] = runner.run(node, values) if info is None else _empty(info)
    return values


def _recorded(node: fx.Node) -> TensorInfo | None:
    """Returns the recorded tensor that a node returns; None if it is not recorded."""
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
    """Counter that stops after too many operators or before a huge number of results."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._remaining = limit

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._remaining -= 1
        makes_list = any(result.type.kind() == "ListType" for result in get_schema(func).returns)
        is_long = makes_list and max(getattr(args[0], "shape", ()), default=0) > MAX_PARTS
        if self._remaining < 0 or is_long:
            raise OverflowError("more operators or tensors than a file may ask for")
        return func(*args, **(kwargs or {}))


class _Runner:
    """Evaluator of fake values, one node at a time.

    Args:
        model: the captured model.
        mode: mode of tensors without data.
    """

    def __init__(self, model: CapturedModule, mode: FakeTensorMode) -> None:
        self._model = model
        self._mode = mode

    def run(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """Returns the value of a node; `UNKNOWN` if it may not run, or fails."""
        try:
            return self._run(node, values)
        except Exception:
            # Operators raise various errors for invalid arguments.
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
            return kwargs  # a class for the model's outputs
        call: Any = node.target
        if call in NODE_FUNCTIONS:
            return call(*args, **kwargs)
        has_tensors = any(isinstance(leaf, Tensor) for leaf in leaves)
        call = self._tensor_call(node, args) if has_tensors else self._size_call(node)
        return UNKNOWN if call is None else call(*args, **kwargs)

    def _tensor_call(self, node: fx.Node, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Returns the call on tensors; None if its cost may depend on the data."""
        name = get_node_row(node, self._model).name
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
        """Returns a call without tensor inputs: size arithmetic, shapes, tensors of a size."""
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
    """Returns a parameter or buffer as stored, without evaluating parametrizations."""
    path, _, name = target.rpartition(".")
    owner = model.get_submodule(path)
    return (
        own_parameters(owner)[name] if name in own_parameters(owner) else own_buffers(owner)[name]
    )


def _with_memory(module: nn.Module) -> Callable[..., Any]:
    """Returns the module with fake tensors on the device of its inputs instead of meta."""
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    fakes = {name: _on_cpu(x) for name, x in tensors if x.is_meta}
    if not fakes:
        return module
    return lambda *args, **kwargs: torch.func.functional_call(module, fakes, args, kwargs)


def _on_cpu(tensor: Any) -> Any:
    """Returns a fake CPU tensor, compatible with inputs, for a tensor on the meta device."""
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor


def _is_elementwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.isidentifier() else None
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, kind).tags for kind in packet.overloads())


def _is_plain(module: nn.Module) -> bool:
    """Returns whether a module is entirely of torch or chop; others may loop by their settings."""
    return all(
        type(part).__module__.startswith(MODULE_HOMES) and not parametrize.is_parametrized(part)
        for part in module.modules()
    )
