"""Unsupported tensors: fake, sharded and nested ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from chop.captured.leaves import tensors_in
from chop.errors import CaptureError
from chop.private.torch_api import detect_fake_mode, is_fake


def check_kinds(model: nn.Module, example: Mapping[str, Any]) -> None:
    """Checks that a recording supports the tensors of a model and its example inputs.

    Args:
        model: the model.
        example: its example inputs by name.

    Raises:
        CaptureError: a tensor is fake (`FakeTensorMode`), distributed (DTensor, `fully_shard`) or
            nested.
    """
    members = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = [tensor for value in example.values() for tensor in tensors_in(value)]
    if detect_fake_mode([]) is not None or any(map(is_fake, [*members.values(), *given])):
        raise CaptureError(
            f"expected {type(model).__name__} and its inputs with values, got fake tensors or a "
            "capture inside of FakeTensorMode; capture outside of it (to capture without values, "
            'create the model under torch.device("meta"))'
        )
    _check_whole(model, members)
    for name, value in example.items():
        if any(tensor.is_nested for tensor in tensors_in(value)):
            raise CaptureError(
                f"expected dense tensors in {name}, got a nested one; pad it and pass a mask "
                "(torch.nested.to_padded_tensor)"
            )


def _check_whole(model: nn.Module, members: Mapping[str, Tensor]) -> None:
    for path, module in model.named_modules():
        if _is_a(module, "torch.distributed.fsdp", "FSDPModule", "FullyShardedDataParallel"):
            raise CaptureError(
                f"{path or type(model).__name__} is sharded by FSDP already; capture the model "
                "first, then shard the captured model (fully_shard(mg.model))"
            )
    for name, tensor in members.items():
        if _is_a(tensor, "torch.distributed.tensor", "DTensor"):
            raise CaptureError(
                f"expected whole tensors, got {name} as a DTensor; capture the model before it is "
                "distributed"
            )


def _is_a(value: Any, home: str, *names: str) -> bool:
    """Returns whether a value is of a class in a module of torch, if that is imported."""
    module = sys.modules.get(home)
    return any(isinstance(value, getattr(module, name)) for name in names if module is not None)


def check_dense(result: Any) -> None:
    """Checks that the result of an operator has no nested tensor.

    Raises:
        CaptureError: it has one, whose sizes are no numbers.
    """
    for tensor in result if isinstance(result, tuple | list) else (result,):
        if isinstance(tensor, Tensor) and tensor.is_nested:
            raise CaptureError("the model creates a nested tensor, which a graph cannot represent")
