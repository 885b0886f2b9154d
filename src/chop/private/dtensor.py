"""Fence around DTensor's private API.

Known for torch 2.13; `tests/private/test_dtensor.py` fails first where a name is gone.

`torch.distributed.tensor.experimental.register_sharding` is public, but its cache of decisions
leaves out arguments that are neither tensors nor integers: every number format would get the
decision of the first.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger(__name__)
SIMULATED = -1
"""Stands where a mesh has the id of the thread that made it, by which meshes differ."""
Strategy = list[Any]
"""Placements of an operator's outputs, then of its tensor inputs; None for absent tensors."""
Rule = Callable[..., Sequence[Strategy]]
"""Takes the operator's arguments, `DTensorSpec` for tensors, and gives the layouts that it can
compute in, each for one axis of the mesh."""
Accepts = Callable[[Sequence[Any], Sequence[tuple[int, ...]]], bool]
"""(the non-tensor arguments and specs as given, the shapes of the inputs on one process) -> whether
an operator computes the right thing on such chunks."""


def register_rule(
    operator: OpOverload, rule: Rule, accepts: Accepts, static_argnum: int, outputs: int = 1
) -> None:
    """Registers the layouts that an operator can compute in.

    Args:
        operator: the operator. Tensors among its keyword arguments stay in the layout they have;
            layouts in which they would move are left out.
        rule: the layouts.
        accepts: sorts out those whose chunks are no groups.
        static_argnum: the first argument whose value the layouts depend on.
        outputs: how many tensors it gives.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def get_spec(x: Any) -> Any:
        return x.strategies[0].output_spec if isinstance(x, OpStrategy) else x

    def strategy(schema: Any) -> Any:
        given = [get_spec(x) for x in schema.args_schema]
        named = {name: get_spec(x) for name, x in schema.kwargs_schema.items()}

        kept = [x.placements for x in named.values() if hasattr(x, "placements")]

        def is_valid(inputs: Any, output: Any) -> bool:
            if [x.placements for x in inputs[len(inputs) - len(kept) :]] != kept:
                return False
            # Of all processes: each has to come to the same decision, whatever its own chunk is.
            places = itertools.product(*map(range, schema.get_mesh_from_args().shape))
            return all(
                accepts(given, [_shape_at(place, spec) for spec in inputs]) for place in places
            )

        return expand_to_full_mesh_op_strategy(
            schema.get_mesh_from_args(),
            schema,
            [list(layout) for layout in rule(*given, **named)],
            input_index=outputs,
            is_valid_strategy_cb=is_valid,
        )

    # Decisions are kept by what is named here: without it, that for one mask would be for all.
    keywords = [x.name for x in operator._schema.arguments if x.kwarg_only]
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(
        operator, strategy, RuntimeSchemaInfo(static_argnum, keywords or None)
    )


def correct_torch() -> None:
    """Replaces what torch 2.13 computes wrongly on shards, without an error.

    Convolutions have a handler that multiplies whatever chunks it is given; without it DTensor
    follows its own rule, which is right: samples are cut, and weights gathered. Scans compare the
    dimension that they run along with those that are cut, and do not know it counted from the end.
    What an item is set to had no rule. Advice on collectives that gloo lacks and on meshes that
    could be flattened is for authors of plans, not for who runs them, and is not logged.
    """
    for name in ("_collective_utils", "_redistribute"):
        logging.getLogger(f"torch.distributed.tensor.{name}").setLevel(logging.ERROR)
    from torch.distributed.tensor import DTensor, Replicate, Shard

    aten, whole = torch.ops.aten, Replicate()
    DTensor._op_dispatcher._custom_op_handlers.pop(aten.convolution.default, None)

    def layouts(x: Any, dim: int, **_: Any) -> list[Strategy]:
        rank = len(x.tensor_meta.shape)
        others = [d for d in range(rank) if d != dim % rank]
        return [[whole, whole], *([Shard(d), Shard(d)] for d in others)]

    def layouts_of_fill(x: Any, value: Any) -> list[Strategy]:
        every = (Shard(d) for d in range(len(x.tensor_meta.shape)))
        return [[whole] * 3, *([cut, cut, whole] for cut in every)]

    register_rule(aten.fill_.Tensor, layouts_of_fill, lambda given, shapes: True, 1)
    for scan in (aten.cumsum, aten.cumprod, aten.logcumsumexp):
        register_rule(scan.default, layouts, lambda given, shapes: True, 1)


_without_rule: dict[str, None] = {}
_forgotten: list[Any] = []
_deciding = 0


def is_deciding() -> bool:
    """Whether DTensor is choosing a layout, for which it computes shapes on tensors of its own."""
    return _deciding > 0


def operators_without_rule() -> list[str]:
    """The operators without a rule that this process has met; they compute on whole tensors."""
    return list(_without_rule)


def replicate_operators_without_rule() -> None:
    """Makes DTensor compute operators that it has no rule for on whole tensors, and not fail.

    Those that draw random numbers, or write into their inputs, fail as before.
    """
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    if not isinstance(propagator.propagate_op_sharding, _Propagation):
        for name in ("propagate_op_sharding", "propagate_op_sharding_non_cached"):
            setattr(propagator, name, _Propagation(getattr(propagator, name)))


class _Propagation:
    """DTensor's choice of layouts, which knows what to do without a rule."""

    def __init__(self, known: Any) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known, name)

    def __call__(self, schema: Any) -> Any:
        global _deciding
        _deciding += 1
        try:
            return self._decide(schema)
        finally:
            _deciding -= 1

    def _decide(self, schema: Any) -> Any:
        try:
            return self._known(schema)
        except NotImplementedError as error:
            if "sharding strategy" not in str(error) or not _can_be_replicated(schema.op):
                raise
        _without_rule[str(schema.op)] = None
        log.warning("DTensor has no rule for %s: it computes on whole tensors.", schema.op)
        outputs = len(schema.op._schema.returns)
        register_rule(schema.op, _replicated(outputs), lambda given, shapes: True, 0, outputs)
        return self._known(schema)


