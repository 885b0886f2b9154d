"""Pruning of a decoder to given sizes, by activations on calibration texts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.captured.state.preserve_state import preserve_state
from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.ir.ops.dimensions import attention
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.private.transformers_api import attention_name, get_constructor
from chop.pruning.decoder.depth import (
    DEPTH,
    WHERE,
    block_influence,
    bypassed,
    cut_lists,
    decoder_layers,
    renumbered,
)
from chop.pruning.settings import PruneConfig, WeightPruning
from chop.pruning.structured import prune_structured

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WIDTH, GROUPS = "intermediate_size", "num_key_value_heads"
SIZES = (DEPTH, WIDTH, GROUPS)
"""Configuration fields of the sizes."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
"""Configuration fields of mixtures of experts."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LARGEST_ERROR = 1e-3
"""Largest relative difference of logits that is rounding, not another computation."""


@dataclass(frozen=True)
class PrunedDecoder:
    """Pruned decoder.

    Attributes:
        model: model of the original class with a smaller configuration, in eval mode.
        block_influence: one number per layer of the original; empty if all layers stay.
        layers: numbers of the remaining layers in the original.
        parameters: number of parameters before and after.
    """

    model: PreTrainedModel
    block_influence: tuple[float, ...]
    layers: tuple[int, ...]
    parameters: tuple[int, int]


def prune_decoder(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    num_hidden_layers: int | None = None,
    intermediate_size: int | None = None,
    num_key_value_heads: int | None = None,
) -> PrunedDecoder:
    """Prunes a decoder of transformers to given sizes.

    Layers with the lowest block influence are removed first. Then each layer loses the MLP channels
    and the attention groups (a key-value head with its query heads) with the smallest activations.
    The result needs no chop: `save_pretrained` writes it, and `from_pretrained` reads it.

    Args:
        model: decoder such as Llama, Qwen or SmolLM. It is not changed.
        batches: calibration texts, as inputs of the model by name: `input_ids` and, with padding,
            `attention_mask`.
        num_hidden_layers: number of layers to keep. Default: all.
        intermediate_size: MLP width to keep in each layer. Default: all.
        num_key_value_heads: number of key-value heads to keep in each layer. Default: all.
    Returns: the pruned model, with the importance of layers.

    Raises:
        ConfigError: a size is not smaller than the model's, or the model cannot be pruned.
    """
    given = (num_hidden_layers, intermediate_size, num_key_value_heads)
    sizes = {name: size for name, size in zip(SIZES, given, strict=True) if size is not None}
    _check_model(model)
    _check_sizes(model.config, sizes)
    texts = [_text(batch, model) for batch in batches]
    if not texts:
        raise ConfigError(f"{WHERE}.batches: expected at least one batch of texts.")
    before = model.num_parameters()
    influence: Sequence[float] = ()
    numbers = list(range(getattr(model.config, DEPTH)))
    pruned = model
    if DEPTH in sizes:
        influence = block_influence(model, texts)
        ranked = sorted(numbers, key=influence.__getitem__, reverse=True)
        numbers = sorted(ranked[: sizes[DEPTH]])
        pruned = _without_layers(model, numbers, texts[0])
    if pruned is model:
        pruned = copy.deepcopy(model)
    if sizes.keys() - {DEPTH}:
        pruned = _narrowed(pruned, sizes, texts)
    after = pruned.num_parameters()
    return PrunedDecoder(pruned.eval(), tuple(influence), tuple(numbers), (before, after))


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
        raise ConfigError(f"{WHERE}: give at least one of {', '.join(SIZES)}.")
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
        raise ConfigError(f"{WHERE}.batches: expected mappings with 'input_ids' of a tokenizer.")
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
    with torch.random.fork_rng(devices=[]), no_init_weights():
        made = get_constructor(type(model))(config, dtype=model.dtype)
    try:
        # A graph has more tensors than its model, such as constants.
        made.load_state_dict({name: state[name] for name in made.state_dict() if name in state})
    except RuntimeError as error:
        raise ConfigError(
            f"{WHERE}: the configuration of {type(model).__name__} does not describe the pruned "
            f"weights: {str(error).splitlines()[-1].strip()}"
        ) from None
    made.tie_weights()
    made.generation_config = copy.deepcopy(model.generation_config)
    return made.to(model.device).eval()


def _without_layers(
    model: PreTrainedModel, numbers: Sequence[int], batch: Mapping[str, Tensor]
) -> PreTrainedModel:
    """Returns the model with only some layers.

    Raises:
        ConfigError: it differs from the original with the other layers bypassed.
    """
    path, layers = decoder_layers(model)
    config = copy.deepcopy(model.config)
    cut_lists(config, numbers)
    made = _rebuilt(model, config, renumbered(model.state_dict(), path, numbers))
    gone = [number for number in range(len(layers)) if number not in numbers]
    with bypassed(layers, gone):
        expected = _logits(model, batch)
    _check_equal(made, expected, batch)
    return made


def _narrowed(
    model: PreTrainedModel, sizes: Mapping[str, int], texts: Sequence[Mapping[str, Tensor]]
) -> PreTrainedModel:
    """Returns the model with narrower MLPs and fewer attention groups.

    Args:
        model: decoder, which is changed.
        sizes: sizes to keep, by field of the configuration.
        texts: calibration texts.

    Raises:
        ConfigError: a layer cannot be narrowed.
    """
    implementation = attention_name(model.config)
    if implementation == "eager" and not getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("sdpa")  # its heads can be traced, and it computes the same
    mg = MaseGraph(model.eval())
    for name, granularity in ((WIDTH, "channel"), (GROUPS, "head")):
        if name in sizes and sizes[name] < getattr(model.config, name):
            _prune_units(mg, model, name, granularity, sizes[name], texts)
    made = _rebuilt(model, copy.deepcopy(mg.model.record.config), mg.model.state_dict())
    made.set_attn_implementation(implementation)
    _check_equal(made, _logits(mg.model, texts[0]), texts[0])
    return made


def _prune_units(
    mg: MaseGraph,
    model: PreTrainedModel,
    name: str,
    granularity: str,
    size: int,
    texts: Sequence[Mapping[str, Tensor]],
) -> None:
    """Removes channels or attention groups of every layer, down to a size."""
    present = getattr(model.config, name)
    if name == GROUPS and not any(mg.operator(node).follow is attention for node in mg.nodes):
        raise ConfigError(
            f"{WHERE}: {name} of {type(model).__name__} cannot be reduced, because its attention "
            f"is no call of scaled_dot_product_attention; leave {name} out."
        )
    weight = WeightPruning(1 - size / present, "activation", granularity=granularity)
    include = _wide_layers(model, present) if granularity == "channel" else None
    info = prune_structured(mg, PruneConfig(weight, include=include, batches=texts), weight)
    now = getattr(mg.model.record.config, name)
    if now != size:
        path, reason = next(iter(info["skipped"].items()), ("a layer", "its layers differ"))
        raise ConfigError(
            f"{WHERE}: {name} of {type(model).__name__} cannot be reduced to {size}, because of "
            f"'{path}': {reason}."
        )


def _wide_layers(model: PreTrainedModel, width: int) -> tuple[str, ...]:
    """Returns the paths of the linear layers that compute MLP channels.

    Raises:
        ConfigError: there are none.
    """
    path, _ = decoder_layers(model)
    wide = tuple(
        name
        for name, module in model.named_modules()
        if name.startswith(f"{path}.")
        and "mlp" in name.split(".")
        and isinstance(module, nn.Linear)
        and module.out_features == width
    )
    if not wide:
        raise ConfigError(
            f"{WHERE}: {WIDTH}: {type(model).__name__} has no linear layers in 'mlp' with {width} "
            f"outputs (gate and up in one layer cannot be narrowed); leave {WIDTH} out."
        )
    return wide


@torch.no_grad()
def _logits(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    with preserve_state(model):
        logits: Tensor = model.eval()(**batch, use_cache=False).logits
    return logits


def _check_equal(model: Any, expected: Tensor, batch: Mapping[str, Tensor]) -> None:
    """Raises ConfigError if a rebuilt model does not compute the expected logits."""
    mask = batch["attention_mask"].bool()
    given, wanted = _logits(model, batch)[mask], expected.detach()[mask]
    # Products of other shapes round differently, by the precision of the model.
    error = (given.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30)
    if not float(error) <= max(LARGEST_ERROR, 8 * torch.finfo(model.dtype).eps):
        raise ConfigError(
            f"{WHERE}: the pruned {type(model).__name__} differs from the original without the "
            f"removed parts (relative error {float(error):.1e}); its layers depend on more than "
            "their configuration."
        )
