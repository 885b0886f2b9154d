"""Importance of MLP channels, attention groups and residual channels, by their activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.pruning.decoder.axes import HIDDEN, Axes
from chop.pruning.decoder.depth import WHERE, real_tokens, removed_later

Importance = dict[tuple[str, str], Tensor]
"""(Field, module path) -> mean magnitude of each unit over all tokens, float64."""


def readers(axes: Axes) -> dict[str, str]:
    """Returns the modules that read units of a layer as their input features: path -> field."""
    return {
        name.removesuffix(".weight"): fields[1]
        for name, fields in axes.items()
        if fields.get(1, HIDDEN) != HIDDEN
    }


def hidden_norms(model: Any, axes: Axes) -> list[str]:
    """Returns the paths of the norms over the residual channels.

    Raises:
        ConfigError: a norm subtracts the mean of the channels.
    """
    state = model.state_dict()
    vectors = {
        name.rpartition(".")[::2]
        for name, fields in axes.items()
        if HIDDEN in fields.values() and state[name].dim() == 1
    }
    paths = [path for path, kind in vectors if kind == "weight"]
    centered = next((path for path in paths if (path, "bias") in vectors), None)
    if centered is not None:
        raise ConfigError(
            f"{WHERE}: {HIDDEN} of {type(model).__name__} cannot be reduced, because '{centered}' "
            f"is no RMSNorm: it subtracts the mean of all channels; leave {HIDDEN} out."
        )
    return sorted(paths)


@torch.no_grad()
def unit_importance(
    model: Any, batches: Sequence[Mapping[str, Any]], axes: Axes, counts: Mapping[str, int]
) -> Importance:
    """Computes the mean magnitude of units over all tokens of all batches.

    MLP channels and attention groups are measured where the next layer reads them; a group by the
    norm over its query heads. Residual channels are measured at the output of every norm over them.
    Padding, which `attention_mask` marks, does not count.

    Source: Muralidharan et al. 2024, arXiv:2407.14679, section 2.2.

    Args:
        model: decoder of transformers. It runs in eval mode; its mode is restored.
        batches: inputs of the model by name, one mapping per batch.
        axes: axes of the units, see `find_axes`.
        counts: number of units by field.

    Raises:
        ConfigError: there are no tokens, or an activation is not finite.
    """
    totals: Importance = {}
    masks: list[Tensor] = []

    def add(key: tuple[str, str], x: Tensor) -> None:
        magnitudes = x[masks[-1]].double().unflatten(-1, (counts[key[0]], -1)).norm(dim=-1).sum(0)
        totals[key] = totals.get(key, 0) + magnitudes

    def on_input(key: tuple[str, str], module: Any, args: Any) -> None:
        add(key, args[0])

    def on_output(key: tuple[str, str], module: Any, args: Any, output: Any) -> None:
        add(key, output)

    with preserve_state(model), ExitStack() as stack:
        for path, field in readers(axes).items():
            module, hook = model.get_submodule(path), partial(on_input, (field, path))
            stack.enter_context(removed_later(module.register_forward_pre_hook(hook)))
        for path in hidden_norms(model, axes):
            module, after = model.get_submodule(path), partial(on_output, (HIDDEN, path))
            stack.enter_context(removed_later(module.register_forward_hook(after)))
        model.eval()
        for batch in batches:
            masks.append(real_tokens(batch))
            model(**batch)
    count = sum(int(mask.sum()) for mask in masks)
    for (_, path), total in totals.items():
        if not count or not bool(total.isfinite().all()):
            problem = f"activations at '{path}' are not finite" if count else "there are no tokens"
            raise ConfigError(f"{WHERE}.batches: units cannot be ranked, because {problem}.")
    return {key: total.cpu() / count for key, total in totals.items()}


def highest(importance: Tensor, count: int) -> Tensor:
    """Returns the numbers of the most important units in ascending order; ties keep the first."""
    return importance.argsort(descending=True, stable=True)[:count].sort().values
