"""Text generation: `generate` of `transformers` on a graph that takes a cache."""

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
    """Returns the settings of a model's `generation_config`; None if it has none."""
    config: Any = getattr(model, "generation_config", None)
    return None if config is None else dict(json.loads(config.to_json_string()))


def generator(captured: nn.Module, record: CaptureRecord, cls: type[Any] | None) -> Any:
    """Returns a model of the original class without parameters, whose `forward` is a graph.

    Args:
        captured: the graph.
        record: record of the capture.
        cls: the class. Default: the class of `transformers` with the recorded name.

    Raises:
        CaptureError: the graph takes no cache, or the class is unknown.
    """
    if record.why_no_cache:
        raise CaptureError(
            f"generate needs a cache, and the graph of {record.class_name} has no cache: "
            f"{record.why_no_cache}; run mg.to_module().generate()"
        )
    import transformers

    known: Any = getattr(transformers, record.class_name, None) if cls is None else cls
    if not (isinstance(known, type) and issubclass(known, transformers.GenerationMixin)):
        raise CaptureError(
            f"generate: transformers has no generating class {record.class_name}; a model of a "
            "custom class generates only in the process that captured it, since checkpoints hold "
            "no code"
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
    """Returns the recorded settings as a `GenerationConfig`.

    Raises:
        CaptureError: the settings are invalid, as those of a file may be.
    """
    from transformers import GenerationConfig

    settings = record.generation_config
    if settings is None:
        return GenerationConfig.from_model_config(record.config)
    for name in settings:
        # Settings become attributes, and these names would replace functions.
        if name.startswith("__") or callable(getattr(GenerationConfig, name, None)):
            raise CaptureError(f"generation_config: '{name}' is not a setting of generate")
    try:
        return GenerationConfig.from_dict(settings)
    except Exception as error:  # transformers checks types by using the values
        kind = type(error).__name__
        raise CaptureError(f"transformers rejects the generation_config: {kind}: {error}") from None


_graph_classes: MutableMapping[Any, Any] = weakref.WeakValueDictionary()
"""Subclass by generating class, while the subclass has an instance."""


def _graph_class(cls: Any) -> Any:
    """Returns a subclass whose instances run the graph in their attribute `captured`."""
    known = _graph_classes.get(cls)
    if known is None:
        known = _graph_classes[cls] = _new_graph_class(cls)
    return known


def _new_graph_class(cls: Any) -> Any:

    class RunsGraph(cls):  # type: ignore[misc]
        """Subclass without modules: only the input preparation comes from the base class."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Runs the graph, with the mask that `generate` omits if it has no zeros."""
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            ids = given.get("input_ids")
            if ids is not None and not ids.shape[1]:
                raise CaptureError(
                    "generate: expected a prompt of at least one token, or one more than the cache "
                    "holds; reset() clears a cache for another text"
                )
            if ids is not None and given.get("attention_mask") is None:
                tokens = cached_length(find_cache(given)[1], 0) + ids.shape[1]
                given["attention_mask"] = ids.new_ones(ids.shape[0], tokens)
            return self.captured(**given)

        def __getattr__(self, name: str) -> Any:
            """Returns a parameter, buffer or module that the input preparation reads."""
            return getattr(vars(self)["captured"], name)

        @staticmethod
        def create_masks_for_generate(*, attention_mask: Any, **_: Any) -> Any:
            """Leaves the creation of masks to the graph, even for static caches."""
            return attention_mask

        device = property(lambda self: _tensor(self.captured).device)
        dtype = property(lambda self: _tensor(self.captured).dtype)

    signature = inspect.signature(cls.forward)
    names = [*signature.parameters][1:]
    # The graph gives the logits of every position.
    parameters = [p for name, p in signature.parameters.items() if name != "logits_to_keep"]
    RunsGraph.forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    RunsGraph.__name__ = RunsGraph.__qualname__ = cls.__name__
    return RunsGraph


def _tensor(module: nn.Module) -> torch.Tensor:
    """Returns a tensor with the device and dtype of a module, preferably a floating one."""
    tensors = [*module.parameters(), *module.buffers()]
    floating = (x for x in tensors if x.is_floating_point() and x.dtype.itemsize > 1)
    return next(floating, tensors[0] if tensors else torch.empty(0))
