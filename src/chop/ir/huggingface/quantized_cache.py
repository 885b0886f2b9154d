"""Quantized KV cache: a `Cache` of transformers with keys and values in any number format.

transformers stores keys after rotary positions (RoPE) have been applied, and so does this cache.
KIVI quantizes what the models of its time cached, which is the same.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from torch import Tensor
from transformers import MODEL_FOR_MASKED_LM_MAPPING, DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from chop.config import with_checked_arguments
from chop.errors import ConfigError
from chop.formats import FP8, NumberFormat, parse_format, parse_format_string
from chop.ir.huggingface.config_file import KV_SCALES
from chop.ir.huggingface.token_store import Per, StoreRule, TokenStore, get_block
from chop.private.transformers_api import GenerateNotices

COMPARED = 64
"""Maximum number of first tokens by which a repeated text is recognized."""
TOLERANCE = 1e-2
"""Relative difference below which keys are those of the same tokens at the same positions."""
Given = str | Mapping[str, Any] | NumberFormat
"""Format as text, as a mapping with `name`, or as an instance."""


class QuantizedCache(GenerateNotices, Cache):  # type: ignore[misc]
    """Low-bit KV cache for `model(..., cache=...)`, `generate(cache=...)` and graphs.

    The first `sink_length` tokens and the newest `residual_length` tokens, plus up to one block,
    stay unrounded. The tokens in between are codes and scales, rounded once, a block of whole
    groups at a time. A call attends to earlier tokens as stored and to its own unrounded, so that a
    prompt is processed as with a float cache. The first tokens may be padding.

    The cache belongs to one text: a second `generate` continues it, as with caches of transformers.
    Call `reset()` before another text.

    Args:
        model: a Hugging Face model, its graph, or a configuration; it is not changed.
        keys: format of keys: text ("group_affine:width=4", "mxint8"), a mapping or a format;
            "float" or None stores them unchanged.
        values: format of values; None uses that of keys.
        residual_length: number of newest tokens that stay float, 0 or more.
        keys_per: `channel` groups the tokens of a channel; `token` groups the channels of a token.
        values_per: grouping of values, as for keys.
        sink_length: number of first tokens (attention sinks) that stay float, 0 or more; ignored by
            layers with a sliding window, which drop them.
        rotate_keys: round keys after a Hadamard transform of each head, which spreads outlier
            channels. Decoding inverts the transform, so that queries need none.

    Raises:
        ConfigError: if a format is unknown or needs calibration, or the model has an encoder or
            layers with other state than keys and values.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig
        >>> sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        >>> cache = QuantizedCache(LlamaConfig(**sizes), "mxint4", residual_length=32)
        >>> states = torch.ones(1, 2, 100, 32)
        >>> _ = cache.update(states, states, 0)
        >>> cache.size_bytes, cache.float_bytes
        (22784, 51200)

    Source: keys per channel, values per token, and the residual: KIVI, Liu et al. 2024,
    arXiv:2402.02750, section 3. First tokens, which most others attend to (attention sinks): Xiao
    et al. 2024, arXiv:2309.17453; left float in a cache: KVQuant, Hooper et al. 2024,
    arXiv:2401.18079. Rotated keys: QuaRot, Ashkboos et al. 2024, arXiv:2404.00456, section 4.
    """

    @with_checked_arguments
    def __init__(
        self,
        model: Any,
        keys: Given | None = "group_affine:width=4",
        values: Given | None = None,
        *,
        residual_length: int = 128,
        keys_per: Per = "channel",
        values_per: Per = "token",
        sink_length: int = 4,
        rotate_keys: bool = False,
    ) -> None:
        lengths = {"residual_length": residual_length, "sink_length": sink_length}
        for name, length in lengths.items():
            if length < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {length}.")
        key_rule = _rule("keys", keys, keys_per, **lengths, is_rotated=rotate_keys)
        value_rule = _rule("values", keys if values is None else values, values_per, **lengths)
        windows = _windows(_config(model))
        self.first_keys: Tensor | None = None
        super().__init__(layers=[QuantizedLayer(key_rule, value_rule, x) for x in windows])

    @classmethod
    def from_checkpoint(cls, model: Any) -> Self:
        """Returns the cache that the model's checkpoint describes: FP8 with a scale per layer.

        Folders of compressed-tensors and ModelOpt have such scales (`kv_cache_scheme`). Every token
        is e4m3(x / scale) times the scale, without sink tokens or a residual.

        Args:
            model: see `QuantizedCache`; imported from such a folder.

        Raises:
            ConfigError: if the model has no scales, or not one for each layer.
        """
        config = _config(model)
        scales = getattr(config, KV_SCALES, None)
        if not scales:
            raise ConfigError(
                "QuantizedCache.from_checkpoint: expected a model from a folder with FP8 scales of "
                "its key-value cache; use QuantizedCache(model, keys=...) for other models."
            )
        cache = cls(model, "float", residual_length=0, sink_length=0)
        pairs = [*zip(scales["keys"], scales["values"], strict=True)]
        if len(pairs) != len(cache.layers):
            raise ConfigError(
                f"QuantizedCache.from_checkpoint: the checkpoint has scales for {len(pairs)} "
                f"layers, but the model has {len(cache.layers)}."
            )
        settings = {"residual_length": 0, "sink_length": 0}
        for layer, pair in zip(cache.layers, pairs, strict=True):
            layer.rules = tuple(_rule("keys", FP8(scales=(x,)), "token", **settings) for x in pair)
            layer.reset()
        return cache

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds keys and values (B, H, T, D) of a layer, and returns all that it attends to."""
        if layer_idx >= len(self.layers):
            raise ConfigError(
                f"this cache was made for a model of {len(self.layers)} layers, got keys of layer "
                f"{layer_idx}: make one with QuantizedCache(model)."
            )
        if layer_idx == 0:
            self._check_is_not_repeated(key_states)
        states: tuple[Tensor, Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return states

    def _check_is_not_repeated(self, keys: Tensor) -> None:
        """Raises ConfigError if the second call reads the text of the first one and more.

        `generate` does so with `use_cache=False`, and gives the cache to the model all the same.
        """
        first, self.first_keys = self.first_keys, None
        tokens = self.get_seq_length()
        if not tokens:
            self.first_keys = keys[:, :, :COMPARED].detach().clone()
        elif first is not None and keys.shape[-2] > tokens and len(keys) == len(first):
            again = keys[:, :, : first.shape[-2]]
            if (again - first).norm() <= TOLERANCE * first.norm():
                raise ConfigError(
                    "QuantizedCache: the text that it holds is read again from the start, as by "
                    "generate with use_cache=False, and would be stored twice. Pass "
                    "use_cache=True, or leave out the cache."
                )

    def reset(self) -> None:
        """Clears the cache."""
        super().reset()
        self.first_keys = None

    def on_second_generate(self) -> None:
        """Warns that a filled cache continues its text."""
        if tokens := self.get_seq_length():
            warnings.warn(
                f"QuantizedCache: it holds {tokens} tokens of an earlier generate, so the prompt "
                "must begin with these tokens. Call reset() on the cache before another text.",
                stacklevel=2,
            )

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, scales and float tokens."""
        return sum(store.size_bytes for layer in self.layers for store in layer.stores)

    @property
    def float_bytes(self) -> int:
        """Bytes that the same tokens take in a float cache."""
        return sum(store.float_bytes for layer in self.layers for store in layer.stores)


class QuantizedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Cached keys and values of one layer.

    Args:
        keys: storage rule of keys.
        values: storage rule of values.
        sliding_window: number of tokens that a query attends to, including itself; None for all.
    """

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(
        self, keys: StoreRule, values: StoreRule, sliding_window: int | None = None
    ) -> None:
        # Skips the base's `__init__`, which sets attributes that are properties here.
        rules = (keys, values)
        is_forgetful = sliding_window is not None
        self.rules = tuple(replace(x, sink_length=0) for x in rules) if is_forgetful else rules
        self.sliding_window = sliding_window
        self.is_sliding = sliding_window is not None
        self.record_past = False
        self.reset()

    keys = property(lambda self: self.stores[0].tokens(), doc="(B, H, T, D), decoded, or None.")
    values = property(lambda self: self.stores[1].tokens(), doc="(B, H, T, D), decoded, or None.")

    def reset(self) -> None:
        """Clears the cache."""
        self.stores = tuple(map(TokenStore, self.rules))
        self.cumulative_length = 0
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Records the device and dtype of the keys."""
        self.device = key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds keys and values (B, H, T, D), and returns all that their queries attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.stores[0].window
        if held is not None and len(held) != len(key_states):
            raise ConfigError(
                f"QuantizedCache: it holds {len(held)} texts, got {len(key_states)}. Call reset() "
                "on the cache before other texts."
            )
        new = key_states.shape[-2]
        self.cumulative_length += new
        states = zip(self.stores, (key_states, value_states), strict=True)
        every_key, every_value = (store.append(x) for store, x in states)
        if self.sliding_window is None:
            return every_key, every_value
        if not self.record_past:
            self._forget_oldest()
        visible = self.sliding_window - 1 + new
        return every_key[:, :, -visible:], every_value[:, :, -visible:]

    def _forget_oldest(self) -> None:
        if self.sliding_window is not None:
            for store in self.stores:
                store.keep_newest(self.sliding_window - 1)

    def get_seq_length(self) -> int:
        """Returns the number of tokens seen."""
        return self.cumulative_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of keys that new tokens attend to, and the position of the first."""
        past = self.cumulative_length
        if past and not query_length:
            raise ConfigError(
                f"QuantizedCache: it holds {past} tokens of an earlier text, and the prompt has no "
                "token after them. Call reset() on the cache before another text."
            )
        if self.sliding_window is not None:
            past = min(past, self.sliding_window - 1)
        return past + query_length, self.cumulative_length - past

    def get_max_length(self) -> int:
        """Returns the sliding window; -1 without one."""
        return -1 if self.sliding_window is None else self.sliding_window

    def activate_past_recording(self) -> None:
        """Retains tokens that leave the sliding window until `crop`, which may restore them."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the newest tokens.

        Args:
            tokens_to_remove: 0, or a negative number of tokens.

        Raises:
            ConfigError: if the number is positive, or needed tokens have left the sliding window.
        """
        if tokens_to_remove > 0:
            raise ConfigError(f"crop: expected a number of 0 or less, got {tokens_to_remove}.")
        count = min(-tokens_to_remove, self.cumulative_length)
        window = self.sliding_window
        if window is not None and count:
            needed = min(self.cumulative_length - count, window - 1)
            if any(store.length - count < needed for store in self.stores):
                raise ConfigError(
                    f"crop: {count} tokens cannot be removed, because earlier ones have left the "
                    "sliding window; call activate_past_recording() first."
                )
        for store in self.stores:
            store.crop(count)
        self.cumulative_length -= count
        self._forget_oldest()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Selects the texts of these beams."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each text in place."""
        for store in self.stores:
            store.map(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Selects the texts at these positions."""
        for store in self.stores:
            store.map(lambda x: x[indices.to(x.device)])

    def offload(self) -> None:
        """Moves the cache to the CPU."""
        for store in self.stores:
            store.map(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Moves the cache back to the device of the keys."""
        for store in self.stores:
            store.map(lambda x: x.to(self.device, non_blocking=True))


def _rule(name: str, given: Given | None, per: Per, **settings: Any) -> StoreRule:
    is_text = isinstance(given, str)
    if is_text and (width := re.fullmatch(r"(?:u?int_?|[iw])(\d+)", str(given), re.IGNORECASE)):
        # The integer formats of the general advice need samples, which a new cache lacks.
        near = f"did you mean group_integer:width={width[1]}?"
        raise ConfigError(f"unknown number format '{given}': {near}")
    number_format = parse_format_string(given) if is_text else parse_format(given, name)  # type: ignore[arg-type]
    return StoreRule(number_format, per, block=get_block(number_format, per), **settings)


def _config(model: Any) -> PreTrainedConfig:
    captured = getattr(model, "model", model)  # the graph's model; for a model, its body
    candidates = [model, *(getattr(x, "config", None) for x in (model, captured))]
    config = next((x for x in candidates if isinstance(x, PreTrainedConfig)), None)
    if config is None:
        raise ConfigError(
            "QuantizedCache: expected a Hugging Face model, a graph of one, or a configuration, "
            f"got {type(model).__name__}."
        )
    if config.is_encoder_decoder:
        raise ConfigError(
            f"QuantizedCache supports decoders, got {config.model_type}, which has an encoder."
        )
    is_of_encoders = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    if is_of_encoders and not getattr(config, "is_decoder", True):
        raise ConfigError(
            f"QuantizedCache supports decoders, got {config.model_type} with is_decoder=False, "
            "whose tokens attend to later ones."
        )
    return config


def _windows(config: PreTrainedConfig) -> list[int | None]:
    """Returns the sliding window of each layer, or None.

    Raises:
        ConfigError: if a layer caches anything but keys and values.
    """
    layers = DynamicCache(config=config).layers
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    others = Counter(type(layer).__name__ for layer in layers if type(layer) not in known)
    if others:
        named = ", ".join(f"{kind} ({count} of them)" for kind, count in others.items())
        raise ConfigError(
            f"QuantizedCache stores keys and values of attention, and {config.model_type} has "
            f"other layers: {named}."
        )
    return [getattr(layer, "sliding_window", None) for layer in layers]
