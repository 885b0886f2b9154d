"""Depth pruning: block influence of decoder layers, and the model without some of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError

WHERE = "prune_decoder"
DEPTH = "num_hidden_layers"


def decoder_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Returns the path and the list of a decoder's layers.

    Raises:
        ConfigError: the model has no such list, or several.
    """
    depth = getattr(model.config, DEPTH)
    lists = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == depth
        and len({type(layer) for layer in module}) == 1
    ]
    if len(lists) != 1:
        raise ConfigError(
            f"{WHERE}: expected one list of {depth} equal layers in {type(model).__name__}, found "
            f"{len(lists)}; only decoders built like Llama can be pruned."
        )
    return lists[0]


@torch.no_grad()
def block_influence(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> list[float]:
    """Computes the block influence of each layer: 1 - cosine of its input and output.

    The cosine is that of the hidden states of a token, averaged over all tokens of all batches.
    Padding, which `attention_mask` marks, does not count.

    Source: Men et al. 2024, arXiv:2403.03853, equation 1.

    Args:
        model: decoder of transformers. It runs in eval mode; its mode is restored.
        batches: inputs of the model by name, one mapping per batch.
    Returns: one number per layer, in order; 0 is a layer that changes no direction.

    Raises:
        ConfigError: there is no batch, or hidden states are not finite.
    """
    _, layers = decoder_layers(model)
    totals, count = torch.zeros(len(layers), dtype=torch.float64), 0
    masks: list[Tensor] = []

    def measure(number: int, before: Tensor, after: Tensor) -> None:
        cosines = F.cosine_similarity(before.double(), after.double(), dim=-1)
        totals[number] += (1 - cosines)[masks[-1]].sum().cpu()

    with preserve_state(model), _observed(layers, measure):
        model.eval()
        for batch in batches:
            masks.append(real_tokens(batch))
            count += int(masks[-1].sum())
            model(**batch)
    if not count or not bool(totals.isfinite().all()):
        problem = "its hidden states are not finite" if count else "there are no tokens"
        raise ConfigError(f"{WHERE}.batches: the layers cannot be ranked, because {problem}.")
    return [float(total) / count for total in totals]


def real_tokens(batch: Mapping[str, Any]) -> Tensor:
    """Returns a boolean per token, false for padding."""
    mask: Tensor | None = batch.get("attention_mask")
    ids: Tensor = batch["input_ids"]
    return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


@contextmanager
def _observed(layers: nn.ModuleList, measure: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for number, layer in enumerate(layers):

            def hook(
                module: Any, args: Any, kwargs: Any, output: Any, number: int = number
            ) -> None:
                measure(number, _hidden(args, kwargs), _first(output))

            stack.enter_context(removed_later(layer.register_forward_hook(hook, with_kwargs=True)))
        yield


@contextmanager
def bypassed(layers: nn.ModuleList, numbers: Sequence[int]) -> Iterator[None]:
    """Makes layers return their input, which is the oracle of their removal."""
    with ExitStack() as stack:
        for number in numbers:

            def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
                x = _hidden(args, kwargs)
                return (x, *output[1:]) if isinstance(output, tuple) else x

            handle = layers[number].register_forward_hook(hook, with_kwargs=True)
            stack.enter_context(removed_later(handle))
        yield


@contextmanager
def removed_later(handle: Any) -> Iterator[None]:
    """Removes a hook at the end."""
    try:
        yield
    finally:
        handle.remove()


def _hidden(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


def _first(output: Any) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def cut_lists(config: Any, numbers: Sequence[int]) -> None:
    """Keeps the entries of some layers in a configuration's lists by layer, and sets the depth.

    Lists such as `layer_types` and `no_rope_layers` have one entry per layer.
    """
    depth = getattr(config, DEPTH)
    for name, value in list(vars(config).items()):
        if "layer" in name and isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, type(value)(value[number] for number in numbers))
    setattr(config, DEPTH, len(numbers))


def renumbered(state: Mapping[str, Tensor], path: str, numbers: Sequence[int]) -> dict[str, Tensor]:
    """Returns a state dict with only some of the layers, numbered from 0.

    Args:
        state: state dict of the model.
        path: path of the list of layers.
        numbers: layers that stay, in order.
    """
    place = {number: index for index, number in enumerate(numbers)}
    pattern = re.compile(rf"{re.escape(path)}\.(\d+)\.(.*)")
    made: dict[str, Tensor] = {}
    for name, value in state.items():
        match = pattern.fullmatch(name)
        if match is None:
            made[name] = value
        elif int(match[1]) in place:
            made[f"{path}.{place[int(match[1])]}.{match[2]}"] = value
    return made
