"""Modules that stand in for a recording: for torch's own transformer, and for fused experts.

In evaluation torch's layers hand all their parameters to one fused kernel, and on padded batches
the encoder computes on nested tensors. For a recording they make way for subclasses that compute
the same in single operators, on the same tensors. Fused experts of transformers make way for
layers, see `chop.captured.layers.experts`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from chop.captured.layers.attention import ProjectedAttention, Slices, why_not_projected
from chop.captured.layers.experts import FusedExperts, Matrices, matrices_by_parameter
from chop.captured.leaves import has_gradient_hooks
from chop.captured.module_tree import STANDS_FOR
from chop.captured.runtime import FastPathPadding
from chop.private.modules import own_children, set_members

PADDING = "padding"
"""The child of a `PlainEncoder` that writes zeros where torch's nested tensors have nothing."""


class PlainEncoderLayer(nn.TransformerEncoderLayer):
    """`nn.TransformerEncoderLayer` without the fused kernel."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Same arguments and result as torch's layer; see there."""
        x, masks = src, (src_mask, src_key_padding_mask)
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *masks, is_causal=is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, *masks, is_causal=is_causal))
        y: Tensor = self.norm2(x + self._ff_block(x))
        return y


class PlainEncoder(nn.TransformerEncoder):
    """`nn.TransformerEncoder` without nested tensors."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Same arguments and result as torch's encoder; see there.

        The hint `is_causal` changes no result, so that a mask is not searched for one.
        """
        x, padding = src, src_key_padding_mask
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=bool(is_causal), src_key_padding_mask=padding)
        if PADDING in self._modules and padding is not None and mask is None and x.dim() == 3:
            x = self._modules[PADDING](x, padding)  # type: ignore[misc]
        return x if self.norm is None else self.norm(x)


class PlainDecoder(nn.TransformerDecoder):
    """`nn.TransformerDecoder` that does not search its mask for a causal one."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Same arguments and result as torch's decoder; see there."""
        x = tgt
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return x if self.norm is None else self.norm(x)


_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    nn.TransformerEncoderLayer: PlainEncoderLayer,
    nn.TransformerEncoder: PlainEncoder,
    nn.TransformerDecoder: PlainDecoder,
}


Chosen = Callable[[nn.Module, str], bool]
"""Says by module and path which modules stay, with all that is in them."""


@contextlib.contextmanager
def single_operators(model: nn.Module, stays: Chosen) -> Iterator[nn.Module]:
    """Puts modules that can be recorded in the places of those that cannot, inside the block.

    Yields: the model, or what stands in for it where it is itself such a module.
    """
    swaps: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        yield _Swap(stays, swaps).get_twin(model, "")
    finally:
        for parent, name, child in reversed(swaps):
            own_children(parent)[name] = child


class _Swap:
    """What stands in for the modules of one model; shared modules and parameters stay shared.

    Args:
        stays: which modules are left.
        swaps: takes parent, name and the child that was there.
    """

    def __init__(self, stays: Chosen, swaps: list[tuple[nn.Module, str, nn.Module]]) -> None:
        self._stays = stays
        self._swaps = swaps
        self._twins: dict[int, nn.Module] = {}
        self._originals: list[nn.Module] = []  # an id holds as long as its object
        self._slices: Slices = {}
        self._matrices: Matrices = {}

    def get_twin(self, module: nn.Module, path: str) -> nn.Module:
        """What stands in for a module, itself for most, with its children changed."""
        if id(module) in self._twins:
            return self._twins[id(module)]
        self._originals.append(module)
        twin = self._twins[id(module)] = _twin(module, self._slices, self._matrices)
        for name, child in list(own_children(twin).items()):
            inner = f"{path}.{name}" if path else name
            if child is None or self._stays(child, inner):
                continue
            other = self.get_twin(child, inner)
            if other is not child:
                self._swaps.append((twin, name, child))
                own_children(twin)[name] = other
        return twin


def has_single_operators(model: nn.Module) -> bool:
    """Whether something in a model stands in for a module of another class."""
    return any(STANDS_FOR in vars(module) for module in model.modules())


def _twin(module: nn.Module, shared: Slices, matrices: Matrices) -> nn.Module:
    """What stands in for a module; itself for most."""
    if has_gradient_hooks(module) or isinstance(module, torch.jit.ScriptModule):
        return module
    if isinstance(module, nn.MultiheadAttention):
        return module if why_not_projected(module) else ProjectedAttention.around(module, shared)
    if matrices_by_parameter(module):
        return FusedExperts.around(module, matrices)
    for cls, plain in _PLAIN.items():
        if isinstance(module, cls) and _runs(module, cls) and _knows_layers(module):
            return _as_plain(module, plain)
    return module


def _runs(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether the forward of a module is that of a class."""
    return type(module).forward is cls.forward and "forward" not in vars(module)


def _knows_layers(module: nn.Module) -> bool:
    """Whether the layers of a stack are torch's: others may read the hint `is_causal`."""
    layers = own_children(module).get("layers")
    return all(
        isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
        for layer in (layers.children() if layers is not None else ())
    )


def _as_plain(module: nn.Module, plain: type[nn.Module]) -> nn.Module:
    twin: nn.Module = plain.__new__(plain)
    nn.Module.__init__(twin)
    twin.__dict__.update(vars(module))
    set_members(twin, children=dict(own_children(module)))
    vars(twin)[STANDS_FOR] = type(module)
    if plain is PlainEncoder and getattr(module, "use_nested_tensor", False):
        checks_mask = bool(getattr(module, "mask_check", True))
        own_children(twin)[PADDING] = FastPathPadding(checks_mask).train(module.training)
    return twin


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Inside, torch's attention and transformers take the way of single operators."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
