"""Private API of DTensor.

Tested with torch 2.13; `tests/private/test_dtensor.py` fails first if a name is missing.

`torch.distributed.tensor.experimental.register_sharding` is public, but its cache ignores arguments
that are neither tensors nor integers, so all number formats would share the decision for the first
one.
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
"""Replacement of the thread id in a simulated mesh, which distinguishes meshes."""
Strategy = list[Any]
"""Placements of an operator's outputs, followed by its tensor inputs; None for absent tensors."""
Rule = Callable[..., Sequence[Strategy]]
"""Function from an operator's arguments (`DTensorSpec` for tensors) to its supported layouts.

Each layout is for one axis of the mesh.
"""
Accepts = Callable[[Sequence[Any], Sequence[tuple[int, ...]]], bool]
"""(non-tensor arguments and specs, local shapes of the inputs) -> whether chunks are valid."""


def register_rule(
    operator: OpOverload, rule: Rule, accepts: Accepts, static_argnum: int, outputs: int = 1
) -> None:
    """Registers the supported layouts of an operator.

    Args:
        operator: operator. Tensors among its keyword arguments keep their layout, and layouts that
            would move them are omitted.
        rule: returns the supported layouts.
        accepts: rejects layouts whose chunks split groups.
        static_argnum: first argument on whose value the layouts depend.
        outputs: number of output tensors.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def get_spec(x: Any) -> Any:
        return x.strategies[0].output_spec if isinstance(x, OpStrategy) else x

    def strategy(schema: Any) -> Any:
        given = [get_spec(x) for x in schema.args_schema]
        named = {name: get_spec(x) for name, x in schema.kwargs_schema.items()}

        placements = [x.placements for x in named.values() if hasattr(x, "placements")]

        def is_valid(inputs: Any, output: Any) -> bool:
            if [x.placements for x in inputs[len(inputs) - len(placements) :]] != placements:
                return False
            # Checked for all processes, so that each makes the same decision for any chunk.
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

    # Cache key of decisions: without it, the decision for one mask would apply to all.
    keywords = [x.name for x in operator._schema.arguments if x.kwarg_only]
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(
        operator, strategy, RuntimeSchemaInfo(static_argnum, keywords or None)
    )


def correct_torch() -> None:
    """Fixes operations that torch 2.13 computes incorrectly on shards without an error.

    The handler of convolutions multiplies the given chunks as they are. Without it, DTensor uses
    its correct rule, which shards samples and gathers weights. Scans compare their dimension with
    sharded dimensions, but do not handle negative ones. Item assignment had no rule. Advice on
    collectives missing in gloo and on meshes that could be flattened is for authors of plans, and
    is not logged.
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
    """Returns whether DTensor is choosing a layout, for which it infers shapes."""
    return _deciding > 0


def operators_without_rule() -> list[str]:
    """Returns operators without a rule used in this process, which compute on whole tensors."""
    return list(_without_rule)


def replicate_operators_without_rule() -> None:
    """Makes operators without a rule compute on whole tensors instead of failing.

    Operators that draw random numbers or modify their inputs still fail.
    """
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    if not isinstance(propagator.propagate_op_sharding, _Propagation):
        for name in ("propagate_op_sharding", "propagate_op_sharding_non_cached"):
            setattr(propagator, name, _Propagation(getattr(propagator, name)))


class _Propagation:
    """Sharding propagation of DTensor with a fallback for operators without a rule."""

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
    """Returns the local shape of a tensor on a process."""
    shape = list(spec.tensor_meta.shape)
    for placement, count, index in zip(spec.placements, spec.mesh.shape, place, strict=True):
        if placement.is_shard():
            size = shape[placement.dim]
            shape[placement.dim], _ = placement.local_shard_size_and_offset(size, count, index)
    return tuple(shape)


def is_registered(operator: OpOverload) -> bool:
    """Returns whether DTensor has a rule for an operator."""
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    return operator in propagator.op_strategy_funcs


def is_wait(operator: Any) -> bool:
    """Returns whether an operator waits for the result of a collective."""
    return operator is torch.ops._c10d_functional.wait_tensor.default


def cpu_attention() -> OpOverload:
    """Returns the operator of fused attention on the CPU."""
    operator: OpOverload = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return operator


def as_simulated(mesh: DeviceMesh) -> DeviceMesh:
    """Makes a simulated mesh differ from all real ones, because DTensor caches decisions by mesh.

    A decision cached for another mesh of the same shape refers to process groups that no longer
    exist.
    """
    mesh._thread_id = SIMULATED
    return mesh


def forget_process_groups() -> None:
    """Makes a forked child drop its parent's process groups without destroying them.

    Destroying a group, explicitly or by garbage collection, waits for threads that a fork does not
    have. Groups and the meshes that refer to them therefore stay alive as long as the child.
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
