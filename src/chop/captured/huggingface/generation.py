"""Generation of text: `generate` of transformers on a graph that takes a cache."""

from __future__ import annotations

import copy
import inspect
import json
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from chop.captured.huggingface.cache import cached_length
from chop.captured.huggingface.cache_names import find_cache
from chop.errors import CaptureError

if TYPE_CHECKING:
    from chop.captured.record import CaptureRecord


def generation_settings(model: nn.Module) -> dict[str, Any] | None:
    """What a model's `generation_config` sets; None where it has none."""
    config: Any = getattr(model, "generation_config", None)
    return None if config is None else dict(json.loads(config.to_json_string()))


def generator(captured: nn.Module, record: CaptureRecord, cls: type[Any] | None) -> Any:
    """A model of the original class that has no parameters, and whose `forward` is a graph.

    Args:
        captured: the graph.
        record: of the graph.
        cls: the class; None: the one of transformers by the name that the graph knows.

    Raises:
        CaptureError: the graph takes no cache, or no class is known.
    """
    if record.why_no_cache:
        raise CaptureError(
            f"generate needs a graph with a cache, and that of {record.class_name} has none: "
            f"{record.why_no_cache}; run mg.to_module().generate()"
        )
    import transformers

    known: Any = getattr(transformers, record.class_name, None) if cls is None else cls
    if not (isinstance(known, type) and issubclass(known, transformers.GenerationMixin)):
        raise CaptureError(
            f"generate: {record.class_name} is no class of transformers that has it; a model of a "
            "class of your own generates where it was captured, as checkpoints hold no code"
        )
    if not isinstance(record.config, transformers.PreTrainedConfig):
        kind = type(record.config).__name__
        raise CaptureError(f"generate needs a configuration of transformers, got {kind}")
    generates: Any = known
    model = nn.Module.__new__(_graph_class(generates))
    nn.Module.__init__(model)
    vars(model).update(
        captured=captured,
        config=copy.deepcopy(record.config),
        generation_config=build_generation_config(record),
        training=captured.training,
    )
    return model


def build_generation_config(record: CaptureRecord) -> Any:
    """The settings of a record as transformers takes them.

    Raises:
        CaptureError: they are none, as a file may have them.
    """
    from transformers import GenerationConfig

    settings = record.generation_config
    if settings is None:
        return GenerationConfig.from_model_config(record.config)
    for name in settings:
        # Settings become attributes; these would take the place of functions.
        if name.startswith("__") or callable(getattr(GenerationConfig, name, None)):
            raise CaptureError(f"generation_config: '{name}' is no setting of generate")
    try:
        return GenerationConfig.from_dict(settings)
    except Exception as error:  # transformers checks types by using the values
        kind = type(error).__name__
        raise CaptureError(
            f"generation_config is not one of transformers: {kind}: {error}"
        ) from None


_graph_classes: MutableMapping[Any, Any] = weakref.WeakValueDictionary()
"""Class that generates -> its subclass, as long as that has an instance."""


def _graph_class(cls: Any) -> Any:
    """A subclass that runs the graph which an instance has as `captured`."""
    known = _graph_classes.get(cls)
    if known is None:
        known = _graph_classes[cls] = _new_graph_class(cls)
    return known


def _new_graph_class(cls: Any) -> Any:

    class OfGraph(cls):  # type: ignore[misc]
        """Has no modules: only what prepares the inputs of `forward` is of the class."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Runs the graph, with the mask that `generate` drops where it has no zeros."""
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            ids = given.get("input_ids")
            if ids is not None and given.get("attention_mask") is None:
                tokens = cached_length(find_cache(given)[1], 0) + ids.shape[1]
                given["attention_mask"] = ids.new_ones(ids.shape[0], tokens)
            return self.captured(**given)

        def __getattr__(self, name: str) -> Any:
            """A parameter, buffer or module, which what prepares inputs may read."""
            return getattr(vars(self)["captured"], name)

        @staticmethod
        def create_masks_for_generate(*, attention_mask: Any, **_: Any) -> Any:
            """Leaves the mask to the graph, also where a cache is static."""
            return attention_mask

        device = property(lambda self: _tensor(self.captured).device)
        dtype = property(lambda self: _tensor(self.captured).dtype)

    signature = inspect.signature(cls.forward)
    names = [*signature.parameters][1:]
    # The graph gives the logits of every position.
    kept = [p for name, p in signature.parameters.items() if name != "logits_to_keep"]
    OfGraph.forward.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    OfGraph.__name__ = OfGraph.__qualname__ = cls.__name__
    return OfGraph


def _tensor(module: nn.Module) -> torch.Tensor:
    """A tensor that tells the device and dtype of a module, a floating one if there is one."""
    tensors = [*module.parameters(), *module.buffers()]
    floating = (x for x in tensors if x.is_floating_point() and x.dtype.itemsize > 1)
    return next(floating, tensors[0] if tensors else torch.empty(0))
