"""Pruning of a decoder to given sizes, by activations on calibration texts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError, describe
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.private.transformers_api import get_constructor
from chop.pruning.decoder.axes import (
    HIDDEN,
    SIZES,
    Units,
    build_empty,
    find_axes,
    layer_number,
    resize,
    slice_state,
)
from chop.pruning.decoder.depth import DEPTH, WHERE, block_influence, decoder_layers, renumbered
from chop.pruning.decoder.importance import highest, unit_importance
from chop.pruning.decoder.masks import masked

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
"""Configuration fields of mixtures of experts."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST_ERROR = 1e-3
"""Largest relative difference of logits that is rounding, not another computation."""
COMPARED = 2
"""Number of texts on which a pruned model is compared with the original."""


@dataclass(frozen=True)
class PrunedDecoder:
    """Pruned decoder.

    Attributes:
        model: model of the original class with a smaller configuration, in eval mode.
        block_influence: one number per layer of the original; empty if all layers stay.
        layers: numbers of the remaining layers in the original.
        parameters: number of parameters before and after.
        matched: path of a remaining layer in the model -> its path in the original, for
            `chop.train.Distillation`; {} if all layers stay.
    """

    model: PreTrainedModel
    block_influence: tuple[float, ...]
    layers: tuple[int, ...]
    parameters: tuple[int, int]
    matched: Mapping[str, str]


def prune_decoder(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    num_hidden_layers: int | None = None,
    intermediate_size: int | None = None,
    num_key_value_heads: int | None = None,
    hidden_size: int | None = None,
) -> PrunedDecoder:
    """Prunes a decoder of transformers to given sizes.

    Layers with the lowest block influence are removed. Each remaining layer loses the MLP channels
    and the attention groups (a key-value head with its query heads) with the smallest activations,
    and the residual stream the channels with the smallest outputs of norms. All parts are ranked
    once, on the original. The result needs no chop: `save_pretrained` writes it, and
    `from_pretrained` reads it.

    Args:
        model: decoder such as Llama, Qwen or SmolLM. It is not changed.
        batches: calibration texts, as inputs of the model by name: `input_ids` and, with padding,
            `attention_mask`.
        num_hidden_layers: number of layers to keep. Default: all.
        intermediate_size: MLP width to keep in each layer. Default: all.
        num_key_value_heads: number of key-value heads to keep in each layer. Default: all.
        hidden_size: number of channels of the residual stream to keep. The sizes of heads stay.
            Default: all.
    Returns: the pruned model, with the importance of layers.

    Raises:
        ConfigError: a size is larger than the model's, or the model cannot be pruned.
    """
    given = (num_hidden_layers, intermediate_size, num_key_value_heads, hidden_size)
    sizes = {name: size for name, size in zip(SIZES, given, strict=True) if size is not None}
    return RankedDecoder(model, batches, sizes).prune(sizes)


class RankedDecoder:
    """Decoder whose parts are ranked once, to be pruned to several sizes.

    Args:
        model: decoder of transformers. It is not changed.
        batches: calibration texts, as for `prune_decoder`.
        sizes: smallest sizes to prune to, by field of the configuration. Only these parts are
            ranked.

    Raises:
        ConfigError: a size is larger than the model's, or the model cannot be pruned.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batches: Iterable[Mapping[str, Tensor]],
        sizes: Mapping[str, int],
    ) -> None:
        _check_model(model)
        _check_sizes(model.config, sizes)
        texts = [_text(batch, model) for batch in batches]
        if not texts:
            raise ConfigError(f"{WHERE}.batches: expected at least one batch of texts.")
        self.model = model
        self.counts = {field: getattr(model.config, field) for field in sizes}
        self.path, _ = decoder_layers(model)
        self.axes = find_axes(model, sizes)
        self.influence = tuple(block_influence(model, texts)) if DEPTH in sizes else ()
        self.importance = unit_importance(model, texts, self.axes, self.counts)
        self._compared = {name: x[:COMPARED] for name, x in texts[0].items()}

    def prune(self, sizes: Mapping[str, int]) -> PrunedDecoder:
        """Returns the decoder with given sizes.

        Args:
            sizes: size by field of the configuration; fields that are not ranked stay.
        Raises:
            ConfigError: the class does not accept the sizes, or the model computes another function
                than the original without the removed parts.
        """
        layers = self._choose_layers(sizes)
        units = self._choose_units(sizes, layers)
        state = slice_state(self.model.state_dict(), self.axes, units, self.counts, self.path)
        config = resize(self.model.config, sizes, layers)
        made = _rebuilt(self.model, config, renumbered(state, self.path, layers))
        with masked(self.model, self.axes, units, self.counts, layers):
            expected = _logits(self.model, self._compared)
        _check_equal(made, expected, self._compared, sizes)
        is_shallower = len(layers) < getattr(self.model.config, DEPTH)
        return PrunedDecoder(
            made,
            self.influence,
            tuple(layers),
            (self.model.num_parameters(), made.num_parameters()),
            {f"{self.path}.{i}": f"{self.path}.{n}" for i, n in enumerate(layers)}
            if is_shallower
            else {},
        )

    def count_parameters(self, sizes: Mapping[str, int]) -> int:
        """Returns the number of parameters at given sizes, without building a model.

        Args:
            sizes: size by field of the configuration; fields that are not ranked stay.
        """
        layers, count = self._choose_layers(sizes), 0
        for name, parameter in self.model.named_parameters():
            if layer_number(name, self.path) in (None, *layers):
                lengths = list(parameter.shape)
                for axis, field in self.axes.get(name, {}).items():
                    remaining = sizes.get(field, self.counts[field])
                    lengths[axis] = lengths[axis] // self.counts[field] * remaining
                count += math.prod(lengths)
        return count

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raises ConfigError if the class does not accept the sizes.

        Args:
            sizes: size by field of the configuration; fields that are not ranked stay.
        """
        build_empty(self.model, resize(self.model.config, sizes, self._choose_layers(sizes)))

    def _choose_layers(self, sizes: Mapping[str, int]) -> list[int]:
        if DEPTH not in sizes:
            return list(range(getattr(self.model.config, DEPTH)))
        return highest(torch.tensor(self.influence), sizes[DEPTH]).tolist()

    def _choose_units(self, sizes: Mapping[str, int], layers: Sequence[int]) -> Units:
        """Returns the units that stay: those with the largest importance in remaining layers."""
        totals: dict[tuple[str, int | None], Tensor] = {}
        for (field, path), importance in self.importance.items():
            number = layer_number(path, self.path)
            if number is None or number in layers:
                key = field, None if field == HIDDEN else number
                totals[key] = totals.get(key, 0) + importance
        return {
            (field, number): highest(total, sizes[field])
            for (field, number), total in totals.items()
            if field in sizes
        }


