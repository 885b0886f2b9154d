"""Graph sharding by a plan: parameters become DTensors, and nodes read planned layouts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from chop.captured.nodes.writes import shared_writes, written_by
from chop.captured.runtime import set_item
from chop.captured.specs import TensorSpec, map_specs
from chop.distributed import runtime
from chop.distributed.placements import as_torch, local_slices
from chop.distributed.plan import ShardingPlan, format_mesh, named_tensors
from chop.distributed.source import TensorSource
from chop.distributed.strategies import has_cut_scales, register_strategies
from chop.errors import PlanError
from chop.formats import NumberFormat, QuantSpec
from chop.formats.lsq import with_scales_for
from chop.ir.graph import MaseGraph
from chop.nn.quantized import QuantizedOperator
from chop.nn.sparsity.activation import PruneActivation
from chop.private.modules import own_buffers, own_parameters

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard_graph(
    mg: MaseGraph, plan: ShardingPlan, mesh: DeviceMesh, source: TensorSource | None = None
) -> None:
    """Shards a graph in place.

    Its model then takes and returns plain, whole tensors on every process. Existing nodes keep
    their names. New nodes turn inputs and constants into replicated DTensors, redistribute values
    where the plan requires it, and make the inputs of views contiguous. Parameters and buffers,
    including constants of the graph, are distributed once, here.

    Args:
        mg: the graph. Without a source, every process has to have the same tensors.
        plan: the layouts.
        mesh: the processes, in the plan's mesh shape.
        source: source of the tensors, from which each process reads its part, for a model on the
            meta device.

    Raises:
        PlanError: if the plan does not fit the graph or the mesh, the graph is sharded already,
            learned scales are not initialized, or a tensor is on the meta device without a source.
    """
    if tuple(mesh.shape) != plan.mesh:
        text = f"{format_mesh(plan.mesh)}, the processes are {format_mesh(tuple(mesh.shape))}"
        raise PlanError(f"the plan is for a mesh of {text}.")
    if is_sharded(mg):
        raise PlanError("the graph is sharded already; shard the original graph instead.")
    _check_modules(mg.model)
    mg.keep_evaluation("a sharded graph has the nodes of eval(); train the model before")
    plan = plan.checked(mg)
    register_strategies()
    runtime.use_mesh(mesh)
    _cut_given_scales(mg.model, plan, mesh)
    _distribute(mg.model, plan, mesh, source)
    _Rewriter(mg, plan).rewrite()


def is_sharded(mg: MaseGraph) -> bool:
    """Returns whether a graph is sharded."""
    return any(node.target is runtime.replicate for node in mg.nodes)


def local_bytes(model: nn.Module) -> int:
    """Returns the bytes of this process's parameters and buffers; tied ones count once."""
    from torch.distributed.tensor import DTensor

    tensors = {id(x): x for _, x in named_tensors(model)}.values()
    return sum((x.to_local() if isinstance(x, DTensor) else x).nbytes for x in tensors)


def _check_modules(model: nn.Module) -> None:
    """Raises PlanError for scales that initialize from a batch, and for random masks."""
    for path, module in model.named_modules():
        if isinstance(module, QuantizedOperator) and module.waiting:
            raise PlanError(
                f"'{path}': the learned scales of its {' and '.join(module.waiting)} are not "
                "initialized; run a batch in train(), or calibrate_transform_pass, before sharding."
            )
        if isinstance(module, PruneActivation) and module.method == "random":
            raise PlanError(
                f"'{path}' prunes activations at random, which has no sharding rule; use the "
                "method 'l1-norm' or a threshold."
            )


# --- tensors -----------------------------------------------------------------------------------


