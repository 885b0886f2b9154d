"""Sharding of a graph by a plan: parameters become DTensors, nodes read in planned layouts."""

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

    Its model then takes plain whole inputs and gives plain whole outputs on every process. Nodes
    keep their names; others are put in between: inputs and constants become replicated DTensors,
    what a node reads is redistributed where the plan says so, and what views read is contiguous.
    Parameters and buffers, constants of the graph included, are distributed here, once.

    Args:
        mg: the graph; without a source every process has the same tensors in it.
        plan: the layouts.
        mesh: the processes; of the plan's shape.
        source: where the tensors are read from, each process its part, if the model is on the
            meta device.

    Raises:
        PlanError: the plan does not fit the graph or the mesh, the graph is sharded already,
            learned scales wait for a first batch, or a tensor is on the meta device and there is
            no source.
    """
    if tuple(mesh.shape) != plan.mesh:
        text = f"{format_mesh(plan.mesh)}, the processes are {format_mesh(tuple(mesh.shape))}"
        raise PlanError(f"the plan is for a mesh of {text}.")
    if is_sharded(mg):
        raise PlanError("the graph is sharded already; shard the graph that it was made of.")
    _check_modules(mg.model)
    mg.keep_evaluation("a sharded graph has the nodes of eval(); train the model before")
    plan = plan.checked(mg)
    register_strategies()
    runtime.use_mesh(mesh)
    _cut_given_scales(mg.model, plan, mesh)
    _distribute(mg.model, plan, mesh, source)
    _Rewriter(mg, plan).rewrite()


def is_sharded(mg: MaseGraph) -> bool:
    """Whether `shard_graph` has been applied."""
    return any(node.target is runtime.replicate for node in mg.nodes)


def local_bytes(model: nn.Module) -> int:
    """Bytes of the parameters and buffers that this process keeps; tied ones are counted once."""
    from torch.distributed.tensor import DTensor

    tensors = {id(x): x for _, x in named_tensors(model)}.values()
    return sum((x.to_local() if isinstance(x, DTensor) else x).nbytes for x in tensors)


def _check_modules(model: nn.Module) -> None:
    """Scales that start from a batch would start from chunks of it, as random masks would."""
    for path, module in model.named_modules():
        if isinstance(module, QuantizedOperator) and module.waiting:
            raise PlanError(
                f"'{path}': the learned scales of its {' and '.join(module.waiting)} wait for a "
                "batch; run the model on one in train(), or calibrate_transform_pass, before it is "
                "sharded."
            )
        if isinstance(module, PruneActivation) and module.method == "random":
            raise PlanError(
                f"'{path}' drops activations at random, which has no sharding rule; prune them by "
                "method 'l1-norm', or by a threshold."
            )


# --- tensors -----------------------------------------------------------------------------------


def _distribute(
    model: nn.Module, plan: ShardingPlan, mesh: DeviceMesh, source: TensorSource | None
) -> None:
    from torch.distributed.tensor import DTensor

    made: dict[int, Tensor] = {}
    tensors = named_tensors(model)  # held to the end: an id is of one tensor while it lives
    for path, tensor in tensors:
        if id(tensor) not in made:
            local = _local_part(path, tensor, plan, mesh, source)
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
        raise PlanError(f"'{path}' is on the meta device, and there is no source to read it from.")
    return tensor.detach()[slices].to(device).clone(memory_format=torch.contiguous_format)


def _put(model: nn.Module, path: str, tensor: Tensor) -> None:
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(parent) if parent else model
    members = own_parameters(module) if name in own_parameters(module) else own_buffers(module)
    members[name] = tensor  # type: ignore[assignment]


def _cut_given_scales(model: nn.Module, plan: ShardingPlan, mesh: DeviceMesh) -> None:
    """Formats that bring a scale per channel along get those of the rows that are here."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    for path, module in model.named_modules():
        for operand in ("weight", "bias") if isinstance(module, QuantizedOperator) else ():
            name = f"{path}.{operand}"
            if name not in plan.parameters:
                continue  # it may be stored as codes, which would be decoded here
            whole = getattr(module, operand)
            if isinstance(whole, Tensor):
                places = plan.placement(name)
                rows = local_slices(whole.shape, plan.mesh, coordinate, places)[0]
                module.spec = with_cut_scales(module.spec, operand, whole.shape, rows, name)