# --- refusals ------------------------------------------------------------------------------------


def _check_model(model: Any) -> None:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel) or getattr(model.config, DEPTH, None) is None:
        raise ConfigError(
            f"{WHERE}: expected a decoder of transformers such as LlamaForCausalLM, got a "
            f"{type(model).__name__}."
        )
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) or not model.can_generate():
        raise ConfigError(f"{WHERE}: {name} is not a decoder that generates text.")
    if any(getattr(model.config, field, None) for field in EXPERTS):
        raise ConfigError(
            f"{WHERE}: {name} is a mixture of experts, whose experts and router cannot be pruned."
        )
    for path, module in model.named_modules():
        if isinstance(module, PackedOperator | QuantizedOperator):
            raise ConfigError(
                f"{WHERE}: '{path}' is quantized; prune the float model, then quantize it."
            )
    other = next((x.dtype for x in model.parameters() if x.dtype not in FLOATS), None)
    if other is not None:
        raise ConfigError(f"{WHERE}: the model is quantized ({other}); prune the float model.")
    if hasattr(model, "peft_config"):
        raise ConfigError(f"{WHERE}: the model has adapters; merge or unload them first.")


def _check_sizes(config: Any, sizes: Mapping[str, int]) -> None:
    if not sizes:
        raise ConfigError(f"{WHERE}: pass at least one of {', '.join(SIZES)}.")
    for name, size in sizes.items():
        present = getattr(config, name, None)
        if not isinstance(present, int):
            raise ConfigError(
                f"{WHERE}: {name} of this model is {present!r}, expected one number for all layers."
            )
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= present:
            raise ConfigError(
                f"{WHERE}: {name}: expected a number from 1 to {present}, the model's, got {size}."
            )


def _text(batch: Mapping[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns tokens and mask of a batch on the model's device; labels do not matter."""
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise ConfigError(
            f"{WHERE}.batches: expected a list of mappings with 'input_ids', such as "
            f"[tokenizer(texts, return_tensors='pt')], got {describe(batch)} in it."
        )
    ids = batch["input_ids"].to(model.device)
    mask = batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask.to(ids)
    return {"input_ids": ids, "attention_mask": mask}


# --- rebuilding ----------------------------------------------------------------------------------


def _rebuilt(model: PreTrainedModel, config: Any, state: Mapping[str, Tensor]) -> PreTrainedModel:
    """Returns a model of the same class with another configuration and copied weights.

    Raises:
        ConfigError: the configuration does not describe the weights.
    """
    from transformers.initialization import no_init_weights

    if hasattr(config, "quantization_config"):
        del config.quantization_config  # of the file that the float weights were read from
    build_empty(model, config)
    with torch.random.fork_rng(devices=[]), no_init_weights():
        made = get_constructor(type(model))(config, dtype=model.dtype)
    try:
        made.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigError(
            f"{WHERE}: the configuration of {type(model).__name__} does not describe the pruned "
            f"weights: {str(error).splitlines()[-1].strip()}"
        ) from None
    made.tie_weights()
    made.generation_config = copy.deepcopy(model.generation_config)
    return made.to(model.device).eval()


@torch.no_grad()
def _logits(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    with preserve_state(model):
        logits: Tensor = model.eval()(**batch, use_cache=False).logits
    return logits


def _check_equal(
    model: Any, expected: Tensor, batch: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> None:
    """Raises ConfigError if a pruned model does not compute the expected logits."""
    mask = batch["attention_mask"].bool()
    given, wanted = _logits(model, batch)[mask], expected.detach()[mask]
    # Products of other shapes round differently, by the precision of the model.
    error = (given.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
    if not float(error) <= max(LARGEST_ERROR, 8 * torch.finfo(model.dtype).eps):
        wanted_sizes = ", ".join(f"{field} {size}" for field, size in sizes.items())
        raise ConfigError(
            f"{WHERE}: {type(model).__name__} cannot be reduced to {wanted_sizes}: the result "
            f"differs from the original without the removed parts (relative error "
            f"{float(error):.1e}), because its layers depend on these sizes in another way too."
        )