def _distribute(
    model: nn.Module, plan: ShardingPlan, mesh: DeviceMesh, source: TensorSource | None
) -> None:
    from torch.distributed.tensor import DTensor

    made: dict[int, Tensor] = {}
    tensors = named_tensors(model)  # held, because ids are unique only among living objects
    for path, tensor in tensors:
        if id(tensor) not in made:
            local = _local_part(path, tensor, plan, mesh, source)
            # Each process cuts its own part, so nothing is sent. The shape is given, because parts
            # may have different sizes.
            sharded = DTensor.from_local(
                local,
                mesh,
                as_torch(plan.placement(path)),
                run_check=False,
                shape=tensor.shape,
                stride=torch.empty(tensor.shape, device="meta").stride(),
            )
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = (
                nn.Parameter(sharded, tensor.requires_grad) if is_parameter else sharded
            )
        _put(model, path, made[id(tensor)])


def _local_part(
    path: str, tensor: Tensor, plan: ShardingPlan, mesh: DeviceMesh, source: TensorSource | None
) -> Tensor:
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    slices = local_slices(tensor.shape, plan.mesh, coordinate, plan.placement(path))
    device = torch.device(mesh.device_type)
    if source is not None and tensor.is_meta:
        return source.read(path, slices).to(device)
    if tensor.is_meta:
        raise PlanError(f"'{path}' is on the meta device, and no source of its values was given.")
    # A slice would keep the whole tensor in memory.
    return tensor.detach()[slices].to(device).clone(memory_format=torch.contiguous_format)


def _put(model: nn.Module, path: str, tensor: Tensor) -> None:
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(parent) if parent else model
    members = own_parameters(module) if name in own_parameters(module) else own_buffers(module)
    members[name] = tensor  # type: ignore[assignment]


def _cut_given_scales(model: nn.Module, plan: ShardingPlan, mesh: DeviceMesh) -> None:
    """Cuts given channel scales of formats to the rows of this process."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for path, module in model.named_modules():
        for operand in ("weight", "bias") if isinstance(module, QuantizedOperator) else ():
            name = f"{path}.{operand}"
            if name not in plan.parameters:
                continue  # codes of a packed weight would be decoded here
            whole = getattr(module, operand)
            if isinstance(whole, Tensor):
                places = plan.placement(name)
                rows = local_slices(whole.shape, plan.mesh, coordinate, places)[0]
                module.spec = with_cut_scales(module.spec, operand, whole.shape, rows, name)


def with_cut_scales(
    spec: QuantSpec, operand: str, shape: Sequence[int], rows: slice, name: str
) -> QuantSpec:
    """Returns the formats of an operator for one process's rows of channels.

    Raises:
        PlanError: if the format has a scale per channel and the parts are not equal.
    """
    number_format = getattr(spec, operand)
    if not isinstance(number_format, NumberFormat) or not has_cut_scales(number_format, shape):
        return spec
    # An empty part never divides the rows.
    if shape[0] % (rows.stop - rows.start or shape[0] + 1):
        raise PlanError(
            f"'{name}': its format has a scale for each of {shape[0]} channels, which the number "
            "of processes has to divide."
        )
    changed: dict[str, Any] = {operand: with_scales_for(number_format, rows)}
    return dataclasses.replace(spec, **changed)


# --- nodes -------------------------------------------------------------------------------------


class _Rewriter:
    """Inserts nodes into a graph so that it computes on DTensors by a plan."""

    def __init__(self, mg: MaseGraph, plan: ShardingPlan) -> None:
        self._mg, self._plan = mg, plan
        self._distributed: set[fx.Node] = set()
        self._names = {node: node.name for node in mg.nodes}
        self._copies: dict[tuple[object, ...], fx.Node] = {}
        # Recorded before new nodes change the graph.
        self._writes = {node: _sources_of_writes(node) for node in mg.nodes}

    def rewrite(self) -> None:
        """Rewrites the nodes in order."""
        for node in self._mg.nodes:
            if node.op == "placeholder":
                given = _insert(node, node, runtime.replicate, self._plan.mesh)
                self._names[given] = node.name
                self._distributed.add(given)
            elif node.op == "output":
                for source in node.all_input_nodes:
                    _insert(source, node, runtime.gather)
            elif self._runs_on_dtensors(node):
                self._place(node)
                if _gives_tensors(node):
                    self._distributed.add(node)
        self._mg.fx_graph.lint()

    def _runs_on_dtensors(self, node: fx.Node) -> bool:
        reads = any(source in self._distributed for source in node.all_input_nodes)
        return reads or _has_tensors(self._mg, node)

    def _place(self, node: fx.Node) -> None:
        written = written_by(node)
        for source in node.all_input_nodes:
            self._arrange(node, source)
        self._arrange_writes(node)
        if written:
            self._copies.clear()  # they hold values from before the write
        first = node.args[0] if node.args else None
        if self._mg.operator(node).layout == "view" and isinstance(first, fx.Node):
            _insert(first, node, runtime.contiguous)

    def _arrange(self, node: fx.Node, source: fx.Node) -> None:
        """Inserts the conversions of a node's input that constants and the plan require."""
        placements = self._plan.reads.get(node.name, {}).get(self._names.get(source, ""))
        given = source
        if source not in self._distributed and _gives_tensors(source):
            # A constant of the graph, or the result of nodes that read constants only.
            given = self._shared(source, node, runtime.replicate, self._plan.mesh)
        if placements is not None:
            self._shared(given, node, runtime.redistribute, tuple(placements))

    def _shared(
        self, source: fx.Node, user: fx.Node, function: Callable[..., Any], given: Any
    ) -> fx.Node:
        """Returns a converted input for `user`, reusing the node that an earlier user reads."""
        key = (source, function, given)
        if key in self._copies:
            user.replace_input_with(source, self._copies[key])
        else:
            self._copies[key] = _insert(source, user, function, given)
        return self._copies[key]

    def _arrange_writes(self, node: fx.Node) -> None:
        """Makes in-place writes reach the original tensor instead of a copy."""
        sources = self._writes[node]
        for index, read in enumerate(_first_inputs(node)):
            now, source = read, sources.get(index)
            if source is not None and read is not source:
                now = _insert(read, node, runtime.same_memory, source, node.name)
            if node.target is set_item:
                _insert(now, node, runtime.whole)
                if source is not None:
                    self._distributed.add(_insert(node, node, runtime.write_back, now))
                return


