"""Reference run of a model on whole tensors, of which a process holds one module's."""

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
    """Runs the nodes of a model as one process would, each module's tensors fetched for its call.

    Tensors on the meta device are read from the source; without one they are gathered from the
    sharded model, and every process has to run the same nodes.

    Args:
        before: the model before it was sharded.
        sharded: the same on DTensors.
        source: where tensors on the meta device are read from.
        device: on which the nodes run.
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
        """The parameter, buffer or module at a path, whole."""
        found = super().fetch_attr(target)
        return self._whole(target, found) if isinstance(found, Tensor) else found

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a module with its tensors whole."""
        assert isinstance(self.module, nn.Module)
        module = self.module.get_submodule(target)
        tensors = [*module.named_parameters(), *module.named_buffers()]
        whole = {name: self._whole(f"{target}.{name}", x) for name, x in tensors}
        try:
            return torch.func.functional_call(module, whole, args, kwargs)
        finally:
            # Else what it decoded from the codes would stay.
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
    """A copy of a model that shares its tensors: they stay when the model is sharded in place."""
    return copy.deepcopy(model, {id(x): x for _, x in named_tensors(model)})
