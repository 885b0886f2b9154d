"""Text samples of a compression: greedy continuations by the float and the saved model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.kernels.matmul_precision import matmul_precision
from chop.report.report import Block, Heading, Note, Report, Table
from chop.train.feed import module_mode
from chop.train.model_io import fed_columns, read_output
from chop.train.rows import Rows, has_pictures_in_text
from chop.train.tasks import CAUSAL_LM, TASKS
from chop.workloads.workload import Workload

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from chop.actions.compress.settings import CompressConfig
    from chop.actions.compress.table import Candidate

IDS, MASK = "input_ids", "attention_mask"
MOST_PROMPT, MOST_NEW = 32, 24
"""Maximum lengths in tokens."""


@dataclass(frozen=True)
class Continuation:
    """Continuations of the beginning of a row by two models.

    Attributes:
        prompt: first tokens of the row.
        exact: greedy tokens of the float model.
        saved: greedy tokens of the saved model.
    """

    prompt: tuple[int, ...]
    exact: tuple[int, ...]
    saved: tuple[int, ...]

    @property
    def same(self) -> int:
        """Number of equal tokens before the first difference."""
        pairs = list(zip(self.exact, self.saved, strict=False))
        return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def check_samples(config: CompressConfig, workload: Workload) -> None:
    """Raises ConfigError if `samples` is set for a model that does not generate text."""
    if not config.samples:
        return
    task = workload.task.name
    if task != CAUSAL_LM or IDS not in workload.test.columns:
        raise ConfigError(f"samples: expected a causal language model on texts, got task '{task}'.")
    if has_pictures_in_text(workload.test):
        raise ConfigError("samples: expected 0, since texts with images are not supported.")
    _tokenizer(config)


def _tokenizer(config: CompressConfig) -> PreTrainedTokenizerBase:
    from chop.data.tokenizer import get_tokenizer

    is_given = config.tokenizer is not None
    return get_tokenizer(str(config.tokenizer) if is_given else config.model)


def with_texts(
    report: Report[dict[str, Any]],
    exact: Candidate,
    saved: Candidate,
    workload: Workload,
    config: CompressConfig,
) -> Report[dict[str, Any]]:
    """Adds the continuations of the first test rows to the report of a compression."""
    tokenizer, rows = _tokenizer(config), workload.test
    chosen = rows.take(torch.arange(min(config.samples, len(rows))))
    longest = max(len(_tokens(rows, row)) for row in range(len(rows)))
    samples = [
        _continued(exact.graph.model, saved.graph.model, _tokens(chosen, row), longest, tokenizer)
        for row in range(len(chosen))
    ]
    equal = sum(each.exact == each.saved for each in samples)
    about = (
        f"{equal} of {len(samples)} continuations by float and by {saved.row.format} are equal, "
        "token by token (greedy decoding)."
    )
    table = [_table_row(row, each, tokenizer) for row, each in enumerate(samples)]
    blocks: list[Block] = [Heading("Texts"), Note(about, is_printed=False)]
    blocks += [Table("Continuations of the first test rows", table, is_printed=False)]
    documents = {name: [*written, *blocks] for name, written in report.documents.items()}
    return replace(report, documents=documents, result={**report.result, "texts": table})


def _tokens(rows: Rows, row: int) -> Tensor:
    """Returns the tokens of a row without padding, int64 (T,)."""
    ids = rows.columns[IDS][row]
    return ids[rows.columns[MASK][row].bool()] if MASK in rows.columns else ids


def _continued(
    exact: nn.Module,
    saved: nn.Module,
    tokens: Tensor,
    longest: int,
    tokenizer: PreTrainedTokenizerBase,
) -> Continuation:
    """Continues the first half of a row, at most `MOST_PROMPT` tokens, with two models.

    Args:
        exact: the float model.
        saved: the saved model.
        tokens: int64 (T,), of the row.
        longest: number of tokens that the models are known to accept.
        tokenizer: its end-of-text token ends a continuation.
    """
    prompt = tokens[: max(1, min(MOST_PROMPT, len(tokens) // 2))].tolist()
    most = min(MOST_NEW, longest - len(prompt))
    end = tokenizer.eos_token_id
    continuations = (_greedy(model, prompt, most, end) for model in (exact, saved))
    return Continuation(tuple(prompt), *continuations)


@torch.inference_mode()
def _greedy(model: nn.Module, prompt: Sequence[int], most: int, end: int | None) -> tuple[int, ...]:
    """Returns greedy tokens, computed without a key-value cache."""
    names = fed_columns(model, (IDS, MASK), TASKS[CAUSAL_LM])
    place = next(model.parameters(), torch.empty(0)).device
    tokens = list(prompt)
    with module_mode(model, training=False), matmul_precision("highest"):
        while len(tokens) < len(prompt) + most and end not in tokens[len(prompt) :]:
            ids = torch.tensor([tokens], device=place)
            columns = {IDS: ids, MASK: torch.ones_like(ids)}
            _, logits = read_output(model(**{name: columns[c] for name, c in names.items()}))
            tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


def _table_row(
    row: int, sample: Continuation, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    def text(tokens: Sequence[int]) -> str:
        return f"\u201c{tokenizer.decode(list(tokens), skip_special_tokens=True).strip()}\u201d"

    return {
        "row": row,
        "beginning": text(sample.prompt),
        "float": text(sample.exact),
        "compressed": text(sample.saved),
        "same tokens": f"{sample.same} of {len(sample.exact)}",
    }