def _sources_of_writes(node: fx.Node) -> dict[int, fx.Node]:
    """Returns the node that owns the memory of each written input, by index, if others read it."""
    shared = shared_writes(node)
    return {i: shared[x] for i, x in enumerate(_first_inputs(node)) if x in shared}


def _first_inputs(node: fx.Node) -> list[fx.Node]:
    """Returns the first argument, or its elements if it is a list."""
    first = node.args[0] if node.args else None
    several = first if isinstance(first, list | tuple) else [first]
    return [x for x in several if isinstance(x, fx.Node)]


def _insert(source: fx.Node, user: fx.Node, function: Callable[..., Any], *given: Any) -> fx.Node:
    """Inserts `function(source, *given)` ahead of `user`, or of all users of the source."""
    graph = source.graph
    with graph.inserting_after(source) if user is source else graph.inserting_before(user):
        new = graph.call_function(function, (source, *given))
    new.meta = {key: copy.copy(value) for key, value in source.meta.items() if key != "mase"}
    if user is source:
        source.replace_all_uses_with(
            new, delete_user_cb=lambda user_of_source: user_of_source is not new
        )
    else:
        user.replace_input_with(source, new)
    return new


def _has_tensors(mg: MaseGraph, node: fx.Node) -> bool:
    """Returns whether a node reads its own parameters or buffers."""
    if node.op == "get_attr":
        return True
    module = mg.get_module(node)
    return module is not None and bool(named_tensors(module))


def _gives_tensors(node: fx.Node) -> bool:
    """Returns whether a node's result has tensors, by its recorded metadata."""
    specs: list[TensorSpec] = []
    map_specs(lambda x: specs.append(x) if isinstance(x, TensorSpec) else None, _spec(node))
    return bool(specs)


def _spec(node: fx.Node) -> Any:
    return node.meta.get("spec")
