"""Detection of state that a graph carries between calls, which exported files cannot store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from chop.base.notices import AdjustedWarning, warn_each_time
from chop.captured.difference import distance
from chop.captured.state.preserve_state import Snapshot, preserve_state
from chop.errors import GraphError, enumerate_names
from chop.private.torch_api import write_count

_MOST_NAMES = 4
"""Largest number of names in a message."""
_SEED = 4_300_781
_ERROR = 1e-5
"""Relative difference of outputs that the order of summation explains."""


def run_without_state(
    module: nn.Module, call: Callable[[], Mapping[str, Tensor]], where: str
) -> Mapping[str, Tensor]:
    """Calls a module, and checks that earlier calls do not affect outputs.

    The module runs twice, and a third time with other values in each tensor that the first call
    wrote. The third run detects a state at a fixed point, which the second one cannot.

    Args:
        module: module that `call` runs; its state is restored.
        call: returns outputs by name, always from the same inputs.
        where: caller, for messages.
    Returns: outputs of the first call.

    Raises:
        GraphError: if outputs depend on earlier calls.
    """
    with preserve_state(module, thorough=True) as run, torch.no_grad():
        versions = _versions(module)
        first = _seeded(call)
        written = _written_names(module, run, versions)
        # Kernels of a GPU add in any order.
        carries = _differ(first, _seeded(call), 0.0 if written else _ERROR)
        if not carries and written:
            carries = _depends_on(module, written, call, first)
    if carries:
        state = (
            f"its tensors {enumerate_names(written, _MOST_NAMES)}" if written else "its attributes"
        )
        raise GraphError(
            f"{where}: the model keeps state between calls in {state}, which the file would lose. "
            "Make the state an argument and a result of forward, or reset it at the start of each "
            "call."
        )
    if written:
        warn_each_time(
            f"{where}: the file does not update {enumerate_names(written, _MOST_NAMES)}, which the "
            "model writes. Outputs do not depend on earlier values.",
            AdjustedWarning,
        )
    return first


def _seeded(call: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns copies of a call's outputs, with the same random draws each time.

    They are copies because an output may be the buffer that the next call writes.
    """
    torch.manual_seed(_SEED)
    return {name: x.detach().clone() for name, x in call().items()}


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _versions(module: nn.Module) -> dict[str, int]:
    """Returns the version counter of each tensor; tensors of inference mode have none."""
    return {n: 0 if x.is_inference() else write_count(x) for n, x in _state(module).items()}


def _written_names(module: nn.Module, run: Snapshot, versions: Mapping[str, int]) -> list[str]:
    """Returns the tensors written since, with changed or unchanged values."""
    changed = {id(x) for x in run.tensors.changed()}
    again = _versions(module)
    return [
        name
        for name, x in _state(module).items()
        if id(x) in changed or again[name] != versions.get(name)
    ]


def _differ(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], tolerance: float = 0.0
) -> bool:
    return any(distance(second[name], x) > tolerance for name, x in first.items())


def _depends_on(
    module: nn.Module,
    written: Sequence[str],
    call: Callable[[], Mapping[str, Tensor]],
    expected: Mapping[str, Tensor],
) -> bool:
    """Returns True if outputs change with the values of tensors that a module writes."""
    state = _state(module)
    for name in written:
        tensor = state[name].data
        tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor + 1)
    try:
        return _differ(expected, _seeded(call))
    except Exception:  # an index out of range, say: the module reads them
        return True
