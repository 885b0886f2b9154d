"""Agreement between processes on inputs, a reference, and the largest difference."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from chop.distributed.checking.difference import Difference, list_tensors
from chop.distributed.plan import ShardingPlan, named_tensors
from chop.errors import DistributedError

T = TypeVar("T")
SAMPLED = 1024
"""Number of sampled elements to compare a tensor between processes."""
PATIENCE = timedelta(days=7)
"""Timeout for work of the first process; other processes notice its end at once."""


def this_device() -> torch.device:
    """Returns the device of this process, by its backend."""
    import torch.distributed as dist

    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def agreed(own: Difference) -> Difference:
    """Returns the largest difference over all processes, on every process."""
    import torch.distributed as dist

    # One reduction for the numbers. Texts are only gathered if there is a fault.
    numbers = [own.relative, float(own.flips), float(bool(own.wrong))]
    worst = torch.tensor(numbers, dtype=torch.float64, device=this_device())
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    relative, flips, is_wrong = worst.tolist()
    gathered = enumerate(_gather_all(own.wrong) if is_wrong else [])
    wrong = next((f"{text}, on process {rank}" for rank, text in gathered if text), "")
    return Difference(relative, int(flips), wrong)


def check_same_inputs(inputs: Mapping[str, Any]) -> None:
    """Checks that all processes have the same input tensors.

    Raises:
        DistributedError: on all processes, if inputs differ.
    """
    gathered = _gather_all({name: [*map(_digest, list_tensors(x))] for name, x in inputs.items()})
    for rank, other in enumerate(gathered):
        if other != gathered[0]:
            name = next(
                name for name in gathered[0] | other if other.get(name) != gathered[0].get(name)
            )
            raise DistributedError(
                f"expected the same inputs on all processes, but '{name}' differs between "
                f"processes 0 and {rank}: use the same seed."
            )


def check_same_model(model: nn.Module, plan: ShardingPlan) -> None:
    """Checks that all processes have the same plan, and samples of the same parameters and buffers.

    Args:
        model: model of this process, before sharding; tensors on the meta device are skipped.
        plan: plan of this process.

    Raises:
        DistributedError: on all processes, if one differs.
    """
    from torch.distributed.tensor import DTensor

    given = dict(named_tensors(model)).items()
    tensors = {path: x for path, x in given if not (x.is_meta or isinstance(x, DTensor))}
    own = {path: (*_digest(_sample(x)), tuple(x.shape)) for path, x in tensors.items()}
    gathered = _gather_all((plan.to_json(), own))
    for rank, (other, digests) in enumerate(gathered):
        if other != gathered[0][0]:
            raise DistributedError(
                f"expected the same plan on all processes, but the plans of 0 and {rank} differ."
            )
        if digests != gathered[0][1]:
            known = gathered[0][1]
            name = next(x for x in known | digests if known.get(x) != digests.get(x))
            raise DistributedError(
                f"expected the same model on all processes, but '{name}' differs between processes "
                f"0 and {rank}: load the same weights, or call torch.manual_seed first."
            )


def broadcast_from_first(x: Any) -> Any:
    """Broadcasts a tensor from the first process; other values are returned unchanged."""
    import torch.distributed as dist

    if not isinstance(x, Tensor) or not x.numel():
        return x
    # As bytes, because backends do not support every dtype.
    sent = x.detach().contiguous().reshape(-1).view(torch.uint8).clone()
    dist.broadcast(sent, 0)
    return sent.view(x.dtype).reshape(x.shape)


def run_on_first_process(find: Callable[[], T]) -> T:
    """Runs a function on the first process and returns its result on all processes.

    Args:
        find: returns a picklable value; it may take as long as it needs.
    Raises:
        Exception: any error of `find`, on all processes.
    """
    import torch.distributed as dist

    if dist.get_world_size() == 1:
        return find()
    # A separate group has a timeout as long as the work of the first process.
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    gathered: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            gathered[0] = find()
        except Exception as error:
            gathered[1] = error
    dist.broadcast_object_list(gathered, 0, group=group)
    dist.destroy_process_group(group)
    if gathered[1] is not None:
        raise gathered[1]
    return cast(T, gathered[0])


def _digest(x: Tensor) -> tuple[tuple[int, ...], str, int]:
    content = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return tuple(x.shape), str(x.dtype), zlib.crc32(content.data)


def _sample(x: Tensor) -> Tensor:
    """Samples elements evenly from a tensor."""
    flat = x.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)]


def _gather_all(value: Any) -> list[Any]:
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered
