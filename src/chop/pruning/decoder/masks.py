"""Decoder without some of its parts, computed by the original: the oracle of pruning."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chop.pruning.decoder.axes import HIDDEN, Axes, Units, layer_number
from chop.pruning.decoder.depth import bypassed, decoder_layers, removed_later
from chop.pruning.decoder.importance import hidden_norms, readers


@contextmanager
def masked(
    model: Any, axes: Axes, units: Units, counts: dict[str, int], layers: Sequence[int]
) -> Iterator[None]:
    """Makes a decoder compute the function of its pruned model.

    Removed layers return their input, and removed units are 0 where the next layer reads them.
    Removed residual channels are 0 where they are written. An RMSNorm over N of H channels is the
    whole one between a factor sqrt(H / N) at its input, which corrects the mean square and its
    epsilon, and the inverse factor at its output.

    Args:
        model: decoder of transformers.
        axes: axes of the units, see `find_axes`.
        units: those that stay, by field and layer number.
        counts: number of units by field.
        layers: numbers of the remaining layers.
    """
    path, modules = decoder_layers(model)
    gone = [number for number in range(len(modules)) if number not in layers]
    with ExitStack() as stack:
        stack.enter_context(bypassed(modules, gone))

        def before(where: str, change: Callable[[Tensor], Tensor]) -> None:
            hook = model.get_submodule(where).register_forward_pre_hook(
                lambda module, args: (change(args[0]), *args[1:])
            )
            stack.enter_context(removed_later(hook))

        def after(where: str, change: Callable[[Tensor], Tensor]) -> None:
            hook = model.get_submodule(where).register_forward_hook(
                lambda module, args, output: change(output)
            )
            stack.enter_context(removed_later(hook))

        for where, field in readers(axes).items():
            if (remaining := units.get((field, layer_number(where, path)))) is not None:
                before(where, partial(_only, remaining, counts[field]))
        if (channels := units.get((HIDDEN, None))) is not None:
            for where in hidden_norms(model, axes):
                factor = (counts[HIDDEN] / len(channels)) ** 0.5
                before(where, partial(operator.mul, factor))
                after(where, partial(operator.mul, 1 / factor))
            for where in _writers(model, axes):
                after(where, partial(_only, channels, counts[HIDDEN]))
        yield


def _only(remaining: Tensor, count: int, x: Tensor) -> Tensor:
    """Returns features (..., count * size) in which those of other units are 0."""
    mask = torch.zeros(count, dtype=x.dtype, device=x.device)
    mask[remaining.to(x.device)] = 1
    others_are_zero: Tensor = x.unflatten(-1, (count, -1)) * mask[:, None]
    return others_are_zero.flatten(-2)


def _writers(model: Any, axes: Axes) -> list[str]:
    """Returns the paths of linear layers and embeddings whose outputs are residual channels."""
    state, embedding = model.state_dict(), model.get_input_embeddings()
    matrices = [name for name in axes if name.endswith(".weight") and state[name].dim() == 2]
    outputs = {
        path: axes[f"{path}.weight"].get(1 if model.get_submodule(path) is embedding else 0)
        for path in (name.removesuffix(".weight") for name in matrices)
    }
    return [path for path, field in outputs.items() if field == HIDDEN]
