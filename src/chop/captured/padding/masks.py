"""Attention masks among a model's inputs, and the padding tokens that they hide."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.base.reach import reached

MASK = "attention_mask"
"""The end of the names of the inputs of Hugging Face's models that are 0 where a token is padding.
"""
KEY_PADDING = "key_padding_mask"
"""The end of torch's names of inputs that are True, or -inf, where a token is padding."""
MASK_ENDINGS = (MASK, KEY_PADDING)
TARGET_SIDE = ("decoder_", "tgt")
"""First parts of the names of a decoder's inputs, where an encoder has inputs of its own."""
MASKS_AHEAD = "masks_ahead"
"""The argument by which a graph gives a call the masks that later operators apply to its result.

A tuple of (kind, mask, steps): kind is "added" for numbers, "hidden" for a boolean that is True
where it hides, and "shown" for one that is False there. `steps` are the (method, arguments) that
lay out the result otherwise before it meets the mask. A kind "every" has several such tuples in the
place of a mask, and hides what each of them hides.
"""


def visible_tokens(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns boolean (batch, tokens) for each mask by name, False where it hides a token.

    Masks that hide every token are left out, and what bears such a name and is no mask.

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
    """Keys that some query sees, of a mask (batch, queries, keys) or (batch, heads, ...).

    True and 1 show a key; a mask of numbers of which some are negative is added to the scores.
    """
    if mask.shape[-2] not in (1, mask.shape[-1]):
        return None  # more than a mask of tokens, as of pixels
    if mask.is_floating_point() and not bool((mask > 0).any()):
        shown = mask > torch.finfo(mask.dtype).min / 2
    else:
        shown = mask == 1
        if not bool((shown | (mask == 0)).all()):
            return None
    visible = shown.flatten(1, -2).any(1)
    return visible if bool(visible.any()) else None


def hidden_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the hidden tokens of each input: boolean, in a shape that expands to the input.

    An input is masked by the mask of its shape, the encoder's or the decoder's as its name says;
    masks are inputs too.

    Args:
        model: its graph and modules tell whether tokens come first, where shapes do not.
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
    """Counts the characters that two names start with in common."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(name, mask, strict=False))
    return sum(1 for _ in pairs)


def _placed(model: Any, name: str, x: Any, mask: str, hidden: Tensor) -> Tensor | None:
    """The hidden tokens of a mask as they lie in an input; None where it has other sizes."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.dim() < 2:
        return None
    if name == mask:
        return hidden.view(len(hidden), *[1] * (x.dim() - 2), -1)
    if x.dim() > 3:
        return None  # pictures, whose channels may be as many as tokens
    head, tail = x.shape[:2], [1] * (x.dim() - 2)
    if len(hidden) == 1 and head[1] == hidden.shape[1]:
        hidden = hidden.expand(head)
    if head == hidden.T.shape and (head != hidden.shape or _is_turned(model, name, mask)):
        return hidden.T.reshape(*head, *tail)
    if head == hidden.shape:
        return hidden.reshape(*head, *tail)
    if x.dim() == 3 and (len(x), x.shape[2]) == hidden.shape:
        return hidden[:, None]  # features ahead of time, as of sound
    return hidden.reshape(-1, 1, *tail) if len(x) == hidden.numel() else None


def _is_turned(model: Any, name: str, mask: str) -> bool:
    graph = getattr(model, "graph", None)
    inputs = graph.find_nodes(op="placeholder") if isinstance(graph, fx.Graph) else ()
    node = next((node for node in inputs if node.target == name), None)
    return node is not None and is_tokens_first(node, mask)


def is_tokens_first(node: fx.Node, name: str) -> bool:
    """Returns whether a value is (tokens, batch, ...) of a mask (batch, tokens).

    The sizes that the capture found to be one tell it; else the shapes of the example inputs, and
    where they are square too, `batch_first` of the modules that have it.
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
    """The first two sizes of a value where they are those of inputs, as "x.shape[0]"; else ""."""
    shape = getattr(node.meta.get("spec"), "shape", ()) if node is not None else ()
    first, second = (*(size if isinstance(size, str) else "" for size in shape), "", "")[:2]
    return first, second


def _example_shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of a value for the example inputs; empty where it is not known."""
    metadata = node.meta["mase"].common.results.get("data_out_0") if "mase" in node.meta else None
    return tuple(getattr(metadata, "shape", None) or ())


def list_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """The inputs of the graph that reach a node."""
    steps = reached([node], lambda step: step.all_input_nodes)
    return (step for step in steps if step.op == "placeholder")
