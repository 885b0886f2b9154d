"""Insertion of LoRA adapters into linear layers, freezing other parameters."""

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
    """Settings of `insert_lora_adapter_transform_pass`, also under PEFT's names.

    Attributes:
        rank: rank of the update (`r`), at least 1.
        alpha: numerator of the update's scale, `alpha / rank` (`lora_alpha`).
        dropout: dropout of the adapter's inputs in training (`lora_dropout`).
        target_modules: Linear layers that get an adapter; default, all. Each entry is a module
            path, a path suffix ("query"), a node name, or otherwise a regular expression for a
            complete path. A string is a list of one entry. "all-linear", as in PEFT, selects all
            except the output layer of a language model, which often shares its weight with the
            embedding.
        modules_to_save: fully trained modules, by the same kinds of names, which get no adapter.
        train_bias: trained biases: "none", those of the adapted layers ("lora_only"), or "all".
        use_rslora: scales updates by `alpha / sqrt(rank)`.
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
        """Parses a mapping with MASE's or PEFT's names.

        Raises:
            ConfigError: if a key is unknown, given under two names, or a value is out of range.
        """
        config = parse(cls, renamed(settings, ALIASES, NAME), NAME)
        check_adapter(config.rank, config.alpha, config.dropout, NAME)
        return config


@graph_pass(config=InsertLoraConfig.from_settings)
def insert_lora_adapter_transform_pass(mg: MaseGraph, config: InsertLoraConfig) -> dict[str, Any]:
    """Adds low-rank adapters to Linear layers, by default to all, without changing outputs.

    If all layers are selected, it warns (`UnreachedWarning`) when more than a tenth of the weights
    are outside of linear layers, such as in fused experts.

    Adapters, the modules in `modules_to_save`, and the biases of `train_bias` are trainable
    afterwards. **All other parameters are frozen**, including embeddings and norms, until
    `fuse_lora_weights_transform_pass` restores them. The head of a classifier is adapted like other
    Linear layers. To train a new head in full, like PEFT, set `"modules_to_save": ["classifier"]`.

    Quantized Linear layers keep their formats, and the graph may be quantized after the insertion.

    Returns:
        inserted: number of layers.
        trainable_before: number of trainable parameters before.
        trainable_after: number of trainable parameters after.
        layers: one dict per layer: `layer`, its path; `rank`; and its trainable parameters `before`
            and `after`.

    Raises:
        GraphError: if the graph already has adapters.
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
