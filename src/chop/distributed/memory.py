"""Memory of a forward pass: bytes of simultaneously live tensors, real or fake."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from chop.base.nested import tree_map
from chop.distributed.collectives import buffer_bytes, is_silent
from chop.kernels.packed import workspace_bytes
from chop.private.dtensor import is_deciding, is_wait
from chop.private.symbolic_shapes import outside_fake_mode
from chop.private.torch_api import TorchDispatchMode


class MemoryMeter(TorchDispatchMode):
    """Dispatch mode that measures the memory of tensors created within it.

    Attributes:
        live: current bytes.
        peak: largest `live` since `restart`.
    """

    def __init__(self, known: Iterable[Tensor] = (), backend: str = "gloo") -> None:
        """Starts with no tensors.

        Args:
            known: existing tensors, which do not count.
            backend: backend of the collectives, which may need buffers.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._backend = backend
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._note(tensor, 0)

    def restart(self) -> None:
        """Restarts the peak measurement."""
        self.peak = self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs and measures an operator on local tensors."""
        from torch.distributed.tensor import DTensor

        # DTensor then runs its own dispatch, which calls the operators on local tensors.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if is_silent(func):  # returns its input, but fake tensors would count new memory
            return args[0] if is_wait(func) else result
        with outside_fake_mode():  # kernels cache tables of formats, which need real values
            hidden = workspace_bytes(func, args)
        hidden += buffer_bytes(func, args, result, self._backend)
        tree_map(lambda x: self._note(x) if isinstance(x, Tensor) else None, result)
        self.peak = max(self.peak, self.live + hidden)
        return result

    def _note(self, tensor: Tensor, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._seen or tensor.device.type == "meta" or is_deciding():
            return
        size = storage.nbytes() if size is None else size
        key = id(storage)

        def gone(_: Any) -> None:
            self.live -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)
