"""Binding of call arguments to the inputs of a captured graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from chop.captured.guards.ignored_arguments import why_not_ignorable
from chop.captured.huggingface.cache import new_cache
from chop.captured.huggingface.cache_names import (
    CACHE_NAMES,
    POSITIONS,
    find_cache_name,
    rename_cache,
)
from chop.captured.huggingface.packed_rows import check_packed_rows
from chop.captured.record import CaptureRecord
from chop.captured.specs import TensorSpec
from chop.captured.state.values import same_content
from chop.errors import GuardError


def call_arguments(
    record: CaptureRecord, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and keyword arguments of a model call that reach its graph.

    Positions are those of the model's `forward`, even if the graph takes only some of its
    parameters. Two cases use the positions of the graph itself: its inputs were named at
    capture, or the model's signature names none. The same holds for
    a call with a tensor in the position of the cache, since GPT-2 has its cache before the mask.

    Args:
        record: record of the capture.
        args: in the order of the model's `forward`.
        kwargs: by the names of the model or the graph.
    Returns: positional arguments, empty unless they are those of the graph; and arguments by name,
        including a cache and excluding those that the graph may ignore.

    Raises:
        GuardError: the model would use an argument that the graph lacks, an argument comes twice,
            or there are more than the model takes.
    """
    inputs = (*record.example_inputs, *record.optional_inputs)
    if args and isinstance(args[0], Mapping | str):
        _check_first(record, args[0])
    meant = record.positional[: len(args)]
    # A tensor in the position of the cache means that the call uses the graph's own positions.
    counts_inputs = any(
        name in CACHE_NAMES and isinstance(x, Tensor) for name, x in zip(meant, args, strict=False)
    )
    if meant == inputs[: len(args)] or not record.positional or counts_inputs:
        return args, _accepted_arguments(record, args, kwargs)
    if len(args) > len(meant):
        raise GuardError(
            f"expected at most {len(meant)} arguments by position ({', '.join(meant)}), got "
            f"{len(args)}; pass the others by name"
        )
    twice = [name for name in meant if name in kwargs]
    if twice:
        raise GuardError(f"expected each argument once, got {twice[0]} by position and by name")
    named = dict(zip(meant, args, strict=True)) | {**kwargs}
    try:
        return (), _accepted_arguments(record, (), named)
    except GuardError as error:
        raise GuardError(
            f"{error}; positions follow {record.class_name}.forward ({', '.join(meant)}), so "
            f"pass what is meant for another input by name: {', '.join(inputs)}"
        ) from None


def _check_first(record: CaptureRecord, value: Mapping[str, Any] | str) -> None:
    """Raises GuardError for a text, or inputs by name, at the position of a tensor."""
    name = next(iter(record.positional or record.example_inputs), "")
    if not isinstance(record.example_inputs.get(name), TensorSpec):
        return
    if isinstance(value, str):
        way_out = "tokenize texts: model(**tokenizer(text, return_tensors='pt'))"
    else:
        way_out = "pass inputs by name: model(**inputs)"
    raise GuardError(f"expected {name} as a tensor, got a {type(value).__name__}; {way_out}")


def _accepted_arguments(
    record: CaptureRecord, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    if not record.optional_inputs and kwargs.keys() <= record.example_inputs.keys():
        return dict(kwargs)  # most calls
    given = _with_cache(record, args, kwargs)
    return {name: value for name, value in given.items() if not _drops(record, name, value)}


def _with_cache(
    record: CaptureRecord, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments with a cache in place of `use_cache`, under the graph's name for it."""
    names = [*record.example_inputs, *record.optional_inputs]
    accepted = rename_cache(kwargs, [*names, *record.ignored_inputs, *record.fixed_inputs])
    if record.joins_packed_rows and accepted.get("use_cache") is False:
        check_packed_rows((dict(zip(names, args, strict=False)) | accepted).get(POSITIONS))
    cache = find_cache_name(record.optional_inputs)
    if cache is None or "use_cache" not in accepted:
        return accepted
    asked = accepted.pop("use_cache") and len(args) <= names.index(cache)
    if asked and accepted.get(cache) is None:
        accepted[cache] = new_cache(record.config)
    return accepted


def _drops(record: CaptureRecord, name: str, value: Any) -> bool:
    if name in record.example_inputs or name in record.optional_inputs:
        return False
    if name in record.fixed_inputs:
        fixed = record.fixed_inputs[name]
        if not same_content(value, fixed):
            raise GuardError(
                f"the graph was captured with {name}={_short_text(fixed)}, got "
                f"{name}={_short_text(value)}; "
                "capture the model again with the other value"
            )
        return True
    if name not in record.ignored_inputs and not record.takes_any_keyword:
        return False
    reason = why_not_ignorable(name, value, record.ignored_defaults, [*record.example_inputs])
    if reason:
        raise GuardError(reason)
    return True


def _short_text(value: Any) -> str:
    """Returns a short text of a value, with its type if the text is long."""
    text = repr(value)
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return text if len(text) <= 80 else f"{text[:80]}... ({type(value).__name__})"
