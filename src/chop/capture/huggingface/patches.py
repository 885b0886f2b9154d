"""Temporary patches of `transformers` during a capture."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.captured.huggingface.cache import Recording, pad_attention_mask
from chop.private.transformers_api import (
    EXPERTS,
    FIND_PACKED,
    GENERIC,
    IGNORE_CAUSAL_MASK,
    MASKING,
    MAYBE_AUTOCAST,
    MODELING,
    PREPARE_PADDING_MASK,
    PREPROCESS,
    VMAP_CONTEXT,
    VMAP_EXPANSION,
    attention_functions,
    broadcast_grid,
)

if TYPE_CHECKING:
    from chop.capture.sizes.symbols import Sizes

_LAYER_DROPS = ("layerdrop", "layer_drop", "encoder_layerdrop", "decoder_layerdrop")


@contextlib.contextmanager
def hf_capture_patches(
    model: nn.Module, with_cache: bool = False, joins_packed_rows: bool = False
) -> Iterator[list[str]]:
    """Disables caches, data-dependent expert loops and layer dropping.

    Args:
        model: the model.
        with_cache: keeps caches enabled.
        joins_packed_rows: skips the detection of packed rows, as the model does with its cache.

    Yields: a sentence for each change that alters the results of the model.
    """
    with contextlib.ExitStack() as changes:
        notes: list[str] = []
        masks: Any = sys.modules.get(MASKING)
        if joins_packed_rows and hasattr(masks, FIND_PACKED):
            _set(changes, masks, FIND_PACKED, lambda position_ids: None)
        for config in _configs(model):
            if getattr(config, "use_cache", False) and not with_cache:
                _set(changes, config, "use_cache", False)
            if EXPERTS in vars(config):
                # The default loops over the experts that a batch uses, which depends on its values.
                _set(changes, config, EXPERTS, "batched_mm")
        # Layer dropping is a random decision of Python, which a graph would fix.
        for owner in (*model.modules(), *_configs(model)):
            for name in _LAYER_DROPS:
                if vars(owner).get(name):
                    notes.append(f"{name}={vars(owner)[name]} of {type(owner).__name__} is 0")
                    _set(changes, owner, name, 0.0)
        yield notes


@contextlib.contextmanager
def broadcast_masks() -> Iterator[None]:
    """Makes transformers build attention masks by broadcasting instead of `torch.vmap`.

    Operators inside `vmap` cannot be traced. Both methods give the same mask if the mask function
    uses index arithmetic only; the self-check detects the others.
    """
    masks: Any = sys.modules.get(MASKING)
    with contextlib.ExitStack() as changes:
        if masks is not None:

            def expansion(mask_function: Callable[..., Tensor]) -> Callable[..., Tensor]:
                def mask(*indices: Tensor) -> Tensor:
                    grid = broadcast_grid(masks, indices)
                    return mask_function(*grid).expand([index.shape[0] for index in indices])

                return mask

            _set(changes, masks, VMAP_EXPANSION, expansion)
            _set(changes, masks, VMAP_CONTEXT, contextlib.nullcontext)
        yield


@contextlib.contextmanager
def patch_mask_sizes(sizes: Sizes, with_cache: Recording | None) -> Iterator[None]:
    """Makes transformers build the same kind of mask, and attend with it, for any number of tokens.

    Its own size tests would become guards: they skip the mask for one new token, pad it for a
    static cache, and repeat one row of positions for several rows of tokens. With a mask, its code
    for one token gives the same result as that for several.

    Args:
        sizes: sizes of the recording.
        with_cache: recording of a graph that takes a cache, which pads masks.
    """
    masks: Any = sys.modules.get(MASKING)
    attention: Any = sys.modules.get(MODELING)
    with contextlib.ExitStack() as changes:
        if masks is not None:
            skips, name = getattr(masks, IGNORE_CAUSAL_MASK), IGNORE_CAUSAL_MASK
            # A given mask is always used, so that the graph is valid for masks with padding.
            _set(changes, masks, name, lambda mask, *x, **y: mask is None and skips(mask, *x, **y))
            _set(changes, masks, PREPROCESS, _repeat_positions(getattr(masks, PREPROCESS)))
            if with_cache is not None:
                _set(changes, masks, PREPARE_PADDING_MASK, functools.partial(_padded, with_cache))
        if attention is not None:
            functions = attention_functions(attention)
            changes.callback(functions.__setitem__, "sdpa", functions["sdpa"])
            functions["sdpa"] = functools.partial(_attend, sizes, functions["sdpa"])
        yield


def _repeat_positions(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Repeats a single row of positions for every row of tokens, even for a single row."""

    def with_rows(
        config: Any, embeds: Any, mask: Any, cache: Any, positions: Any, *rest: Any
    ) -> Any:
        has_rows = isinstance(positions, Tensor) and positions.dim() == 2
        if has_rows and type(positions.shape[0]) is int and positions.shape[0] == 1:
            positions = positions.expand(embeds.shape[0], -1)
        return preprocess(config, embeds, mask, cache, positions, *rest)

    return with_rows


def _padded(recording: Recording, attention_mask: Any, kv_length: Any, kv_offset: Any) -> Any:
    if attention_mask is None:
        return None
    with recording.untraced():
        # The recorded value only needs its own identity; the node pads at run time.
        padded = attention_mask.clone()
    call = (attention_mask, kv_length + kv_offset)
    recording.emit("call_function", pad_attention_mask, call, {}, padded)
    return padded


def _attend(
    sizes: Sizes, usual: Any, module: Any, q: Any, k: Any, v: Any, attention_mask: Any, **rest: Any
) -> Any:
    if attention_mask is None:
        return usual(module, q, k, v, attention_mask, **rest)
    # With a mask, one token and several give the same result, so these size tests are no guards.
    with sizes.evaluated_by(model=False):
        return usual(module, q, k, v, attention_mask, **rest)


@functools.lru_cache(maxsize=1)
def _users_of_autocast(count: int, newest: str) -> tuple[str, ...]:
    """Returns the modules with a `maybe_autocast`. `count` and `newest` invalidate the cache."""
    modules = list(sys.modules.items())
    return tuple(
        name for name, module in modules if MAYBE_AUTOCAST in getattr(module, "__dict__", {})
    )


@contextlib.contextmanager
def keep_autocast_regions() -> Iterator[None]:
    """Makes transformers enter autocast regions that have no effect while autocast is off.

    By default they are omitted then, but the graph may be trained under autocast later.
    """
    generic: Any = sys.modules.get(GENERIC)
    with contextlib.ExitStack() as changes:
        maybe = getattr(generic, MAYBE_AUTOCAST, None)
        if maybe is not None:

            def region(device_type: str, *args: Any, **kwargs: Any) -> Any:
                usual = maybe if device_type == "meta" else torch.autocast
                return usual(device_type, *args, **kwargs)

            for name in _users_of_autocast(len(sys.modules), next(reversed(sys.modules))):
                if getattr(sys.modules.get(name), MAYBE_AUTOCAST, None) is maybe:
                    _set(changes, sys.modules[name], MAYBE_AUTOCAST, region)
        yield


def _set(changes: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    changes.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _configs(model: nn.Module) -> list[Any]:
    """Returns every distinct configuration object of the submodules, including nested ones."""
    configs: dict[int, Any] = {}

    def visit(config: Any) -> None:
        if hasattr(config, "to_dict") and id(config) not in configs:
            configs[id(config)] = config
            for value in list(vars(config).values()):
                visit(value)

    for module in model.modules():
        visit(vars(module).get("config"))
    return list(configs.values())
