"""Graph execution node by node: fake tensors for shapes and dtypes, real ones for values."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.notices import at_level
from chop.captured.huggingface.cache import is_cache
from chop.captured.huggingface.cache_names import CACHE_NAMES
from chop.captured.module import CapturedModule
from chop.captured.module_tree import member_at
from chop.captured.nodes.modes import absent_nodes, chosen, current_modes, mode_paths
from chop.captured.runtime import by_mode, exit_open_regions
from chop.captured.specs import TensorSpec, map_specs
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ChopError, GraphError, did_you_mean, first_line
from chop.private.torch_api import NOISY_LOGGERS, FakeTensorMode

Visit = Callable[[fx.Node, Mapping[fx.Node, Any], Any], None]
"""Callback with a node, the values of the nodes that it reads, and its result."""


def propagate(
    model: CapturedModule,
    inputs: Mapping[str, Any],
    visit: Callable[[fx.Node, Any], None],
    with_values: bool = False,
    training: bool = False,
) -> None:
    """Calls `visit(node, result)` for every node in order.

    Args:
        model: the captured model; it runs without gradients, and its mode is restored.
        inputs: value of each placeholder; may include inputs that the graph ignores.
        visit: called with fake results, or with real ones if `with_values`.
        with_values: run the model on real tensors. A run on fake tensors costs no arithmetic and no
            memory for a model of any size.
        training: run in training mode; only on fake tensors, unless a module needs values.

    Raises:
        GraphError: if an input is missing or unknown, or the model fails on the inputs.
    """
    # Fake mode really runs operators that write into a parameter and read no input.
    with preserve_state(model, thorough=training):
        model.train(training)
        arguments = bind_inputs(model, inputs)
        if with_values or not (_run_fake(model, arguments, visit) or training):
            try:
                with torch.no_grad():
                    GraphVisitor(model, lambda node, _, result: visit(node, result)).run(*arguments)
            except (RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, ChopError | torch.OutOfMemoryError):
                    raise
                raise GraphError(
                    f"the graph fails on its inputs: {first_line(error).rstrip('.!')}. Layers "
                    "that were assigned after the capture, and inputs, must fit the model."
                ) from error


def bind_inputs(model: CapturedModule, inputs: Mapping[str, Any]) -> list[Any]:
    """Returns the values of the placeholders in order, with defaults: the only way into a graph.

    Inputs that a call of the model rejects are rejected; ignored inputs are allowed. A cache is
    copied, since graphs write into it and the next run starts from the original.

    Raises:
        GraphError: if an input is missing or unknown.
        GuardError: if the inputs violate the guards, see `CapturedModule.admit`.
    """
    nodes = [node for node in model.graph.nodes if node.op == "placeholder"]
    names, ignored = [str(node.target) for node in nodes], set(model.record.ignored_inputs)
    known = {*names, *ignored, *model.record.fixed_inputs, "use_cache"}
    for name in inputs:
        if name not in known and name not in CACHE_NAMES:
            raise GraphError(f"the graph has no input '{name}': {did_you_mean(name, names)}")
    for node in nodes:
        if node.target not in inputs and not node.args:
            raise GraphError(f"input '{node.target}' of the graph is missing.")
    read = {name: x for name, x in inputs.items() if name in names or name not in ignored}
    given = model.admit((), read)
    values = [
        given[n] if n in given else node.args[0] for n, node in zip(names, nodes, strict=True)
    ]
    return [copy.deepcopy(x) if is_cache(x) else x for x in values]


def example_inputs(
    model: CapturedModule, device: torch.device | str | None = None
) -> dict[str, Any]:
    """Returns inputs with the shapes of the capture, drawn with a fixed seed.

    Args:
        model: the captured model.
        device: device of the inputs; None uses that of the model's parameters.
    """
    generator = torch.Generator().manual_seed(0)
    place = next(model.parameters(), torch.empty(0)).device if device is None else device

    def draw(spec: Any) -> Any:
        return spec.dummy(generator).to(place) if isinstance(spec, TensorSpec) else spec

    specs = model.record.example_inputs
    inputs: dict[str, Any] = map_specs(draw, specs, lambda _, named: SimpleNamespace(**named))
    return inputs


def recorded_inputs(model: CapturedModule) -> dict[str, Any]:
    """Returns inputs with the shapes and dtypes in the placeholders' metadata, if it has them."""
    inputs = example_inputs(model)
    for node in model.graph.nodes:
        example = inputs.get(str(node.target))
        if node.op != "placeholder" or not isinstance(example, Tensor) or "mase" not in node.meta:
            continue
        info = node.meta["mase"].common.results.get("data_out_0")
        if info is not None and (info.shape, info.torch_dtype) != (example.shape, example.dtype):
            shape, dtype = info.shape, info.torch_dtype
            inputs[str(node.target)] = torch.zeros(shape, dtype=dtype, device=example.device)
    return inputs


class GraphRunner(fx.Interpreter):
    """Graph interpreter that restores autocast regions and gradient modes afterwards.

    Args:
        model: the module with the graph.
        frees: frees each value after its last use, for which the whole graph is read first.
    """

    def __init__(self, model: nn.Module, frees: bool = True) -> None:
        super().__init__(model, garbage_collect_values=frees)
        self._paths = mode_paths(self.graph)
        self._modes: tuple[bool, ...] = ()
        self._absent: set[fx.Node] = set()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output of the graph for placeholder values from `bind_inputs`."""
        with torch.set_grad_enabled(torch.is_grad_enabled()), exit_open_regions():
            return super().run(*args, **kwargs)

    def fetch_attr(self, target: str) -> Any:
        """Returns the module, parameter or buffer at a path, even one named `graph` or `code`."""
        member = member_at(self.module, target)
        return super().fetch_attr(target) if member is None else member

    def run_node(self, n: fx.Node) -> Any:
        """Returns the result of a node; None if the modules' modes skip it."""
        if self.is_absent(n):
            return None
        if n.target is by_mode:
            return self.map_nodes_to_values(chosen(n, current_modes(self.module)), n)
        return super().run_node(n)

    def is_absent(self, node: fx.Node) -> bool:
        """Returns whether the modules' modes skip a node."""
        if not self._paths:
            return False
        is_training = current_modes(self.module)
        modes = tuple(map(is_training, self._paths))
        if modes != self._modes:
            self._modes, self._absent = modes, absent_nodes(self.graph, is_training)
        return node in self._absent


class GraphVisitor(GraphRunner):
    """Graph interpreter that passes each result to a callback.

    Args:
        model: the module with the graph.
        visit: see `Visit`.
        running: makes the context in which nodes run; `visit` is called outside of it.
        frees: see `GraphRunner`.
    """

    def __init__(
        self,
        model: nn.Module,
        visit: Visit,
        running: Callable[[], AbstractContextManager[Any]] = nullcontext,
        frees: bool = True,
    ) -> None:
        super().__init__(model, frees)
        self._visit, self._running = visit, running

    def run_node(self, n: fx.Node) -> Any:
        """Returns the result of a node after `visit` was called with it."""
        try:
            with self._running():
                result = super().run_node(n)
            if not self.is_absent(n):
                self._visit(n, self.env, result)
        except ChopError:
            self.extra_traceback = False  # the message is sufficient for users
            raise
        return result


def _run_fake(
    model: CapturedModule, arguments: list[Any], visit: Callable[[fx.Node, Any], None]
) -> bool:
    """Runs on fake tensors; returns False if a module needs real ones because it reads values."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in arguments]
    seen: list[tuple[fx.Node, Any]] = []
    try:
        with at_level(logging.CRITICAL, *NOISY_LOGGERS), mode, torch.no_grad():
            GraphVisitor(model, lambda node, _, result: seen.append((node, result))).run(*fakes)
    except Exception:
        # Modules raise various errors for fake tensors. The real run
        # that follows raises the actual error.
        return False
    for node, result in seen:
        visit(node, result)
    return True
