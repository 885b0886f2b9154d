"""Texts of conversations, and of prompts with completions, for language models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from chop.base.files.library_errors import library_errors
from chop.base.notices import assume
from chop.errors import ConfigError, describe

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedTokenizerBase

PROMPT, COMPLETION = "prompt", "completion"
"""Columns whose texts, or conversations, follow one another."""
SPEAKER, SPEECH = "from", "value"
"""Keys of a message in ShareGPT's files."""
ROLES = {"human": "user", "gpt": "assistant"}
"""Speakers of ShareGPT's files and the roles that chat templates know."""


def join_completions(splits: DatasetDict) -> DatasetDict:
    """Appends the column `completion` to the column `prompt`, without a space between them."""
    assume("Each text is a prompt and its completion, without a space between them.")
    return splits.map(_joined, batched=True, remove_columns=COMPLETION)


def write_conversations(
    splits: DatasetDict, tokenizer: PreTrainedTokenizerBase, name: str
) -> DatasetDict:
    """Replaces the conversations of a column by their texts, in the tokenizer's chat template.

    Args:
        splits: rows.
        tokenizer: tokenizer of the texts. A first token that it adds itself is left out of them.
        name: column; another one than conversations is returned as it is.
    Raises:
        ConfigError: if there is no chat template, or it rejects a conversation.
    """
    keys = _message_keys(splits["train"], name)
    if keys is None:
        return splits
    if not tokenizer.chat_template:
        raise ConfigError(
            f"column '{name}' has conversations, and the tokenizer has no chat template: choose "
            "the tokenizer of a chat model with --tokenizer (checkpoint= in Python), or save each "
            "conversation as a text in a column 'text'."
        )
    assume(f"The conversations in '{name}' are texts in the chat template of the tokenizer.")
    first = tokenizer("a")["input_ids"][0]
    is_added = first == tokenizer.bos_token_id
    prefix = str(tokenizer.bos_token) if is_added else ""
    write = partial(_written, tokenizer=tokenizer, name=name, keys=keys, prefix=prefix)
    problem = f"has a chat template that rejects a conversation of the column '{name}'"
    with library_errors(tokenizer.name_or_path or "tokenizer", error=ConfigError, problem=problem):
        return splits.map(write, batched=True)


def _message_keys(split: Dataset, name: str) -> tuple[str, str] | None:
    """Returns the keys of the role and the content of a message; None for other columns."""
    feature: Any = split.features.get(name)
    item: Any = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    pairs = (("role", "content"), (SPEAKER, SPEECH))
    is_message = isinstance(item, Mapping)
    return next((x for x in pairs if is_message and {*x} <= item.keys()), None)


def conversation_columns(split: Dataset) -> list[str]:
    """Returns the columns of conversations: lists of messages with a role and a content."""
    return [name for name in split.column_names if _message_keys(split, name)]


def _joined(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    pairs = [*zip(rows[PROMPT], rows[COMPLETION], strict=True)]
    for a, b in pairs:
        if type(a) is not type(b) or not isinstance(a, str | list):
            raise ConfigError(
                f"columns '{PROMPT}' and '{COMPLETION}': expected two texts or two conversations "
                f"in each row, got {describe(a)} and {describe(b)}."
            )
    return {PROMPT: [a + b for a, b in pairs]}


def _written(
    rows: dict[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    keys: tuple[str, str],
    prefix: str,
) -> dict[str, list[Any]]:
    role, content = keys
    texts: list[str | None] = []
    for messages in rows[name]:
        if role == SPEAKER:
            messages = [
                {"role": ROLES.get(x[role], x[role]), "content": x[content]} for x in messages or ()
            ]
        text = tokenizer.apply_chat_template(messages, tokenize=False) if messages else None
        texts.append(text and text.removeprefix(prefix))
    return {name: texts}
