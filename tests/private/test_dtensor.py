"""What chop uses of DTensor's private API is there, and means what it meant."""

from __future__ import annotations

import inspect

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from chop.distributed.planning.own_process import in_own_process
from chop.distributed.planning.simulated import simulated_mesh
from chop.distributed.strategies import RULES, register_strategies
from chop.private.dtensor import as_simulated, is_registered


def test_the_names_and_arguments_are_there():
    propagator = DTensor._op_dispatcher.sharding_propagator
    assert list(inspect.signature(propagator.register_op_strategy).parameters)[:3] == [
        "op_overload",
        "strategy_func",
        "schema_info",
    ]
    assert isinstance(propagator.op_strategy_funcs, dict)
    assert "static_argnum" in inspect.signature(RuntimeSchemaInfo).parameters
    assert "strategies" in inspect.signature(OpStrategy).parameters
    expected = {"mesh", "op_schema", "input_index", "is_valid_strategy_cb"}
    assert expected <= inspect.signature(expand_to_full_mesh_op_strategy).parameters.keys()


def test_registered_operators_are_known_to_dtensor():
    assert not is_registered(torch.ops.aten.special_zeta.default)
    assert is_registered(torch.ops.aten.mm.default)
    register_strategies()
    for name in RULES:
        assert is_registered(getattr(torch.ops.chop, name).default), name
    assert is_registered(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)


def test_the_handler_of_convolutions_is_taken_out():
    register_strategies()
    handlers = DTensor._op_dispatcher._custom_op_handlers
    assert torch.ops.aten.is_same_size.default in handlers
    assert torch.ops.aten.convolution.default not in handlers
    assert is_registered(torch.ops.aten.cumsum.default)


def test_a_simulated_mesh_equals_none_of_real_processes():
    with simulated_mesh((1, 2)) as simulated:
        real = init_device_mesh("cpu", (1, 2))
        assert real != simulated and hash(real) != hash(simulated)
        twin = as_simulated(init_device_mesh("cpu", (1, 2)))
        assert twin == simulated and hash(twin) == hash(simulated)


def test_groups_are_forgotten_and_others_are_made():
    def join_again(report):
        joined = dist.is_initialized()
        with simulated_mesh((2, 2)) as mesh:
            return joined, dist.get_world_size(), mesh.shape

    with simulated_mesh((3,)):
        assert in_own_process(join_again) == (False, 4, (2, 2))
        assert dist.get_world_size() == 3
