"""Attention masks among a model's inputs, and the padding tokens that they hide."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.reach import reached

MASK = "attention_mask"
"""Suffix of Hugging Face inputs that are 0 for padding tokens."""
KEY_PADDING = "key_padding_mask"
"""Suffix of torch inputs that are True, or -inf, for padding tokens."""
MASK_ENDINGS = (MASK, KEY_PADDING)
TARGET_SIDE = ("decoder_", "tgt")
"""Name prefixes of a decoder's inputs in models whose encoder has its own inputs."""
MASKS_AHEAD = "masks_ahead"
"""Argument of a graph's calls with the masks that later operators apply to the result.

A tuple of (kind, mask, steps). The kind "added" has numbers, "hidden" a boolean that is True for
hidden elements, and "shown" one that is False for them. `steps` are the (method, arguments) that
rearrange the result before it meets the mask. The kind "every" has several such tuples in place of
a mask, and hides elements that all of them hide.
"""


def visible_tokens(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns boolean (batch, tokens) for each mask by name, False for hidden tokens.

    Masks that hide every token are omitted, and so are other values with the name of a mask.

    Args:
        batch: inputs by name.
    """
    visible = {name: _visible(name, x) for name, x in batch.items()}
    return {name: mask for name, mask in visible.items() if mask is not None}


def _visible(name: str, mask: Any) -> Tensor | None:
    if not isinstance(mask, Tensor) or not mask.numel():
        return None
    if mask.dim() in (3, 4) and name.endswith(MASK):
        return _visible_keys(mask)
    if mask.dim() != 2:
        return None
    if name.endswith(MASK):
        visible, hidden = mask == 1, mask == 0
    elif name.endswith(KEY_PADDING):
        hidden = mask if mask.dtype == torch.bool else mask == float("-inf")
        visible = mask == 0
    else:
        return None
    return visible if bool((visible | hidden).all()) and bool(visible.any()) else None


def _visible_keys(mask: Tensor) -> Tensor | None:
    """Returns the keys visible to some query in a mask (batch, queries, keys) or (batch, heads,
    ...).

    True and 1 show a key; a numeric mask with negative entries is added to the scores.
    """
    if mask.shape[-2] not in (1, mask.shape[-1]):
        return None  # a mask of pixels, for example, and not of tokens
    if mask.is_floating_point() and not bool((mask > 0).any()):
        is_visible = mask > torch.finfo(mask.dtype).min / 2
    else:
        is_visible = mask == 1
        if not bool((is_visible | (mask == 0)).all()):
            return None
    visible = is_visible.flatten(1, -2).any(1)
    return visible if bool(visible.any()) else None


def hidden_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the hidden tokens of each input: boolean, in a shape that expands to the input.

    An input uses the mask of its shape, from the encoder or the decoder according to its name.
    Masks are inputs too.

    Args:
        model: its graph and modules show whether tokens come first, if shapes do not.
        batch: inputs by name.
    """
    masks = {name: ~visible for name, visible in visible_tokens(batch).items()}
    if not any(bool(hidden.any()) for hidden in masks.values()):
        return {}
    sides = {name.startswith(TARGET_SIDE) for name in batch if name not in masks}
    inputs: dict[str, Tensor] = {}
    for name, x in batch.items():
        side, places = name.startswith(TARGET_SIDE), {}
        for mask, hidden in masks.items():
            if len(sides) < 2 or mask.startswith(TARGET_SIDE) == side:
                places[mask] = _placed(model, name, x, mask, hidden)
        fits = {mask: place for mask, place in places.items() if place is not None}
        if fits:
            place = fits[max(fits, key=lambda mask: _common_start(name, mask))]
            if bool(place.any()):
                inputs[name] = place
    return inputs


def _common_start(name: str, mask: str) -> int:
    """Returns the length of the common prefix of two names."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(name, mask, strict=False))
    return sum(1 for _ in pairs)


def _placed(model: Any, name: str, x: Any, mask: str, hidden: Tensor) -> Tensor | None:
    """Returns the hidden tokens of a mask in the layout of an input; None if the sizes differ."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.dim() < 2:
        return None
    if name == mask:
        return hidden.view(len(hidden), *[1] * (x.dim() - 2), -1)
    if x.dim() > 3:
        return None  # images, which may have as many channels as there are tokens
    head, tail = x.shape[:2], [1] * (x.dim() - 2)
    if len(hidden) == 1 and head[1] == hidden.shape[1]:
        hidden = hidden.expand(head)
    if head == hidden.T.shape and (head != hidden.shape or _is_turned(model, name, mask)):
        return hidden.T.reshape(*head, *tail)
    if head == hidden.shape:
        return hidden.reshape(*head, *tail)
    if x.dim() == 3 and (len(x), x.shape[2]) == hidden.shape:
        return hidden[:, None]  # features before time, as in audio
    return hidden.reshape(-1, 1, *tail) if len(x) == hidden.numel() else None


def _is_turned(model: Any, name: str, mask: str) -> bool:
    graph = getattr(model, "graph", None)
    inputs = graph.find_nodes(op="placeholder") if isinstance(graph, fx.Graph) else ()
    node = next((node for node in inputs if node.target == name), None)
    return node is not None and is_tokens_first(node, mask)


def is_tokens_first(node: fx.Node, name: str) -> bool:
    """Returns whether a value is (tokens, batch, ...) for a mask (batch, tokens).

    It uses the sizes that the capture proved to be one, else the shapes of the example inputs. If
    they are square too, it uses `batch_first` of the modules that have it.
    """
    mask = next((x for x in node.graph.find_nodes(op="placeholder") if x.target == name), None)
    mask_sizes, node_sizes = _named_sizes(mask), _named_sizes(node)
    if {*mask_sizes} & {*node_sizes} - {""}:
        return any(
            size and size == other for size, other in zip(mask_sizes, node_sizes[::-1], strict=True)
        )
    shape, masked = _example_shape(node)[:2], () if mask is None else _example_shape(mask)
    if len(shape) == len(masked) == 2 and shape != shape[::-1]:
        return shape == masked[::-1]
    model = node.graph.owning_module
    orders = [getattr(m, "batch_first", None) for m in (model.modules() if model else ())]
    return name.endswith(KEY_PADDING) and False in orders and True not in orders


def _named_sizes(node: fx.Node | None) -> tuple[str, str]:
    """Returns the first two sizes of a value if they are input sizes ("x.shape[0]"); else ""."""
    shape = getattr(node.meta.get("spec"), "shape", ()) if node is not None else ()
    first, second = (*(size if isinstance(size, str) else "" for size in shape), "", "")[:2]
    return first, second


def _example_shape(node: fx.Node) -> tuple[int, ...]:
    """Returns the shape of a value for the example inputs; empty if it is unknown."""
    metadata = node.meta["mase"].common.results.get("data_out_0") if "mase" in node.meta else None
    return tuple(getattr(metadata, "shape", None) or ())


def list_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """Returns the inputs of the graph that reach a node."""
    steps = reached([node], lambda step: step.all_input_nodes)
    return (step for step in steps if step.op == "placeholder")
