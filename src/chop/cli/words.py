"""Checks of the words of a command line before its options are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from chop.base.trust import TRUST
from chop.cli.command import ALIASES, COMMANDS_WITH, load
from chop.errors import MOST_NAMES, enumerate_names, named_options

NUMBER = re.compile(r"[\d.:]+")
"""Number or range in a list of them."""
SINGLE = re.compile(r"\d+(\.\d+)?")
"""Number without a range."""
THOUSANDS = re.compile(r"\d{3}")
"""Group of digits after a blank, as in 4 000."""
UNIT = re.compile(r"[kmgt]?i?b|bytes?|[mun]?s|sec|seconds|min|minutes|h|[kmg]hz|bits?|%", re.I)
"""Unit after a blank, as in 4 GB."""
SWITCHES = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)
"""Meaning of a value after a switch."""

OTHER_TOOLS = {
    **dict.fromkeys(
        ("bits", "num-bits", "nbits", "n-bits", "wbits", "w-bits", "width", "precision"),
        ("widths", "formats", "bits"),
    ),
    **dict.fromkeys(
        ("gpus", "num-gpus", "devices", "processes", "nproc", "nproc-per-node", "world-size"),
        ("mesh",),
    ),
    **dict.fromkeys(
        ("tp", "tp-size", "tensor-parallel-size"),
        ("mesh",),
    ),
    "gpu": ("mesh", "device"),
    **dict.fromkeys(("bs", "batch"), ("batch-size", "batch-sizes")),
    "save-dir": ("out",),
    "ptq": ("formats",),
}
"""Options of this package, best first, by option of other tools."""
CLOSE = 0.65
"""Minimum similarity of a suggested option."""


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


def without_switch_values(params: Sequence[Any], words: list[str]) -> list[str]:
    """Returns words with `--keep-best false` as `--no-keep-best`, and `--keep-best true` as itself.

    Args:
        params: options and arguments of the command.
        words: all words of the command line.
    """
    names = {
        name: (param.opts[0], next(iter(param.secondary_opts), ""), is_on)
        for param in params
        if param.param_type_name == "option" and param.is_flag
        for is_on, spellings in ((True, param.opts), (False, param.secondary_opts))
        for name in spellings
    }
    read: list[str] = []
    rest = [*words]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        meaning = SWITCHES.get((value if equals else next(iter(rest), "")).casefold())
        if name not in names or meaning is None or (not equals and Path(rest[0]).exists()):
            read.append(f"{name}{equals}{value}")
            continue
        rest = rest[not equals :]
        on, off, is_on = names[name]
        read += [on] if meaning == is_on else [off] * bool(off)
    return read


def explain_option(ctx: Any, params: Sequence[Any], option: str) -> None:
    """Rejects an option of other tools or commands with a hint, unless it looks like a typo.

    Args:
        ctx: context of the command.
        params: options and arguments of the command.
        option: the unknown option; "" if another error occurred.
    """
    if advice := ctx.command.advice.get(option):
        ctx.fail(f"No such option: {option}. {advice}")
    own = [each for p in params for each in (*p.opts, *p.secondary_opts)]
    known = (f"--{name}" for name in OTHER_TOOLS.get(option.lstrip("-"), ()))
    if meant := next((name for name in known if name in own), ""):
        ctx.fail(f"No such option: {option}. Use {meant}.")
    if get_close_matches(option, own, cutoff=0.8):
        return
    if option and (others := _other_commands(option)):
        listed = enumerate_names(others, MOST_NAMES)
        names_code = option in ("--model", "--reference") and any(TRUST in p.opts for p in params)
        way_out = f" To use code that a run names, pass {TRUST}." * names_code
        ctx.fail(f"No such option: {option}. Other commands have it: {listed}.{way_out}")
    if option and not get_close_matches(option.lstrip("-"), [x.lstrip("-") for x in own], 1, CLOSE):
        ctx.fail(f"No such option: {option}")


def note_missing_options(ctx: Any, message: str) -> str:
    """Returns a sentence about the options in a message that only other commands have, or no text.

    Args:
        ctx: context of the command that failed.
        message: message of the error.
    """
    own = {name for p in ctx.command.params for name in (*p.opts, *p.secondary_opts)}
    owners = {x: _other_commands(x) for x in named_options(message) if x not in own}
    missing = {option: commands for option, commands in owners.items() if commands}
    if not missing:
        return ""
    first, *others = missing.values()
    common = [name for name in first if all(name in each for each in others)]
    where = f"; {common[0]} has" if common else "; other commands have"
    no, them = ("no", "it") if len(missing) == 1 else ("none of", "them")
    return f" {ctx.command_path} has {no} {', '.join(missing)}{where} {them}."


def _other_commands(option: str) -> list[str]:
    """Returns the commands with an option, by its name on the command line."""
    names = {alias: name for name, alias in ALIASES.items()}
    name = option.lstrip("-").removeprefix("no-").replace("-", "_")
    commands: list[str] = load(COMMANDS_WITH)(names.get(name, name))
    return commands


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
    _check_blanks(ctx, options, words)
    _check_files(ctx, options, words, extra)
    _check_lists(ctx, options, arguments, words, extra)
    if extra and "--model" in options and not arguments:
        ctx.fail(
            f"Got '{extra[0]}', and this command has no arguments: pass the model with --model, "
            "and data with --dataset."
        )


def _has_value(param: Any) -> bool:
    return param.param_type_name == "option" and not param.is_flag


def _check_blanks(ctx: Any, options: dict[str, Any], words: list[str]) -> None:
    """Rejects a number with a blank inside or before its unit, as in `--memory 4 GB`."""
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        value, *rest = [value] * bool(equals) + words[i + 1 :] or [""]
        option = options.get(name)
        if option is None or not SINGLE.fullmatch(value):
            continue
        groups = [*takewhile(THOUSANDS.fullmatch, rest)]
        unit = next(filter(UNIT.fullmatch, rest[len(groups) : len(groups) + 1]), "")
        if not groups + [unit] * bool(unit) or Path((groups or [unit])[0]).exists():
            continue
        is_text = not option.multiple and option.type_descriptor.annotation is str
        if groups and option.multiple:
            continue
        whole = "".join([value, *groups])
        if unit and not is_text:
            share = f", as in {name} {float(whole) / 100:g}" * (unit == "%")
            ctx.fail(f"{name}: write one number without '{unit}', in the option's unit{share}.")
        ctx.fail(f"{name}: write its value without a blank, as in {name} {whole}{unit}.")


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
