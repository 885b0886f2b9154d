"""Adds low-rank adapters (LoRA) to linear layers and freezes what they stand in for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chop.config import parse, renamed
from chop.ir.graph import MaseGraph
from chop.ir.unreached import unreached_sentence, warn_about_share
from chop.lora.insertion import TrainBias, insert_adapters
from chop.lora.selection import ALL_LINEAR, adapted_linears, modules_named
from chop.nn.lora import check_adapter, refuse_adapters
from chop.passes.base import graph_pass
from chop.quantization.unreached import matrices_of_experts, unreached_matrices

NAME = "insert_lora_adapter_transform_pass"
ALIASES = {"lora_alpha": "alpha", "lora_dropout": "dropout", "r": "rank", "bias": "train_bias"}


@dataclass(frozen=True)
class InsertLoraConfig:
    """Settings of `insert_lora_adapter_transform_pass`; PEFT's names are taken too.

    Attributes:
        rank: of the update (`r`), at least 1.
        alpha: the update is scaled by `alpha / rank` (`lora_alpha`).
        dropout: share of an adapter's inputs that training drops (`lora_dropout`).
        target_modules: which Linears get one. Each entry is a module path, the end of one
            ("query"), a node name or, where it is none of these, a regular expression for a whole
            path. A single string is the same as a list of one. None takes all. "all-linear" takes,
            as in PEFT, all but the output layer of a language model, whose weight is often that of
            the embedding.
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
        config = parse(cls, renamed(settings, ALIASES, NAME), NAME)
        check_adapter(config.rank, config.alpha, config.dropout, NAME)
        return config


@graph_pass(config=InsertLoraConfig.from_settings)
def insert_lora_adapter_transform_pass(mg: MaseGraph, config: InsertLoraConfig) -> dict[str, Any]:
    """Gives Linears a low-rank adapter; by default all of them. No output changes by this.

    What is no linear layer gets none. Where all were meant, a warning (`UnreachedWarning`) says so
    if more than a tenth of the weights are in no layer of the graph, such as fused experts.

    What trains afterwards: the adapters, the modules in `modules_to_save`, and biases if
    `train_bias` says so. **Everything else is frozen**, embeddings and norms too, until
    `fuse_lora_weights_transform_pass` puts it back. A classifier's head is a Linear like the
    others: it gets an adapter, and its own weight and bias stay as they are. PEFT's habit for
    classifiers, to train a freshly drawn head in full, is `"modules_to_save": ["classifier"]`.

    Quantized Linears keep their formats, and a graph may be quantized after the insertion.

    Returns:
        inserted: number of layers.
        trainable_before: number of trainable parameters before.
        trainable_after: number of trainable parameters after.
        layers: one dict per layer: `layer`, its path; `rank`; and its trainable parameters `before`
            and `after`.

    Raises:
        GraphError: the graph has adapters already.
        ConfigError: see `InsertLoraConfig`.

    Source: Hu et al. 2021, arXiv:2106.09685.

    Example config::

        {"rank": 6, "alpha": 1.0, "dropout": 0.5, "target_modules": ["query", "value"]}
    """
    refuse_adapters(mg.model, NAME)
    saved = modules_named(mg, config.modules_to_save, f"{NAME}.modules_to_save")
    targets = adapted_linears(mg, config.target_modules, saved, NAME)
    adapter = {
        "rank": config.rank,
        "alpha": config.alpha,
        "dropout": config.dropout,
        "use_rslora": config.use_rslora,
    }
    if config.target_modules in (None, ALL_LINEAR):
        reached = sum(layer.weight.numel() for layer in targets.values())
        unreached = [*unreached_matrices(mg, formats_count=False), *matrices_of_experts(mg)]
        text = unreached_sentence(unreached, reached, NAME, "get no adapter")
        if text is not None:
            warn_about_share(mg.model, text, NAME)
    return insert_adapters(mg, targets, adapter, saved, config.train_bias)
