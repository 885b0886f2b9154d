"""Checks of the words of a command line before its options are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from chop.cli.command import ALIASES, COMMANDS_WITH, load

NUMBER = re.compile(r"[\d.:]+")
"""Number or range in a list of them."""


def without_argument_names(params: Sequence[Any], words: list[str]) -> list[str]:
    """Returns words with an argument that is written like an option, as `--model RUN`, as itself.

    Args:
        params: options and arguments of the command.
        words: all words of the command line.
    """
    names = {f"--{p.name}" for p in params if p.param_type_name == "argument"}
    prefixes = tuple(f"{name}=" for name in names)
    values = (x.partition("=")[2] if x.startswith(prefixes) else x for x in words)
    return [word for word in values if word not in names]


def explain_option(ctx: Any, params: Sequence[Any], option: str) -> None:
    """Rejects an option of other commands with their names, unless it looks like a typo.

    Args:
        ctx: context of the command.
        params: options and arguments of the command.
        option: the unknown option; "" if another error occurred.
    """
    if get_close_matches(option, [each for p in params for each in p.opts], cutoff=0.8):
        return
    names = {alias: name for name, alias in ALIASES.items()}
    name = option.lstrip("-").removeprefix("no-").replace("-", "_")
    if option and (others := load(COMMANDS_WITH)(names.get(name, name))):
        ctx.fail(f"No such option: {option}. Other commands have it: {others}.")


def check_words(ctx: Any, params: Sequence[Any], words: list[str], extra: list[str]) -> None:
    """Rejects several files after an option, lists with blanks, and arguments in place of options.

    Args:
        ctx: context of the command.
        params: options and arguments of the command.
        words: all words of the command line.
        extra: words that are neither options nor arguments.
    """
    options = {n: p for p in params if _has_value(p) for n in p.opts}
    arguments = [p for p in params if p.param_type_name == "argument"]
    _check_files(ctx, options, words, extra)
    _check_lists(ctx, options, arguments, words, extra)
    if extra and "--model" in options and not arguments:
        ctx.fail(
            f"Got '{extra[0]}', and this command has no arguments: pass the model with --model, "
            "and data with --dataset."
        )


def _has_value(param: Any) -> bool:
    return param.param_type_name == "option" and not param.is_flag


def _check_files(ctx: Any, options: dict[str, Any], words: list[str], extra: list[str]) -> None:
    """Rejects a second file after an option, as from `--dataset *.csv` in a shell.

    The argument RUN may have taken the second file.
    """
    for name, first, second in zip(words, words[1:], words[2:], strict=False):
        if name in options and (first.endswith(",") or second.startswith(",")):
            ctx.fail(f"{name}: write its list without blanks, as in a,b, not {first} {second}")
        if name not in options or options[name].multiple:
            continue
        if second.startswith("-") or not Path(second).exists():
            continue
        is_data = name == "--dataset"
        are_alike = Path(second).is_file() and Path(second).suffix == Path(first).suffix
        if second in extra or are_alike:
            what = "file or folder" if is_data else "value"
            advice = f"put {first} and {second} into a folder and pass the folder"
            advice = advice if is_data else f"leave out {second}"
            ctx.fail(f"{name} takes one {what}: {advice}.")


def _check_lists(
    ctx: Any,
    options: dict[str, Any],
    arguments: Sequence[Any],
    words: list[str],
    extra: list[str],
) -> None:
    """Rejects a list with blanks, as in `--formats 8.auto 4.auto`."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        option, values = options.get(name), [value] if equals else words[i + 1 : i + 2]
        rest = words[i + 1 + (not equals) :]
        more = [*takewhile(lambda each: not each.startswith("-"), rest)]
        if option is None or not more:
            continue
        values += more
        is_list = option.multiple or all(map(NUMBER.fullmatch, values))
        is_argument = any(p.required for p in arguments) or Path(more[0]).exists()
        if not extra and (is_argument or not is_list):
            continue
        if (option.metavar or "").startswith("NAME="):
            listed = " ".join(f"{name} {each}" for each in values)
            ctx.fail(f"{name}: repeat the option for each value, as in {listed}")
        if option.multiple or option.type_descriptor.annotation is str:
            blank = "" if option.multiple else ", and a text with blanks in quotes"
            ctx.fail(f"{name}: write a list with commas, as in {','.join(values)}{blank}")
