"""Lengths of texts, compared with the positions of a model."""

from __future__ import annotations

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
    tables = [x for x in model.modules() if isinstance(x, nn.Embedding)]
    as_words = (x for x in tables if x.num_embeddings == config.vocab_size)  # in graphs
    words = getattr(model, "get_input_embeddings", partial(next, as_words, None))()
    others = (x for x in tables if x is not words)
    # Tables of OPT have two further rows. Those of RoBERTa count from the row behind padding.
    tables = [x for x in others if 0 <= x.num_embeddings - positions <= 2]
    first = max((x.padding_idx + 1 for x in tables if x.padding_idx is not None), default=0)
    further = f" and {generated} more" if generated else ""
    if tables and length + generated > positions - first:
        raise ConfigError(
            f"{setting}: got {length} tokens{further}, and the model has a table of "
            f"{positions - first} positions: use at most {positions - first - generated}."
        )
    if length + generated <= positions:
        return
    assume(
        f"Texts have up to {length} tokens{further} (--{setting.replace('_', '-')}), and the model "
        f"has {positions} positions (max_position_embeddings): perplexity beyond them is usually "
        "higher."
    )


def text_config(model: nn.Module) -> Any:
    """Returns the configuration of a model of transformers for texts, or None."""
    find = getattr(getattr(model, "config", None), "get_text_config", None)
    return None if find is None else find()
