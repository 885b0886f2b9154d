"""Key-value caches (KV caches) of `transformers` as optional inputs of a graph.

A graph holds a cache as one value, which its nodes read and write: they query lengths, and append
keys and values. One graph therefore serves prefill and single tokens, with dynamic, sliding and
static caches. Without a cache (None) the same nodes pass keys and values on.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from chop.captured.huggingface.cache_names import CACHE_NAMES, POSITIONS, cache_name
from chop.captured.state.preserve_state import preserve_state
from chop.errors import CaptureError, GuardError

_BESIDE = ("input_ids", "attention_mask")
PAST = 5
"""Tokens in the cache of an example; different from the sizes of its inputs."""
_EXAMPLE_QUERIES = 14
_FEW = 4
_OFFSET = 2
"""Tokens that have left a sliding window in the example. 0 and 1 would be constants for torch."""


class CacheError(CaptureError):
    """Raised when a graph cannot represent a model's use of its cache."""


@dataclass(frozen=True)
class Caching:
    """Settings of a capture with a cache.

    Attributes:
        by_mask: whether default positions count unmasked tokens only.
        plain: example inputs of a call without a cache.
        cache: the model's name for its cache.
        positions: whether positions are an input.
    """

    by_mask: bool
    plain: Mapping[str, Any]
    cache: str
    positions: bool = True

    @property
    def optional(self) -> tuple[str, ...]:
        """The optional inputs."""
        return (POSITIONS, self.cache) if self.positions else (self.cache,)


# --- what nodes call ------------------------------------------------------------------------------


def cached_length(cache: Any, layer: int) -> int:
    """Returns the number of tokens that a cache has seen; 0 without a cache.

    >>> cached_length(None, 0)
    0
    """
    return 0 if cache is None else int(_checked(cache).get_query_offset(layer))


def key_sizes(cache: Any, queries: int, layer: int) -> tuple[int, int]:
    """Returns the number of keys that `queries` new tokens attend to, and the first key's position.

    >>> key_sizes(None, 7, 0)
    (7, 0)
    """
    if cache is None:
        return queries, 0
    length, offset = _checked(cache).get_mask_sizes(queries, layer)
    return int(length), int(offset)


