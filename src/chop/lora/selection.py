"""Selection of layers with adapters and of fully trained modules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import nn

from chop.errors import ConfigError, did_you_mean
from chop.ir.graph import MaseGraph
from chop.ir.huggingface.heads import output_layer_path
from chop.lora.layers import list_linears

ALL_LINEAR = "all-linear"
Names = Mapping[str, Sequence[str]]
"""Names of each module by its path."""


def modules_named(mg: MaseGraph, entries: Iterable[str], where: str) -> set[str]:
    """Returns the paths of modules that match entries: a path, a path suffix, or a pattern.

    Raises:
        ConfigError: if an entry matches no module.
    """
    names = {path: (path,) for path, _ in mg.model.named_modules() if path}
    return set(_named(entries, names, where, "module"))


def adapted_linears(
    mg: MaseGraph, entries: Sequence[str] | str | None, saved: Collection[str], where: str
) -> dict[str, nn.Linear]:
    """Returns the Linear layers that get an adapter, by path.

    Args:
        mg: the graph.
        entries: paths, path suffixes, node names or patterns; None selects all, and "all-linear",
            as in PEFT, all except the output layer of a language model.
        saved: paths of fully trained modules, whose layers get no adapter.
        where: name of the pass, for messages.

    Raises:
        ConfigError: if an entry matches no layer, or no layer remains.
    """
    linears = list_linears(mg)
    if entries is None:
        entries = tuple(linears)
    elif entries == ALL_LINEAR:
        head = output_layer_path(mg.model)
        entries = tuple(path for path in linears if path != head)
    elif isinstance(entries, str):
        entries = (entries,)
    names = {path: (path, *_node_names(mg, path)) for path in linears}
    chosen = _named(entries, names, f"{where}.target_modules", "Linear")
    adapted = [path for path in chosen if not _is_inside(path, saved)]
    if not adapted:
        raise ConfigError(f"{where}: no Linear remains to adapt; the graph has {len(linears)}.")
    return {path: linears[path] for path in adapted}


def _node_names(mg: MaseGraph, path: str) -> list[str]:
    return [n.name for n in mg.nodes if n.op == "call_module" and n.target == path]


def _is_inside(path: str, parents: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{parent}.") for parent in parents)


def _named(entries: Iterable[str], names: Names, where: str, what: str) -> dict[str, None]:
    """Returns the paths that the entries match, in the order of `names`.

    Raises:
        ConfigError: if an entry matches nothing.
    """
    chosen: set[str] = set()
    for entry in entries:
        matches = _by_name(entry, names) or _by_pattern(entry, names)
        if not matches:
            ends = names if "." in entry else {path.rpartition(".")[2] for path in names}
            near = did_you_mean(entry, ends)
            raise ConfigError(f"{where}: no {what} in this graph matches '{entry}': {near}")
        chosen |= matches
    return {path: None for path in names if path in chosen}


def _by_name(entry: str, names: Names) -> set[str]:
    return {p for p, known in names.items() if entry in known or p.endswith(f".{entry}")}


def _by_pattern(entry: str, names: Names) -> set[str]:
    try:
        pattern = re.compile(entry)
    except re.error:
        return set()
    return {path for path in names if pattern.fullmatch(path)}