def with_cut_scales(
    spec: QuantSpec, operand: str, shape: Sequence[int], rows: slice, name: str
) -> QuantSpec:
    """Formats of an operator of whose channels one process has some rows.

    Raises:
        PlanError: the format has a scale per channel, and the parts are not equal.
    """
    number_format = getattr(spec, operand)
    if not isinstance(number_format, NumberFormat) or not has_cut_scales(number_format, shape):
        return spec
    if shape[0] % (rows.stop - rows.start or shape[0] + 1):
        raise PlanError(
            f"'{name}': its format has a scale for each of {shape[0]} channels, which are not cut "
            "into equal parts; expected a number that the processes divide."
        )
    changed: dict[str, Any] = {operand: with_scales_for(number_format, rows)}
    return dataclasses.replace(spec, **changed)


# --- nodes -------------------------------------------------------------------------------------


class _Rewriter:
    """Puts nodes between those of a graph, so that these compute on DTensors by a plan."""

    def __init__(self, mg: MaseGraph, plan: ShardingPlan) -> None:
        self._mg, self._plan = mg, plan
        self._distributed: set[fx.Node] = set()
        self._names = {node: node.name for node in mg.nodes}
        self._copies: dict[tuple[object, ...], fx.Node] = {}
        # Before others come in between.
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
            self._copies.clear()  # they have what was there before
        first = node.args[0] if node.args else None
        if self._mg.operator(node).layout == "view" and isinstance(first, fx.Node):
            _insert(first, node, runtime.contiguous)

    def _arrange(self, node: fx.Node, source: fx.Node) -> None:
        """Puts between a node and one of its inputs what constants and the plan ask for."""
        placements = self._plan.reads.get(node.name, {}).get(self._names.get(source, ""))
        given = source
        if source not in self._distributed and _gives_tensors(source):
            given = self._shared(source, node, runtime.replicate, self._plan.mesh)
        if placements is not None:
            self._shared(given, node, runtime.redistribute, tuple(placements))

    def _shared(
        self, source: fx.Node, user: fx.Node, function: Callable[..., Any], given: Any
    ) -> fx.Node:
        """What `user` reads instead of a source: a node, or the one that an earlier user reads."""
        key = (source, function, given)
        if key in self._copies:
            user.replace_input_with(source, self._copies[key])
        else:
            self._copies[key] = _insert(source, user, function, given)
        return self._copies[key]

    def _arrange_writes(self, node: fx.Node) -> None:
        """What a node writes has to reach the tensor that others read, and not a copy."""
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
    """By the places of inputs that a node writes into: whose memory it is, where others read it."""
    shared = shared_writes(node)
    return {i: shared[x] for i, x in enumerate(_first_inputs(node)) if x in shared}


def _first_inputs(node: fx.Node) -> list[fx.Node]:
    """The first argument, or those in it where it is a list."""
    first = node.args[0] if node.args else None
    several = first if isinstance(first, list | tuple) else [first]
    return [x for x in several if isinstance(x, fx.Node)]


def _insert(source: fx.Node, user: fx.Node, function: Callable[..., Any], *given: Any) -> fx.Node:
    """Makes `user`, or all users where it is the source, read `function(source, *given)`."""
    graph = source.graph
    with graph.inserting_after(source) if user is source else graph.inserting_before(user):
        new = graph.call_function(function, (source, *given))
    new.meta = {key: copy.copy(value) for key, value in source.meta.items() if key != "mase"}
    if user is source:
        source.replace_all_uses_with(new, delete_user_cb=lambda found: found is not new)
    else:
        user.replace_input_with(source, new)
    return new


def _has_tensors(mg: MaseGraph, node: fx.Node) -> bool:
    """Whether a node reads parameters or buffers of its own."""
    if node.op == "get_attr":
        return True
    module = mg.get_module(node)
    return module is not None and bool(named_tensors(module))


def _gives_tensors(node: fx.Node) -> bool:
    """Whether the result of a node has tensors, by what was noted at capture."""
    found: list[TensorSpec] = []
    map_specs(lambda x: found.append(x) if isinstance(x, TensorSpec) else None, _spec(node))
    return bool(found)


def _spec(node: fx.Node) -> Any:
    return node.meta.get("spec")