def _can_be_replicated(operator: OpOverload) -> bool:
    schema = operator._schema
    types = {str(x.type) for x in (*schema.arguments, *schema.returns)}
    is_random = torch.Tag.nondeterministic_seeded in operator.tags
    returns = {str(x.type) for x in schema.returns}
    lists = any("Tensor" in x and "List[" in x for x in types)
    return returns == {"Tensor"} and not (schema.is_mutable or is_random or lists)


def _replicated(outputs: int) -> Rule:
    from torch.distributed.tensor import Replicate

    def rule(*given: Any, **named: Any) -> list[Strategy]:
        tensors = [x for x in (*given, *named.values()) if hasattr(x, "tensor_meta")]
        return [[Replicate()] * (outputs + len(tensors))]

    return rule


def _shape_at(place: Sequence[int], spec: Any) -> tuple[int, ...]:
    """The shape that a process has of a tensor."""
    shape = list(spec.tensor_meta.shape)
    for placement, count, index in zip(spec.placements, spec.mesh.shape, place, strict=True):
        if placement.is_shard():
            size = shape[placement.dim]
            shape[placement.dim], _ = placement.local_shard_size_and_offset(size, count, index)
    return tuple(shape)


def is_registered(operator: OpOverload) -> bool:
    """Whether DTensor has a rule for an operator."""
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    return operator in propagator.op_strategy_funcs


def is_wait(operator: Any) -> bool:
    """Whether an operator waits for the tensor that a collective gives."""
    return operator is torch.ops._c10d_functional.wait_tensor.default


def cpu_attention() -> OpOverload:
    """The operator that fused attention is on the CPU."""
    operator: OpOverload = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return operator


def as_simulated(mesh: DeviceMesh) -> DeviceMesh:
    """A simulated mesh that equals none of real processes: DTensor keeps decisions by mesh.

    A decision that was kept for another mesh of that shape names groups that are no more.
    """
    mesh._thread_id = SIMULATED
    return mesh


def forget_process_groups() -> None:
    """Makes a forked child forget the groups that its parent has joined, without ending them.

    The end of a group, by `destroy_process_group` or as garbage, waits for threads that a fork does
    not have: groups, and the meshes that hold some, are kept for as long as the child lives.
    """
    from torch.distributed import distributed_c10d
    from torch.distributed.device_mesh import DeviceMesh

    world = distributed_c10d._world
    _forgotten.extend(world.pg_map)
    _forgotten.extend(x for x in gc.get_objects() if type(x) is DeviceMesh)
    gc.freeze()
    distributed_c10d._update_default_pg(None)
    for known in (
        *(world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config),
        *(world.pg_to_tag, world.tags_to_pg, world.pg_coalesce_state),
    ):
        known.clear()
    distributed_c10d._unregister_all_process_groups()
    world.group_count = 0
