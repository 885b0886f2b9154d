"""Lengths of texts, compared with the positions of a model."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from torch import nn

from chop.base.notices import assume
from chop.errors import ConfigError


def check_positions(
    length: int | None, model: nn.Module, setting: str = "max_length", generated: int = 0
) -> None:
    """Checks that texts are not longer than the model's positions.

    Rotary positions have no end, so that longer texts are an assumption of the report.

    Args:
        length: largest number of tokens of a text; None is not checked.
        model: model of transformers, or its graph. Other models are not checked.
        setting: name of the setting with the length.
        generated: number of tokens that the model reads after them.
    Raises:
        ConfigError: if they are longer than the model's table of positions.
    """
    config = text_config(model)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or length is None:
        return
    tables = _tables(model, config, positions)
    first = max((x.padding_idx + 1 for x in tables if x.padding_idx is not None), default=0)
    further = f" and {generated} more" if generated else ""
    if tables and length + generated > positions - first:
        raise ConfigError(
            f"{setting}: got {length} tokens{further}, and the model has a table of "
            f"{positions - first} positions: use at most {positions - first - generated}."
        )
    _assume_results(length, generated, positions, None)


def warn_about_positions(length: int, model: nn.Module, log: logging.Logger) -> None:
    """Warns, and records the assumption, if rows are longer than the model's rotary positions.

    Args:
        length: number of tokens of the longest row.
        model: see `check_positions`. One with a table of positions refuses longer rows itself.
        log: logger of the warning.
    """
    config = text_config(model)
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and length > positions and not _tables(model, config, positions):
        _assume_results(length, 0, positions, log)


def _assume_results(
    length: int, generated: int, positions: int, log: logging.Logger | None
) -> None:
    if length + generated > positions:
        further = f" and {generated} more" if generated else ""
        assume(
            f"Texts have up to {length} tokens{further}, and the model has {positions} positions "
            "(max_position_embeddings): perplexity beyond them is usually higher. Shorten the "
            "texts to avoid it.",
            log,
        )


def _tables(model: nn.Module, config: Any, positions: int) -> list[nn.Embedding]:
    """Returns the embeddings of positions."""
    tables = [x for x in model.modules() if isinstance(x, nn.Embedding)]
    as_words = (x for x in tables if x.num_embeddings == config.vocab_size)  # in graphs
    words = getattr(model, "get_input_embeddings", partial(next, as_words, None))()
    others = (x for x in tables if x is not words)
    # Tables of OPT have two further rows. Those of RoBERTa count from the row behind padding.
    return [x for x in others if 0 <= x.num_embeddings - positions <= 2]


def text_config(model: nn.Module) -> Any:
    """Returns the configuration of a model of transformers for texts, or None."""
    find = getattr(getattr(model, "config", None), "get_text_config", None)
    return None if find is None else find()
