"""Flat graphs: functions of named tensors that return named tensors, as in ONNX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import tree_children, tree_rebuild
from chop.base.notices import warn_once
from chop.captured.nodes.generated_code import wrap_forward
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
"""Name of a single-tensor result, and prefix of the parts of a tuple."""
NUMBERS: Mapping[tuple[type, ...], torch.dtype] = {
    (bool, torch.SymBool): torch.bool,
    (int, torch.SymInt): torch.int64,
    (float, torch.SymFloat): torch.float32,
}
RENAMED = ".out"
"""Suffix of an output with the name of an input or a parameter."""
Leaf = tuple[str, Any]


class FlatGraph:
    """Graph as a function from tensors to tensors.

    Input names are those of the graph. Nested inputs append keys, indices and fields after a dot:
    `x`, `batch.mask`, `pair.1`. Output names are keys and fields, such as `logits` or
    `hidden_states.0`; parts of a tuple are `output.0`, `output.1`, and a single tensor is `output`.
    None and text are omitted. Numbers become tensors without dimensions.

    Args:
        mg: graph on a CPU. Its output loses the loss, and inputs without readers are removed.
        example: inputs by argument name.
        where: caller, for messages.

    Attributes:
        module: module that takes the tensors and returns a tuple of tensors.
        inputs: example inputs by name.
        outputs: names of the outputs of `module`.

    Raises:
        GraphError: if no tensor goes in or comes out, or if outputs depend on earlier calls.
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
            raise GraphError(f"{where}: expected an input tensor, but the graph reads none.")
        whole = fx.GraphModule(mg.model, mg.fx_graph)
        source_lives_with(type(whole).forward)
        type(whole).forward = wrap_forward(type(whole).forward, self._read)
        self.module = _FlatModule(whole, nested).eval()

        def call() -> dict[str, Tensor]:
            # The graph may write into its inputs.
            return self.module.named(map_tensors(torch.clone, nested))

        self._keys = [*run_without_state(self.module, call, where)]
        if not self._keys:
            raise GraphError(f"{where}: expected an output tensor, but the graph has none.")
        self._where = where
        self.outputs = _free_names(self._keys, {*self.inputs, *self.module.state_dict()})

    def tensors(self, example: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns the tensors of an example by name, on the CPU."""
        return {name: x.cpu() for name, x in named_tensors(self._nested(example)).items()}

    def answers(self, answer: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the tensors of `named_outputs` that `module` returns, on the CPU.

        Raises:
            GraphError: if `module` returns a weight as codes, which the graph returns as a tensor.
        """
        if coded := [key for key in self._keys if key not in answer]:
            raise GraphError(
                f"{self._where}: the graph returns a quantized weight, which the file stores as "
                f"{', '.join(coded)}; leave it out of the results."
            )
        return [answer[key].cpu() for key in self._keys]

    def _nested(self, example: Mapping[str, Any]) -> dict[str, Any]:
        return {name: example[name] for name in self._read if name in example}


class _FlatModule(nn.Module):
    """Graph module that takes and returns tensors; parameters keep their paths.

    Args:
        whole: graph module. torch's exporter interprets graph modules and bypasses `forward`.
        nested: example inputs by argument name.
    """

    def __init__(self, whole: fx.GraphModule, nested: Mapping[str, Any]) -> None:
        super().__init__()
        for members in MEMBERS:
            setattr(self, members, getattr(whole, members))
        self._whole = (whole,)  # in a tuple: torch registers no child
        self._nested = {name: rebuilder(value) for name, value in nested.items()}

    def named(self, nested: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns results by name from inputs by argument name."""
        return named_outputs(self._whole[0](**nested))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = iter(tensors)
        nested = {name: fill(given) for name, fill in self._nested.items()}
        with WithoutDivisors():
            results = self.named(nested)
        return _distinct(results.values(), [*tensors, *self.parameters(), *self.buffers()])


def map_tensors(function: Callable[[Tensor], Any], nested: Any) -> Any:
    """Applies a function to the tensors in nested values."""
    if isinstance(nested, SimpleNamespace):
        return SimpleNamespace(**map_tensors(function, vars(nested)))
    parts = tree_children(nested)
    if parts is None:
        return function(nested) if isinstance(nested, Tensor) else nested
    return tree_rebuild(nested, {key: map_tensors(function, x) for key, x in parts.items()})


def rebuilder(nested: Any) -> Callable[[Iterator[Any]], Any]:
    """Returns a function that rebuilds nested values from an iterator of other tensors."""
    if isinstance(nested, SimpleNamespace):
        fill_all = rebuilder(vars(nested))
        return lambda given: SimpleNamespace(**fill_all(given))
    parts = tree_children(nested)
    if parts is None:
        return next if isinstance(nested, Tensor) else lambda _: nested
    fills = {key: rebuilder(x) for key, x in parts.items()}
    return lambda given: tree_rebuild(nested, {key: fill(given) for key, fill in fills.items()})


def named_tensors(nested: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors in nested values by name."""
    return {name: x for name, x in _leaves(nested) if isinstance(x, Tensor)}


def named_outputs(answer: Any) -> dict[str, Tensor]:
    """Returns the tensors of a result by name, see `FlatGraph`; numbers become 0-d tensors.

    Warns once of other values, which are omitted.
    """
    leaves = _output_leaves(answer)
    return {name: tensor for name, x in leaves if (tensor := _tensor(name, x)) is not None}


def output_tensors(answer: Any) -> dict[str, Tensor]:
    """Returns the tensors of a result by name, like `named_outputs`, without numbers."""
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
        f"{WHERE}: the output '{name}' is a {type(value).__name__}, which files cannot store; it "
        "is omitted"
    )
    return None


def _distinct(results: Any, others: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copies results that share values, because a file cannot give a value two names."""
    seen = {id(x) for x in others}
    distinct = []
    for tensor in results:
        distinct.append(tensor.clone() if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return tuple(distinct)


def _free_names(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Returns output names, with `RENAMED` appended to those of inputs or parameters."""
    free: list[str] = []
    for name in names:
        while name in taken or name in free:
            name += RENAMED
        free.append(name)
    return free


def _leave_out_loss(mg: MaseGraph) -> None:
    """Removes the loss from a Hugging Face output: users of the file have no labels."""
    (output,) = (node for node in mg.nodes if node.op == "output")
    answer = output.args[0]
    if not isinstance(answer, fx.Node) or not isinstance(answer.target, type):
        return
    if len(answer.kwargs) > 1:
        answer.kwargs = {k: v for k, v in answer.kwargs.items() if k != "loss"}
        # What writes is read by other names too.
        mg.fx_graph.eliminate_dead_code(lambda node: node.is_impure() or bool(written_by(node)))


def _read_inputs(mg: MaseGraph) -> list[str]:
    """Returns the names of inputs that the graph reads, and removes other placeholders."""
    names = []
    for node in mg.nodes:
        if node.op == "placeholder" and node.users:
            names.append(str(node.target))
        elif node.op == "placeholder":
            mg.fx_graph.erase_node(node)
    return names
