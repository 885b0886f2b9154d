"""Data-parallel training: synchronizes initial scales, ranges and formats between processes.

Between optimizer steps, each process rounds with its own statistics. Before a step updates the
parameters, one collective synchronizes the state: a learned scale starts at the mean of the
processes' initial values, and ranges cover all batches. A forward has no collective, so that a
layer may be skipped on some processes; neither has evaluation. Statistics of `SyncBatchNorm`, in
contrast, cover all batches at once.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from chop.base.notices import AdjustedWarning
from chop.errors import ConfigError
from chop.formats import OPERANDS, QuantSpec
from chop.nn.quantized import state
from chop.nn.quantized.numbers import has_started
from chop.nn.quantized.running import RANGE_NAMES, merged_range
from chop.nn.quantized.state import SCALE_NAMES, QuantizedState
from chop.private.data_parallel import (
    Replicas,
    find_replicas,
    ignore_buffers,
    leave_buffers,
    process_groups,
    running_replicas,
)
from chop.private.modules import own_buffers, own_parameters
from chop.private.torch_api import is_in_backward


@dataclass
class _Agreement:
    """Synchronization state of one model. It references no module, to free models.

    Attributes:
        is_due: a forward with gradients has run since the last synchronization.
        has_formats: formats were compared.
        started: scales that are initialized on all processes.
    """

    is_due: bool
    has_formats: bool = False
    started: set[str] = field(default_factory=set)


_agreements: WeakKeyDictionary[nn.Module, _Agreement] = WeakKeyDictionary()
"""Synchronization states by the module that users call."""


def join_replicas(operator: QuantizedState) -> None:
    """Registers an operator that several processes train.

    In evaluation mode it counts as trained while learned scales wait for a gradient to initialize
    them.

    Raises:
        ConfigError: if learned scales are uninitialized and sharded (FSDP2).
    """
    replicas = None if torch.compiler.is_compiling() else running_replicas()
    if replicas is None or not (operator.training or operator.waiting):
        return
    if replicas.is_sharded and operator.waiting:
        raise ConfigError(
            state.uninitialized_message(
                operator, operator.waiting[0], "before fully_shard: shards cannot be initialized."
            )
        )
    agreement = _agreements.get(replicas.wrapper)
    if agreement is None:
        # Without gradients, as in an evaluation in train(), other processes may skip this call.
        _agreements[replicas.wrapper] = _Agreement(is_due=torch.is_grad_enabled())
        for _, each in _operators_by_path(replicas.model):
            state.add_ranges(each)
        leave_buffers(replicas.wrapper, (name for name, _ in _ranges(replicas.model)))
        replicas.wrapper.register_forward_pre_hook(_on_forward)


def keep_ranges_local(model: nn.Module) -> None:
    """Excludes the ranges of a quantized model from DDP's synchronization, even before training."""
    ignore_buffers(model, (name for name, _ in _ranges(model)))


def _on_forward(wrapper: nn.Module, args: Any) -> None:
    agreement = _agreements.get(wrapper)
    if agreement is None or not torch.is_grad_enabled():
        return
    # Processes may run a different number of forwards in a step. In the first of them all have
    # the same state; which scales they will start may differ.
    model = find_replicas(wrapper).model
    scales = dict(_scales(model))
    agreement.started = {
        name for name in agreement.started & scales.keys() if has_started(scales[name])
    }
    has_ranges = next(_ranges(model), None) is not None
    agreement.is_due |= has_ranges or len(agreement.started) < len(scales)


def _on_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    due = [(wrapper, each) for wrapper, each in _agreements.items() if each.is_due]
    if not due or is_in_backward():
        return
    updated = {id(x) for group in optimizer.param_groups for x in group["params"]}
    for wrapper, agreement in due:
        replicas = find_replicas(wrapper)
        if any(id(x) in updated for x in replicas.model.parameters()):
            _agree(replicas, agreement)


register_optimizer_step_pre_hook(_on_step)


def _agree(replicas: Replicas, agreement: _Agreement) -> None:
    agreement.is_due = False
    model = replicas.model
    for group in process_groups(replicas):
        if not agreement.has_formats:
            _agree_on_formats(model, group)
        synchronize(model, group, agreement.started)
    agreement.has_formats = True
    agreement.started = {name for name, x in _scales(model) if has_started(x)}


