"""Flat graphs: a list of tensors in and a list of tensors out, each with a name, as in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import tree_children, tree_rebuild
from chop.base.notices import warn_once
from chop.captured.nodes.generated_code import by_any_names
from chop.captured.nodes.regions import remove_regions
from chop.captured.nodes.writes import written_by
from chop.errors import GraphError
from chop.export.graphs.carried_state import run_without_state
from chop.export.graphs.divisors import WithoutDivisors
from chop.export.graphs.plain_names import give_plain_names
from chop.ir.graph import MaseGraph
from chop.private.modules import MEMBERS
from chop.private.torch_api import source_lives_with

WHERE = "export_onnx_interface_pass"
ROOT = "output"
"""Name of a result that is one tensor, and of what comes before the index of a tuple's parts."""
NUMBERS: Mapping[tuple[type, ...], torch.dtype] = {
    (bool, torch.SymBool): torch.bool,
    (int, torch.SymInt): torch.int64,
    (float, torch.SymFloat): torch.float32,
}
RENAMED = ".out"
"""Behind the name of an output that an input or a parameter has."""
Leaf = tuple[str, Any]


class FlatGraph:
    """A graph as a function of tensors that gives tensors.

    Names of inputs are those of the graph, with keys, indices and fields behind a dot where an
    input is nested: `x`, `batch.mask`, `pair.1`. Names of outputs are keys and fields, such as
    `logits` or `hidden_states.0`; parts of a tuple are `output.0`, `output.1`, and a single tensor
    is `output`. What is None is left out; so is text. A number is a tensor without dimensions.

    Args:
        mg: the graph, on a CPU; its output loses a loss, and inputs that nothing reads are erased.
        example: inputs by argument name.
        where: who asks, for messages.

    Attributes:
        module: takes the tensors, and returns a tuple of them.
        inputs: example inputs by name.
        outputs: names of what `module` returns.

    Raises:
        GraphError: no tensor goes in or comes out, or outputs depend on the calls before.
    """

    def __init__(self, mg: MaseGraph, example: Mapping[str, Any], where: str = WHERE) -> None:
        mg.keep_evaluation(f"{where} writes a program of eval()")
        _leave_out_loss(mg)
        remove_regions(mg.fx_graph)
        give_plain_names(mg)
        self._read = _read_inputs(mg)
        nested = self._nested(example)
        self.inputs = self.tensors(example)
        if not self.inputs:
            raise GraphError(f"{where}: expected an input that is a tensor, the graph reads none.")
        whole = fx.GraphModule(mg.model, mg.fx_graph)
        source_lives_with(type(whole).forward)
        type(whole).forward = by_any_names(type(whole).forward, self._read)
        self.module = _FlatModule(whole, nested).eval()

        def call() -> dict[str, Tensor]:
            # The graph may write into its inputs.
            return self.module.named(map_tensors(torch.clone, nested))

        self._keys = [*run_without_state(self.module, call, where)]
        if not self._keys:
            raise GraphError(f"{where}: expected an output that is a tensor, the graph has none.")
        self.outputs = _free_names(self._keys, {*self.inputs, *self.module.state_dict()})

    def tensors(self, example: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of an example by name, on the CPU."""
        return {name: x.cpu() for name, x in named_tensors(self._nested(example)).items()}

    def answers(self, answer: Mapping[str, Tensor]) -> list[Tensor]:
        """The tensors of `named_outputs` that `module` returns too, on the CPU."""
        return [answer[key].cpu() for key in self._keys]

    def _nested(self, example: Mapping[str, Any]) -> dict[str, Any]:
        return {name: example[name] for name in self._read if name in example}


class _FlatModule(nn.Module):
    """A graph module that takes and gives tensors; parameters keep their paths.

    Args:
        whole: the graph module. torch's exporter interprets those that it gets, past `forward`.
        nested: example inputs by argument name.
    """

    def __init__(self, whole: fx.GraphModule, nested: Mapping[str, Any]) -> None:
        super().__init__()
        for members in MEMBERS:
            setattr(self, members, getattr(whole, members))
        self._whole, self._nested = (whole,), nested  # in a tuple: torch registers no child

    def named(self, nested: Mapping[str, Any]) -> dict[str, Tensor]:
        """Results by name of inputs by argument name."""
        return named_outputs(self._whole[0](**nested))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        nested = {name: _with_tensors(value, given) for name, value in self._nested.items()}
        with WithoutDivisors():
            found = self.named(nested)
        return _distinct(found.values(), [*tensors, *self.parameters(), *self.buffers()])


def _with_tensors(nested: Any, given: Iterator[Tensor]) -> Any:
    return map_tensors(lambda _: next(given), nested)


def map_tensors(function: Callable[[Tensor], Any], nested: Any) -> Any:
    """Nested values with a function applied to their tensors."""
    if isinstance(nested, SimpleNamespace):
        return SimpleNamespace(**map_tensors(function, vars(nested)))
    parts = tree_children(nested)
    if parts is None:
        return function(nested) if isinstance(nested, Tensor) else nested
    return tree_rebuild(nested, {key: map_tensors(function, x) for key, x in parts.items()})


def named_tensors(nested: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors in nested values, by name."""
    return {name: x for name, x in _leaves(nested) if isinstance(x, Tensor)}


def named_outputs(answer: Any) -> dict[str, Tensor]:
    """Tensors of a result by name, see `FlatGraph`; numbers are tensors without dimensions.

    Warns once of what is neither, and is left out.
    """
    leaves = _output_leaves(answer)
    return {name: tensor for name, x in leaves if (tensor := _tensor(name, x)) is not None}


def output_tensors(answer: Any) -> dict[str, Tensor]:
    """Tensors of a result by name, as `named_outputs` has them, and nothing else of it."""
    return {name: x for name, x in _output_leaves(answer) if isinstance(x, Tensor)}


def _output_leaves(answer: Any) -> Iterator[Leaf]:
    root = {ROOT: answer} if isinstance(answer, tuple | list) else answer
    if hasattr(answer, "_fields"):
        root = answer._asdict()
    return _leaves(root if tree_children(root) is not None else {ROOT: root})


def _leaves(value: Any, name: str = "") -> Iterator[Leaf]:
    parts = vars(value) if isinstance(value, SimpleNamespace) else tree_children(value)
    if parts is None:
        yield name, value
        return
    for key, part in parts.items():
        yield from _leaves(part, f"{name}.{key}" if name else str(key))


def _tensor(name: str, value: Any) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    dtype = next((dtype for kinds, dtype in NUMBERS.items() if isinstance(value, kinds)), None)
    if dtype is not None:
        return torch.scalar_tensor(value, dtype=dtype)
    warn_once(
        f"{WHERE}: the output '{name}' is a {type(value).__name__}, which no file has a form for: "
        "left out"
    )
    return None


def _distinct(found: Any, others: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Results as values of their own: a file cannot give a value two names."""
    seen = {id(x) for x in others}
    results = []
    for tensor in found:
        results.append(tensor.clone() if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return tuple(results)


def _free_names(found: Iterable[str], taken: Collection[str]) -> list[str]:
    """Names of outputs, with `RENAMED` behind those that inputs or parameters have."""
    names: list[str] = []
    for name in found:
        while name in taken or name in names:
            name += RENAMED
        names.append(name)
    return names


def _leave_out_loss(mg: MaseGraph) -> None:
    """Takes the loss out of an output of Hugging Face: who runs the file has no labels."""
    (output,) = (node for node in mg.nodes if node.op == "output")
    answer = output.args[0]
    if not isinstance(answer, fx.Node) or not isinstance(answer.target, type):
        return
    if len(answer.kwargs) > 1:
        answer.kwargs = {k: v for k, v in answer.kwargs.items() if k != "loss"}
        # What writes is read by other names too.
        mg.fx_graph.eliminate_dead_code(lambda node: node.is_impure() or bool(written_by(node)))


def _read_inputs(mg: MaseGraph) -> list[str]:
    """Names of what the graph reads; placeholders that nothing reads are erased."""
    names = []
    for node in mg.nodes:
        if node.op == "placeholder" and node.users:
            names.append(str(node.target))
        elif node.op == "placeholder":
            mg.fx_graph.erase_node(node)
    return names
