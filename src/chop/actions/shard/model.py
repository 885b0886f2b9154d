"""Model to shard: its graph, the source of its weights, and example inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from chop.actions.shard.settings import ShardConfig
from chop.base.hub import hub_is_reachable
from chop.captured.specs import TensorSpec, map_specs
from chop.errors import ConfigError, UnavailableError, did_you_mean, first_line
from chop.ir.graph import MaseGraph, dummy_inputs
from chop.ir.storage.checkpoint import find_checkpoint
from chop.models import BUILTIN_MODELS, builtin_model, is_own, load_model

if TYPE_CHECKING:
    from chop.distributed.source import TensorSource

FILES = ["*.json", "*.safetensors"]
"""Files of a hub repository: configuration and weights."""


@dataclass(frozen=True)
class ShardedModel:
    """Model to shard.

    Attributes:
        graph: graph of the model, without weights if there is a source.
        inputs: inputs of a small forward by name; the same on every process.
        source: source from which each process reads its part of the weights. None: the graph has
            them.
    """

    graph: MaseGraph
    inputs: Mapping[str, Any]
    source: TensorSource | None = None

    @classmethod
    def of(cls, config: ShardConfig) -> ShardedModel:
        """Loads the model that the settings name.

        Raises:
            ConfigError: if there is no such model, or its weights cannot be read in parts.
            CheckpointError: if files are missing or broken.
            UnavailableError: if a hub name is neither in the local cache nor reachable.
        """
        checkpoint = find_checkpoint(config.model)
        if checkpoint is not None:
            return cls._from_checkpoint(checkpoint, config)
        if is_own(config.model):
            raise ConfigError(
                f"model '{config.model}': expected a built-in model, a Hugging Face folder or hub "
                "name, or a checkpoint. Export its graph with MaseGraph(model).export(PATH), and "
                "pass PATH."
            )
        if builtin_model(config.model):
            if config.task is not None:
                raise ConfigError(
                    f"task: built-in model '{config.model}' has its own; leave task out."
                )
            mg = _without_cache(load_model(config.model, seed=config.seed))
            return cls(mg, _example(mg, config))
        return cls._from_folder(_folder(config.model), config)

    @classmethod
    def _from_checkpoint(cls, checkpoint: Path, config: ShardConfig) -> ShardedModel:
        from chop.distributed.load import CheckpointSource, meta_graph

        if config.task is not None:
            raise ConfigError(f"task: checkpoint '{checkpoint}' has its own; leave task out.")
        mg = meta_graph(checkpoint)
        mg.model.eval()
        return cls(mg, _example(mg, config), CheckpointSource(checkpoint))

    @classmethod
    def _from_folder(cls, folder: Path, config: ShardConfig) -> ShardedModel:
        from chop.models.meta import meta_model, weights_source

        model = meta_model(folder, task=config.task)
        inputs = dummy_inputs(model, None, config.batch, config.length, device="cpu")
        mg = _without_cache(model)
        return cls(mg, inputs, weights_source(model, folder, mg.model))


def whole_graph(config: ShardConfig) -> MaseGraph:
    """Returns the graph of the same model with all its weights."""
    checkpoint = find_checkpoint(config.model)
    if checkpoint is not None:
        return MaseGraph.from_checkpoint(checkpoint)
    return _without_cache(load_model(config.model, task=config.task, seed=config.seed))


def _without_cache(model: nn.Module) -> MaseGraph:
    """Captures a model without a key-value cache, with the same nodes with and without weights."""
    return MaseGraph(model, hf_input_names=[*dummy_inputs(model)])


def _folder(name: str) -> Path:
    """Returns the local folder of a model, after downloading it from the hub if needed."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    reachable = hub_is_reachable()
    try:
        downloaded = snapshot_download(name, allow_patterns=FILES, local_files_only=not reachable)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = first_line(error) if reachable else "the hub cannot be reached"
        raise UnavailableError(
            f"'{name}' is not a local folder or checkpoint, and not in the hub's cache ({reason}). "
            f"Pass a local folder, or a built-in model: {did_you_mean(name, BUILTIN_MODELS)}"
        ) from error
    return Path(downloaded)


def _example(mg: MaseGraph, config: ShardConfig) -> dict[str, Any]:
    """Returns example inputs as in the capture, with batch and length of the settings if dynamic.

    The first dimension is the batch; other dimensions of integer inputs (tokens) are the length.
    """
    given: dict[str, Any] = mg.model.record.example_inputs
    shapes = {
        str(node.target): node.meta["spec"].shape
        for node in mg.nodes
        if node.op == "placeholder" and isinstance(given.get(str(node.target)), TensorSpec)
    }
    sizes: dict[str | int, int] = {}
    for name, shape in shapes.items():
        is_tokens = not given[name].dtype.is_floating_point
        for dim, size in enumerate(shape):
            if isinstance(size, str) and (dim == 0 or is_tokens):
                sizes[size] = config.length if dim else config.batch
    resized = {
        name: replace(given[name], shape=tuple(map(sizes.get, shape, given[name].shape)))
        for name, shape in shapes.items()
    }
    generator = torch.Generator().manual_seed(0)

    def draw(spec: Any) -> Any:
        return spec.dummy(generator) if isinstance(spec, TensorSpec) else spec

    specs: Any = given | resized
    return dict(map_specs(draw, specs, lambda _, named: SimpleNamespace(**named)))