def update_cache(cache: Any, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Appends keys and values (batch, heads, new tokens, size) and returns all to attend to."""
    if cache is None:
        return keys, values
    every_key, every_value = _checked(cache).update(keys, values, layer)
    return every_key, every_value


def pad_attention_mask(mask: Tensor, length: int) -> Tensor:
    """Pads a mask (batch, tokens) with zeros to `length`, for the free places of a static cache."""
    missing = length - mask.shape[-1]
    return F.pad(mask, (0, missing)) if missing > 0 else mask


def positions_or_default(positions: Any, ids: Tensor, mask: Any, start: int, by_mask: bool) -> Any:
    """Returns the given positions, or the model's default positions.

    Args:
        positions: (batch, tokens) or None.
        ids: (batch, tokens).
        mask: (batch, cached and new tokens), 0 for padding.
        start: number of cached tokens.
        by_mask: count unmasked tokens, with padding at -1; else count all tokens.

    >>> positions_or_default(None, torch.zeros(1, 3, dtype=torch.long), None, 2, False)
    tensor([[2, 3, 4]])
    """
    if positions is not None:
        return positions
    if by_mask:
        return ((mask.cumsum(1) * mask) - 1).long()[:, start:]
    # Sharded like the tokens, if these are sharded.
    return torch.ones_like(ids).cumsum(1) - 1 + start


SIZE_FUNCTIONS = (cached_length, key_sizes)
NODE_FUNCTIONS = (*SIZE_FUNCTIONS, update_cache, pad_attention_mask, positions_or_default)
"""Functions that nodes of a graph with a cache may call."""


def _checked(cache: Any) -> Any:
    """Returns the cache after a type check, since a graph may come from a file."""
    check_optional(CACHE_NAMES[0], cache)
    return cache


# --- caches as values -----------------------------------------------------------------------------


def is_cache(value: Any) -> bool:
    """Returns whether a value is a cache of `transformers`, without importing it."""
    module = sys.modules.get("transformers.cache_utils")
    return module is not None and isinstance(value, module.Cache)


def copied(value: Any) -> Any:
    """Returns a copy of an input tensor or cache, since models write into both."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.deepcopy(value) if is_cache(value) else value


def cache_tensors(cache: Any) -> list[Tensor]:
    """Returns the tensors in the layers of a cache; none for a traced one."""
    held = vars(cache)
    inner = [x for part in held.values() if is_cache(part) for x in cache_tensors(part)]
    layers = held.get("layers", ())
    return [x for layer in layers for x in vars(layer).values() if isinstance(x, Tensor)] + inner


def new_cache(config: Any) -> Any:
    """Returns the empty growing cache that a model of that configuration creates."""
    from transformers import DynamicCache

    return DynamicCache(config=config)


def check_optional(name: str, value: Any) -> None:
    """Raises GuardError if positions are no table of numbers, or a cache has the wrong type."""
    positions = isinstance(value, Tensor) and value.dim() == 2
    if value is None or (is_cache(value) if name in CACHE_NAMES else positions):
        return
    expected = "a cache of transformers" if name in CACHE_NAMES else "(batch, tokens)"
    raise GuardError(f"expected {expected} or None as {name}, got {type(value).__name__}")


# --- examples -------------------------------------------------------------------------------------


def why_no_cache(model: nn.Module, inputs: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """Explains why a capture does not try a cache by default; empty if it does.

    Args:
        model: the model.
        inputs: example inputs.
        fixed: fixed arguments of its `forward`.
    """
    config: Any = getattr(model, "config", None)
    generates = getattr(model, "can_generate", lambda: False)()
    if not generates or getattr(config, "is_encoder_decoder", True):
        return "it is not a generating decoder"
    if fixed or {*inputs} != {*_BESIDE}:
        return f"its inputs are {', '.join((*inputs, *fixed))}"
    setting = getattr(config, "use_cache", None)
    if setting is None:
        return "its configuration has no use_cache"
    return "" if setting else "use_cache of its configuration is off"


def cached_example(model: nn.Module, plain: Mapping[str, Any]) -> tuple[dict[str, Any], Caching]:
    """Returns the inputs of a call that continues a text: a longer mask, positions, a filled cache.

    Args:
        model: a model that generates.
        plain: inputs of a call without a cache: `input_ids` (batch, tokens) and `attention_mask`.

    Raises:
        CacheError: its cache does not hold keys and values, or it has other inputs.
    """
    names = inspect.signature(model.forward).parameters
    name = cache_name(model)
    if {*plain} != {*_BESIDE} or name not in names:
        expected = ", ".join((*_BESIDE, POSITIONS, name))
        taken = plain if name in names else names
        raise CacheError(f"a graph with a cache takes only {expected}, got {', '.join(taken)}")
    ids = plain["input_ids"]
    batch, tokens = ids.shape
    mask = torch.ones(batch, PAST + tokens, dtype=torch.long, device=ids.device)
    cache = new_cache(getattr(model, "config", None))
    _check_layers(cache)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise CacheError("its parameters have no data, and a run has to determine its positions")
    with preserve_state(model, thorough=True), torch.no_grad():
        model.eval()
        by_mask = POSITIONS in names and _follows_mask(model, ids[:1, :_FEW])
        past = {"input_ids": ids[:, :1].expand(batch, PAST), "attention_mask": mask[:, :PAST]}
        model(**past, **{name: cache}, use_cache=True)
    inputs = {"input_ids": ids, "attention_mask": mask, name: cache}
    return inputs, Caching(by_mask, plain, name, POSITIONS in names)


def _check_layers(cache: Any) -> None:
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    others = {type(x).__name__ for x in cache.layers} - {
        DynamicLayer.__name__,
        DynamicSlidingWindowLayer.__name__,
    }
    if others or not cache.layers:
        raise CacheError(
            f"expected a cache of keys and values, got layers of {', '.join(sorted(others)) or 0}"
        )


def _follows_mask(model: Any, ids: Tensor) -> bool:
    """Returns whether default positions count unmasked tokens only.

    Raises:
        CacheError: they count neither these nor all tokens.
    """
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    expected = _logits(model(input_ids=ids, attention_mask=mask, use_cache=False))
    for by_mask in (False, True):
        positions = positions_or_default(None, ids, mask, 0, by_mask)
        output = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        if torch.equal(_logits(output)[mask.bool()], expected[mask.bool()]):
            return by_mask
    raise CacheError("expected default positions that count tokens, got others")


def _logits(output: Any) -> Tensor:
    if not isinstance(output, Mapping) or "logits" not in output:
        raise CacheError(f"expected an output with logits, got {type(output).__name__}")
    logits: Tensor = output["logits"]
    return logits


# --- recording ------------------------------------------------------------------------------------


class Recording(Protocol):
    """Interface of the recorder for a traced cache."""

    def emit(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> fx.Node:
        """Adds a node."""

    def free_number(self, name: str, example: int) -> Any:
        """Returns a new symbolic size."""

    def untraced(self) -> AbstractContextManager[None]:
        """Disables tracing inside the block."""


def traced_cache(example: Any, node: fx.Node, recording: Recording) -> Any:
    """Returns a cache that adds nodes when a model queries sizes or appends keys.

    Args:
        example: a cache; its layers show which of them have sliding windows.
        node: the placeholder.
        recording: adds the nodes.
    """
    return _traced_class()(example, node, recording)


def trace_positions(
    placeholder: fx.Node, fakes: Mapping[str, Any], caching: Caching, recording: Recording
) -> Tensor:
    """Returns traced positions, with the model's default if a call has none.

    Args:
        placeholder: placeholder of the positions.
        fakes: the other inputs by name; the cache is a traced one.
        caching: position counting of the model, and its name for the cache.
        recording: adds the nodes.
    """
    ids, mask, cache = (fakes[name] for name in (*_BESIDE, caching.cache))
    positions = torch.empty_like(ids)
    call = (placeholder, ids, mask, cache.get_seq_length(), caching.by_mask)
    recording.emit("call_function", positions_or_default, call, {}, positions)
    return positions


def traced_node(cache: Any) -> fx.Node:
    """Returns the placeholder of a traced cache.

    Raises:
        CacheError: the model created the cache itself.
    """
    if not isinstance(cache, _traced_class()):
        raise CacheError(f"the model creates a {type(cache).__name__}, unsupported in a graph")
    node: fx.Node = cache.node
    return node


@functools.cache
def _traced_class() -> Any:
    from transformers import DynamicCache

    class TracedCache(DynamicCache):  # type: ignore[misc]
        """Cache without layers: unsupported operations fail at the access of `layers`."""

        def __init__(self, example: Any, node: fx.Node, recording: Recording) -> None:
            self.node, self._recording = node, recording
            self._windows = [getattr(layer, "sliding_window", None) for layer in example.layers]
            # While the model runs, every new tensor is fake and no size is free.
            self._length = recording.free_number(f"{node.target} length", PAST)
            self._sizes = {
                window: _free_sizes(f"{node.target}", window, recording) for window in self._windows
            }
            self._asked: set[Any] = set()
            self.offloading, self.layer_class_to_replicate = False, None

        layers: Any = property(_refuse_layers)
        is_sliding: Any = property(lambda self: [window is not None for window in self._windows])
        is_linear: Any = property(lambda self: [False] * len(self._windows))
        is_dummy: Any = property(lambda self: [False] * len(self._windows))
        is_compileable: Any = property(lambda self: False)

        def __len__(self) -> int:
            return len(self._windows)

        def get_seq_length(self, layer_idx: int = 0) -> Any:
            """Returns the number of cached tokens."""
            self._emit(None, cached_length, (self, layer_idx), self._length)
            return self._length

        def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[Any, Any]:
            """Returns the number of keys, and the position of the first."""
            window = self._windows[layer_idx]
            sizes = self._sizes[window]
            self._emit((window,), key_sizes, (self, query_length, layer_idx), sizes)
            return sizes

        def _emit(self, key: Any, target: Any, call: tuple[Any, ...], result: Any) -> None:
            if key not in self._asked:
                self._asked.add(key)
                self._recording.emit("call_function", target, call, {}, result)

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            """Appends keys and values, and returns all of them."""
            keys, _ = self.get_mask_sizes(key_states.shape[-2], layer_idx)
            with self._recording.untraced():
                states = _longer(key_states, keys), _longer(value_states, keys)
            call = (self, key_states, value_states, layer_idx)
            self._recording.emit("call_function", update_cache, call, {}, states)
            return states

    return TracedCache


def _refuse_layers(cache: Any) -> Any:
    raise CacheError("the model reads the layers of its cache, which a graph cannot represent")


def _free_sizes(cache: str, window: int | None, recording: Recording) -> tuple[Any, Any]:
    # Without a window the first key is that of the first token, unless a caller's cache has one.
    name = f"{cache} {'all' if window is None else window}"
    keys = recording.free_number(f"{name} keys", PAST + _EXAMPLE_QUERIES)
    return keys, recording.free_number(f"{name} offset", _OFFSET)


def _longer(states: Tensor, length: Any) -> Tensor:
    """Returns fake states (batch, heads, tokens, size) with `length` tokens, same history."""
    batch, heads, _, size = states.shape
    return states[:, :, :1].expand(batch, heads, length, size).clone()
