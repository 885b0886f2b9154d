"""Adds low-rank adapters (LoRA) to linear layers and freezes what they stand in for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from chop.config import parse
from chop.errors import ConfigError, did_you_mean
from chop.ir.graph import MaseGraph
from chop.lora.layers import attach, linears_of
from chop.nn.lora import LoraLinear, adapters_of, check_adapter, freeze, refuse_adapters
from chop.passes.base import graph_pass
from chop.passes.module.report_trainable_parameters import ParameterCount

NAME = "insert_lora_adapter_transform_pass"
ALIASES = {"lora_alpha": "alpha", "lora_dropout": "dropout", "r": "rank", "bias": "train_bias"}
TrainBias = Literal["none", "lora_only", "all"]
Names = Mapping[str, Sequence[str]]
"""What each module may be called, by its path."""


@dataclass(frozen=True)
class InsertLoraConfig:
    """Settings of `insert_lora_adapter_transform_pass`; PEFT's names are taken too.

    Attributes:
        rank: of the update (`r`), at least 1.
        alpha: the update is scaled by `alpha / rank` (`lora_alpha`).
        dropout: share of an adapter's inputs that training drops (`lora_dropout`).
        target_modules: which Linears get one. Each entry is a module path, the end of one
            ("query"), a node name or, where it is none of these, a regular expression for a whole
            path. A single string is the same as a list of one. None and "all-linear" take all.
        modules_to_save: modules, named in the same ways, that train in full and get no adapter.
        train_bias: which biases train: "none", those of the adapted layers ("lora_only"), "all".
        use_rslora: scale by `alpha / sqrt(rank)`.
    """

    rank: int = 8
    alpha: float = 8.0
    dropout: float = 0.0
    target_modules: tuple[str, ...] | str | None = None
    modules_to_save: tuple[str, ...] = ()
    train_bias: TrainBias = "none"
    use_rslora: bool = False

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> InsertLoraConfig:
        """From MASE's or PEFT's mapping.

        Raises:
            ConfigError: a key is unknown, given under two names, or a value is out of range.
        """
        named: dict[str, Any] = {}
        for key, value in settings.items():
            name = ALIASES.get(key, key)
            if name in named:
                raise ConfigError(f"{NAME}: '{name}' is given twice, once as '{key}'; drop one.")
            named[name] = value
        config = parse(cls, named, NAME)
        check_adapter(config.rank, config.alpha, config.dropout, NAME)
        return config

    def saved(self, mg: MaseGraph) -> set[str]:
        """Paths of the modules that train in full."""
        names = {path: (path,) for path, _ in mg.model.named_modules() if path}
        return set(_named(self.modules_to_save, names, f"{NAME}.modules_to_save", "module"))

    def targets(self, mg: MaseGraph) -> dict[str, nn.Linear]:
        """The Linears that get an adapter, by path.

        Raises:
            ConfigError: an entry matches none, or nothing is left to adapt.
        """
        linears, saved = linears_of(mg), self.saved(mg)
        entries = self.target_modules
        if entries is None or entries == "all-linear":
            entries = tuple(linears)
        elif isinstance(entries, str):
            entries = (entries,)
        names = {path: (path, *_node_names(mg, path)) for path in linears}
        chosen = _named(entries, names, f"{NAME}.target_modules", "Linear")
        kept = [path for path in chosen if not _is_inside(path, saved)]
        if not kept:
            raise ConfigError(f"{NAME}: no Linear is left to adapt: the graph has {len(linears)}.")
        return {path: linears[path] for path in kept}


@graph_pass(config=InsertLoraConfig.from_settings)
def insert_lora_adapter_transform_pass(mg: MaseGraph, config: InsertLoraConfig) -> dict[str, Any]:
    """Gives Linears a low-rank adapter; by default all of them. No output changes by this.

    What is no `nn.Linear` gets none, such as the `Conv1D` of GPT-2 in transformers.

    What trains afterwards: the adapters, the modules in `modules_to_save`, and biases if
    `train_bias` says so. **Everything else is frozen**, embeddings and norms too, until
    `fuse_lora_weights_transform_pass` puts it back. A classifier's head is a Linear like the
    others: it gets an adapter, and its own weight and bias stay as they are. PEFT's habit for
    classifiers, to train a freshly drawn head in full, is `"modules_to_save": ["classifier"]`.

    Quantised Linears keep their formats, and a graph may be quantised after the insertion.

    Returns: `{"inserted": number of layers, "trainable_before": parameters, "trainable_after":
        parameters, "layers": [row]}` with the rows `layer`, `rank`, `before` and `after`
        (trainable parameters of the layer).

    Raises:
        GraphError: the graph has adapters already.
        ConfigError: see `InsertLoraConfig`.

    Source: Hu et al. 2021, arXiv:2106.09685.

    Example config::

        {"rank": 6, "alpha": 1.0, "dropout": 0.5, "target_modules": ["query", "value"]}
    """
    refuse_adapters(mg.model, NAME)
    targets = config.targets(mg)
    before = {path: ParameterCount.of(linear).trainable for path, linear in targets.items()}
    trainable_before = ParameterCount.of(mg.model).trainable
    freeze(mg.model)
    shape: dict[str, Any] = {
        "rank": config.rank,
        "alpha": config.alpha,
        "dropout": config.dropout,
        "use_rslora": config.use_rslora,
    }
    attach(mg, {path: LoraLinear.around(linear, **shape) for path, linear in targets.items()})
    train_also(mg, config.saved(mg), config.train_bias)
    rows = [
        {"layer": path, "rank": layer.rank, "before": before[path], "after": count.trainable}
        for path, layer in adapters_of(mg.model).items()
        if (count := ParameterCount.of(layer))
    ]
    return {
        "inserted": len(targets),
        "trainable_before": trainable_before,
        "trainable_after": ParameterCount.of(mg.model).trainable,
        "layers": rows,
    }


def train_also(mg: MaseGraph, saved: Iterable[str], train_bias: TrainBias) -> None:
    """Unfreezes whole modules, and the biases that `train_bias` names."""
    for path in saved:
        for parameter in mg.model.get_submodule(path).parameters():
            parameter.requires_grad_(True)
    owners = mg.model.modules() if train_bias == "all" else adapters_of(mg.model).values()
    for module in owners if train_bias != "none" else ():
        bias = module._parameters.get("bias")
        if bias is not None:
            bias.requires_grad_(True)


def _node_names(mg: MaseGraph, path: str) -> list[str]:
    return [n.name for n in mg.nodes if n.op == "call_module" and n.target == path]


def _is_inside(path: str, parents: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{parent}.") for parent in parents)


def _named(entries: Iterable[str], names: Names, where: str, what: str) -> dict[str, None]:
    """The paths that the entries name, in the order of `names`.

    Raises:
        ConfigError: an entry names none.
    """
    chosen: set[str] = set()
    for entry in entries:
        found = _by_name(entry, names) or _by_pattern(entry, names)
        if not found:
            ends = names if "." in entry else {path.rpartition(".")[2] for path in names}
            near = did_you_mean(entry, ends)
            raise ConfigError(f"{where}: no {what} in this graph matches '{entry}': {near}")
        chosen |= found
    return {path: None for path in names if path in chosen}


def _by_name(entry: str, names: Names) -> set[str]:
    return {p for p, known in names.items() if entry in known or p.endswith(f".{entry}")}


def _by_pattern(entry: str, names: Names) -> set[str]:
    try:
        pattern = re.compile(entry)
    except re.error:
        return set()
    return {path for path in names if pattern.fullmatch(path)}