@torch.no_grad()
def synchronize(model: nn.Module, group: Any = None, started: set[str] | None = None) -> None:
    """Synchronizes initial learned scales and ranges between all processes of a group.

    Training under DDP and FSDP2 calls it before each step of a torch optimizer. Call it yourself
    before each step of a loop that updates parameters or averages gradients in another way.

    Args:
        model: the same one on each process.
        group: the process group. Default: all processes.
        started: names of scales that are already synchronized. Default: none.
    """
    scales = [entry for entry in _scales(model) if entry[0] not in (started or ())]
    ranges = list(_ranges(model))
    merges = [(x, _mean_start) for _, x in scales] + [(x, merged_range) for _, x in ranges]
    if not merges:
        return
    device = merges[0][0].device
    own = torch.cat([x.detach().flatten().to(device, torch.float32) for x, _ in merges])
    gathered, rank = _gather(own, group), dist.get_rank(group)
    first = 0
    for x, merge in merges:
        last = first + x.numel()
        parts = [process[first:last] for process in gathered]
        if (numbers := merge(parts)) != parts[rank]:  # versions stay where nothing changes
            x.copy_(torch.tensor(numbers, dtype=torch.float32).view(x.shape))
        first = last
    for _, operator in _operators_by_path(model):
        state.update_known_state(operator)


def _gather(own: Tensor, group: Any) -> list[list[float]]:
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return [part.tolist() for part in parts]


def _mean_start(parts: Sequence[Sequence[float]]) -> list[float]:
    """Returns the mean over the processes with initialized scales."""
    known = [part for part in parts if any(part)]
    if not known or all(part == known[0] for part in known):
        return list(known[0] if known else parts[0])
    return [sum(column) / len(known) for column in zip(*known, strict=True)]


def _agree_on_formats(model: nn.Module, group: Any) -> None:
    """Broadcasts the formats of the first process, as DDP does with parameters."""
    own = {path: operator.spec for path, operator in _operators_by_path(model)}
    text = [
        (path, spec.gradient, *(fmt.cache_key or fmt.label for _, fmt in spec.items()))
        for path, spec in own.items()
    ]
    digest = zlib.crc32(repr(text).encode()) % 2**24
    device = next((x.device for x in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    digests = _gather(torch.tensor([digest], dtype=torch.float32, device=device), group)
    if all(each == digests[0] for each in digests):
        return
    specs: list[Any] = [own]
    dist.broadcast_object_list(specs, dist.get_global_rank(group, 0), group=group)
    differing = [path for path, spec in specs[0].items() if own.get(path) != spec]
    for path, operator in _operators_by_path(model):
        if path in differing:
            _take_spec(operator, specs[0][path])
    warnings.warn(
        "the number formats differ between the processes, probably because each was calibrated on "
        "its own batches; all use those of the first process. Calibrate all on the same batches, "
        "or once before DistributedDataParallel, and load the result in each.",
        AdjustedWarning,
        stacklevel=2,
    )


@torch.no_grad()
def _take_spec(operator: QuantizedState, spec: QuantSpec) -> None:
    """Sets other formats while keeping the scale parameters that DDP and optimizers reference."""
    held = own_parameters(operator)
    before = {name: held.get(name) for name in SCALE_NAMES.values()}
    operator.take_spec(spec)
    held = own_parameters(operator)
    for name, old in before.items():
        new = held.get(name)
        if old is None or new is None or old is new:
            continue
        if type(old) is type(new) and old.shape == new.shape:
            old.copy_(new)
            held[name] = old
    state.update_known_state(operator)


def _operators_by_path(model: nn.Module) -> Iterator[tuple[str, QuantizedState]]:
    """Returns the operators with their own formats; an attention delegates to its steps."""
    for path, module in model.named_modules():
        if isinstance(vars(module).get("spec"), QuantSpec):
            yield path, module


def _scales(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Returns learned scales by path, without sharded ones, see `join_replicas`."""
    for path, operator in _operators_by_path(model):
        for operand in operator.spec.lsq_operands:
            x = own_parameters(operator).get(SCALE_NAMES[operand])
            if type(x) is nn.Parameter:
                yield f"{path}.{SCALE_NAMES[operand]}", x


def _ranges(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Returns range buffers by path."""
    for path, operator in _operators_by_path(model):
        for operand in OPERANDS:
            x = own_buffers(operator).get(RANGE_NAMES[operand])
            if x is not None:
                yield f"{path}.{RANGE_NAMES[operand]}".lstrip("."), x
