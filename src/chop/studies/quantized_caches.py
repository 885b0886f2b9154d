"""KV caches in number formats, beside the float cache: memory, divergence of logits, speed.

Shapes: B texts, T tokens, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from chop.bench.clock import Clock
from chop.bench.record import format_bytes
from chop.captured.huggingface.cache_names import cache_name
from chop.errors import ConfigError

JUDGED = 128
"""Tokens after the prompt at which logits are compared."""


@dataclass(frozen=True)
class CacheRow:
    """One cache, after all tokens.

    Attributes:
        cache: `float32`, or its formats as they were given.
        size_bytes: of codes, scales and float tokens.
        float_bytes: of the same tokens in the float cache.
        bits: per number of keys and values.
        divergence: KL divergence of the next token's probabilities from those with the float cache,
            in nats, averaged over the tokens after the prompt.
        same_token: share of these at which the most probable token is the same.
        seconds: of a token, rounding its block included.
        times_as_fast: as with the float cache.
    """

    cache: str
    size_bytes: int
    float_bytes: int
    bits: float
    divergence: float
    same_token: float
    seconds: float
    times_as_fast: float

    def formatted(self) -> dict[str, Any]:
        """For a table."""
        return {
            "cache": self.cache,
            "memory": format_bytes(self.size_bytes),
            "of float": f"{self.size_bytes / self.float_bytes:.3f}",
            "bits per number": f"{self.bits:.2f}",
            "KL divergence": f"{self.divergence:.2g}",
            "same token": f"{self.same_token:.1%}",
            "decode, times as fast": f"{self.times_as_fast:.2f}",
        }


@dataclass
class _Reading:
    """A cache that is being filled, and what was seen of it."""

    name: str
    cache: Any
    seconds: float = 0.0
    divergence: float = 0.0
    same: float = 0.0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def check_caches(model: nn.Module, formats: Sequence[str], prompt: int, residual: int) -> None:
    """Refuses what cannot be compared, before anything is measured.

    Args:
        model: a decoder.
        formats: of keys and values, or KEYS/VALUES.
        prompt: tokens that are read at once.
        residual: newest tokens that stay float.

    Raises:
        ConfigError: a format is unknown or cannot hold a cache; all tokens would stay float; or the
            model takes fewer.
    """
    for text in formats:
        rules = _made_cache(model, text, residual).layers[0].rules
        wanted = residual + max(rule.sink_length + rule.block for rule in rules)
        if prompt < wanted:
            raise ConfigError(
                f"prompt: {prompt} tokens stay float in a cache in {text}; expected {wanted} or "
                "more, or fewer in residual."
            )
    config: Any = model.config
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and prompt + JUDGED > longest:
        raise ConfigError(
            f"prompt: caches are compared on {JUDGED} tokens after it, and the model takes "
            f"{longest} in all; got {prompt}."
        )


def compare_caches(
    model: nn.Module,
    formats: Sequence[str],
    prompt: int,
    residual: int,
    clock: Clock,
    start: Tensor,
) -> tuple[CacheRow, ...]:
    """Reads a text that the model wrote with every cache, a token at a time, in turns.

    Args:
        model: a decoder in evaluation mode.
        formats: of keys and values, or KEYS/VALUES.
        prompt: tokens that are read at once.
        residual: newest tokens that stay float.
        clock: times tokens.
        start: first tokens of the texts, (B, T).
    Returns: the float cache first.
    """
    from transformers import DynamicCache

    readings = [_Reading("float32", DynamicCache(config=model.config))]
    readings += [_Reading(text, _made_cache(model, text, residual)) for text in formats]
    ids = _written(model, start, prompt + JUDGED)
    with torch.inference_mode():
        for reading in readings:
            _read(model, reading, ids[:, :prompt], None)
        for position in range(prompt, prompt + JUDGED):
            for reading in readings:
                _read(model, reading, ids[:, position : position + 1], clock)
                _judge(reading, readings[0].logits)
    return tuple(_row(reading, readings[0]) for reading in readings)


def _made_cache(model: nn.Module, text: str, residual: int) -> Any:
    """The quantized cache of a format, or of KEYS/VALUES."""
    from chop.ir.huggingface.quantized_cache import QuantizedCache

    keys, slash, values = text.partition("/")
    return QuantizedCache(model, keys, values if slash else None, residual_length=residual)


def _written(model: Any, start: Tensor, length: int) -> Tensor:
    """A text (B, T) that the model samples: its own words are what it is asked to continue."""
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(0)
        more = {"min_new_tokens": length - start.size(1), "max_new_tokens": length - start.size(1)}
        mask = torch.ones_like(start)
        written: Tensor = model.generate(
            start, attention_mask=mask, do_sample=True, top_k=0, **more
        )
    return written[:, :length]


def _read(model: Any, reading: _Reading, ids: Tensor, clock: Clock | None) -> None:
    given = {cache_name(model): reading.cache}

    def call() -> None:
        reading.logits = model(input_ids=ids, **given, use_cache=True).logits[:, -1]

    if clock is None:
        call()
    else:
        reading.seconds += clock.decisive(clock.time(call, 1))


def _judge(reading: _Reading, exact: Tensor) -> None:
    expected, found = (x.double().log_softmax(-1) for x in (exact, reading.logits))
    reading.divergence += (expected.exp() * (expected - found)).sum(-1).mean().item()
    is_same = expected.argmax(-1) == found.argmax(-1)
    reading.same += is_same.double().mean().item()


def _row(reading: _Reading, baseline: _Reading) -> CacheRow:
    float_bytes = sum(
        x.nbytes for layer in baseline.cache.layers for x in (layer.keys, layer.values)
    )
    is_float = reading is baseline
    size_bytes = float_bytes if is_float else reading.cache.size_bytes
    itemsize = baseline.cache.layers[0].keys.itemsize
    return CacheRow(
        reading.name,
        size_bytes,
        float_bytes,
        8 * itemsize * size_bytes / float_bytes,
        reading.divergence / JUDGED,
        reading.same / JUDGED,
        reading.seconds / JUDGED,
        baseline.seconds / reading.seconds,
    )
