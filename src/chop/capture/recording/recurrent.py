"""Fake kernels of recurrent layers and packed sequences.

torch's fake kernels of recurrent layers unroll the loop over time, which would fix the length.
Those of packed sequences return other shapes than the real ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from chop.capture.recording.eager_output import with_grad_history
from chop.capture.sizes.symbols import Sizes
from chop.captured.leaves import tensors_in
from chop.private.torch_api import PACK_PADDED_SEQUENCE, PAD_PACKED_SEQUENCE


class RecurrentKernels:
    """Shape rules of one recording.

    Args:
        sizes: creates data-dependent sizes: the longest length, the sum of lengths.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._batch: dict[int, Any] = {}

    def rule(self, function: Any) -> Any:
        """Returns the replacement of a torch function on fake tensors; most functions replace
        themselves.
        """
        if function is PACK_PADDED_SEQUENCE:
            return self._pack
        return self._pad if function is PAD_PACKED_SEQUENCE else function

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        batch, time = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
        steps = self._sizes.unbacked_size(1, time)
        rows = self._sizes.unbacked_size(1, None)
        data = with_grad_history(
            x.new_empty((rows, *x.shape[2:]), requires_grad=False), x.requires_grad
        )
        batch_sizes = torch.empty(steps, dtype=torch.int64)
        # The number of rows is not in the packed data. The tensor is stored to keep its identity.
        self._batch[id(batch_sizes)] = (batch_sizes, batch)
        return data, batch_sizes

    def _pad(
        self, data: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, steps: Any
    ) -> tuple[Tensor, Tensor]:
        batch = self._get_batch(batch_sizes)
        shape = (batch, steps) if batch_first else (steps, batch)
        padded = data.new_empty((*shape, *data.shape[1:]))
        return with_grad_history(padded, data.requires_grad), torch.empty(batch, dtype=torch.int64)

    def _get_batch(self, batch_sizes: Tensor) -> Any:
        known = self._batch.get(id(batch_sizes))
        return known[1] if known is not None else self._sizes.unbacked_size(1, None)

    def outputs(self, module: nn.RNNBase, x: Any, hx: Any = None) -> Any:
        """Returns the outputs of LSTM, GRU and RNN.

        Args:
            module: the layer.
            x: `[time, batch, features]`, `[batch, time, features]`, `[time, features]` or a packed
                sequence.
            hx: initial state; it does not affect the shapes.
        """
        packed = isinstance(x, PackedSequence)
        data = x.data if packed else x
        trained = any(t.requires_grad for t in (data, *tensors_in(hx), *module.parameters()))
        directions = 2 if module.bidirectional else 1
        width = module.proj_size or module.hidden_size

        def empty(*shape: Any) -> Tensor:
            return with_grad_history(data.new_empty(shape), trained)

        if packed:
            batch: tuple[Any, ...] = (self._get_batch(x.batch_sizes),)
        else:
            batch = () if x.dim() == 2 else (x.shape[0] if module.batch_first else x.shape[1],)

        def state(features: int) -> Tensor:
            return empty(module.num_layers * directions, *batch, features)

        output: Any = empty(*data.shape[:-1], directions * width)
        if packed:
            output = PackedSequence(output, *x[1:])
        if isinstance(module, nn.LSTM):
            return output, (state(width), state(module.hidden_size))
        return output, state(width)
