"""Check that a model has an embedding for each token of a data set."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chop.captured.leaves import tensors_in
from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.models.positions import text_config

TABLES = {
    "input_ids": (
        "vocab_size",
        "a vocabulary of {:,} tokens",
        "the token ID",
        "use the tokenizer of the model",
    ),
    "token_type_ids": (
        "type_vocab_size",
        "{:,} types of tokens (type_vocab_size)",
        "the type",
        "use those of the model's tokenizer, or leave them out",
    ),
    "position_ids": (
        "max_position_embeddings",
        "{:,} positions (max_position_embeddings)",
        "the position",
        "count them from 0 in each row, or leave them out",
    ),
}
"""Input -> name of the number of embeddings in configurations, its noun, that of an ID, advice."""


def check_token_ids(
    model: nn.Module,
    columns: Mapping[str, Tensor | list[Tensor]],
    name: str = "",
    data: str = "the data",
) -> None:
    """Checks that no ID is beyond the embeddings of the model.

    The first row with such an ID is run, because a model may replace them before it reads them.

    Args:
        model: a model with the configuration of transformers; others are not checked.
        columns: inputs by name, each (N, T), or N rows of different lengths.
        name: name of the model; default, its class.
        data: name of the data.
    Raises:
        ConfigError: if the model fails on that row.
    """
    config = text_config(model)
    for column, (setting, noun, kind, advice) in TABLES.items():
        count = getattr(config, setting, None)
        if column not in columns or not isinstance(count, int):
            continue
        rows = columns[column]
        if isinstance(rows, Tensor) and rows.dim() == 1 and not _takes(model, _row(columns, 0)):
            raise ConfigError(
                f"{column}: expected rows of tokens (N, T), got one text of {len(rows)} tokens: "
                "pass a list of texts to the tokenizer, tokenizer([text]), or cut the tokens into "
                "rows of 64, tokens.unfold(0, 64, 64)."
            )
        ids = rows if isinstance(rows, Tensor) else torch.cat([x.flatten() for x in rows])
        beyond = ids[(ids < 0) | (ids >= count)]
        if not beyond.numel():
            continue
        wrong = beyond[0]
        row = next(i for i, each in enumerate(rows) if (each == wrong).any())
        if not _takes(model, _row(columns, row)):
            raise ConfigError(
                f"'{name or type(model).__name__}' has {noun.format(count)}, and {data} has "
                f"{kind} {int(wrong):,}: {advice}."
            )


def _row(columns: Mapping[str, Tensor | list[Tensor]], row: int) -> dict[str, Tensor]:
    return {name: column[row][None] for name, column in columns.items()}


def _takes(model: nn.Module, batch: Mapping[str, Tensor]) -> bool:
    """Returns whether a model reads a batch."""
    place = next(model.parameters(), torch.empty(0)).device
    with preserve_state(model), torch.no_grad():
        try:
            output = model.eval()(**{key: value.to(place) for key, value in batch.items()})
            [x.cpu() for x in tensors_in(output)]  # CUDA reports errors later
        except (IndexError, RuntimeError, TypeError, ValueError):
            return False
    return True
