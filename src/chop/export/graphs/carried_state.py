"""State that a graph carries between calls, which exported files cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from chop.base.notices import AdjustedWarning, warn_each_time
from chop.captured.difference import distance
from chop.captured.state.preserve_state import Snapshot, preserve_state
from chop.errors import GraphError, enumerate_names
from chop.private.torch_api import write_count

_SHOWN = 4
"""Names that a message lists."""
_SEED = 4_300_781
_ERROR = 1e-5
"""Relative difference of outputs that the order of sums explains."""


def run_without_state(
    module: nn.Module, call: Callable[[], Mapping[str, Tensor]], where: str
) -> Mapping[str, Tensor]:
    """Calls a module, and checks that the call before changes no output.

    The module runs twice in a row, and once more with other numbers in each tensor that the first
    call wrote: a state at a fixed point would not show in the second call.

    Args:
        module: runs in `call`; it is left as it was.
        call: gives the outputs by name, from the same inputs each time.
        where: who asks, for messages.
    Returns: the outputs of the first call.

    Raises:
        GraphError: outputs depend on the calls before.
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
        state = f"its tensors {enumerate_names(written, _SHOWN)}" if written else "its attributes"
        raise GraphError(
            f"{where}: expected a model whose outputs depend on its inputs alone, got one that "
            f"keeps state between calls in {state}, which the file would lose; make the state an "
            "argument and a result of forward, or reset it at the start of each call."
        )
    if written:
        warn_each_time(
            f"{where}: the file does not update {enumerate_names(written, _SHOWN)}, which the "
            "model writes and whose earlier values no output depends on.",
            AdjustedWarning,
        )
    return first


def _seeded(call: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Outputs of a call whose random draws are the same each time.

    They are copies: an output may be the very buffer that the next call writes into.
    """
    torch.manual_seed(_SEED)
    return {name: x.detach().clone() for name, x in call().items()}


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _versions(module: nn.Module) -> dict[str, int]:
    """Counts the writes into each tensor; those of inference mode count nothing."""
    return {n: 0 if x.is_inference() else write_count(x) for n, x in _state(module).items()}


def _written_names(module: nn.Module, run: Snapshot, versions: Mapping[str, int]) -> list[str]:
    """Tensors that were written since, with other numbers or with the same."""
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
    """Returns whether outputs change with the numbers in the tensors that a module writes."""
    state = _state(module)
    for name in written:
        tensor = state[name].data
        tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor + 1)
    try:
        return _differ(expected, _seeded(call))
    except Exception:  # an index out of range, say: the module reads them
        return True
