"""Reference run of a model on whole tensors, with one module in memory at a time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from chop.captured.module import CapturedModule
from chop.distributed.plan import named_tensors
from chop.distributed.runtime import gather
from chop.ir.propagate import GraphRunner
from chop.nn.weight_cache import forget

if TYPE_CHECKING:
    from chop.distributed.source import TensorSource


class ReferenceRunner(GraphRunner):
    """Runs the nodes of a model on one process and fetches each module's tensors for its call.

    Tensors on the meta device are read from the source, or gathered from the sharded model. To
    gather them, every process has to run the same nodes.

    Args:
        before: the model before sharding.
        sharded: the model with DTensors.
        source: source of tensors on the meta device.
        device: device that runs the nodes.
    """

    def __init__(
        self,
        before: CapturedModule,
        sharded: nn.Module,
        source: TensorSource | None,
        device: torch.device,
    ) -> None:
        super().__init__(before)
        self._shards = dict(named_tensors(sharded))
        self._source, self._device = source, device

    def fetch_attr(self, target: str) -> Any:
        """Returns the whole parameter, buffer or module at a path."""
        value = super().fetch_attr(target)
        return self._whole(target, value) if isinstance(value, Tensor) else value

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a module with whole tensors."""
        assert isinstance(self.module, nn.Module)
        module = self.module.get_submodule(target)
        tensors = [*module.named_parameters(), *module.named_buffers()]
        whole = {name: self._whole(f"{target}.{name}", x) for name, x in tensors}
        try:
            return torch.func.functional_call(module, whole, args, kwargs)
        finally:
            # Otherwise weights decoded from codes would stay in memory.
            forget(module)

    def _whole(self, path: str, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(self._device)
        if self._source is not None:
            everything = tuple(slice(0, size) for size in tensor.shape)
            return self._source.read(path, everything).to(self._device)
        whole: Tensor = gather(self._shards[path])
        return whole


def with_same_tensors(model: CapturedModule) -> CapturedModule:
    """Copies a model without its tensors, which are shared and survive in-place sharding."""
    return copy.deepcopy(model, {id(x): x for _, x in named_tensors(model)})
