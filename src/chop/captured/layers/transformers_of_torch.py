"""Substitutes for modules during a recording: torch's own transformer and fused experts.

In evaluation torch's layers pass all parameters to one fused kernel, and the encoder computes
padded batches on nested tensors. Subclasses replace them during a recording and compute the same
with single operators on the same tensors. Fused experts of `transformers` are replaced by layers,
see `chop.captured.layers.experts`.
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
"""Child of a `PlainEncoder` that writes zeros at padding, which torch's nested tensors omit."""


class PlainEncoderLayer(nn.TransformerEncoderLayer):
    """`nn.TransformerEncoderLayer` without the fused kernel."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Has the arguments and the result of torch's layer."""
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
        """Has the arguments and the result of torch's encoder.

        The hint `is_causal` does not change the result, so the search for a causal mask is skipped.
        """
        x, padding = src, src_key_padding_mask
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=bool(is_causal), src_key_padding_mask=padding)
        if PADDING in self._modules and padding is not None and mask is None and x.dim() == 3:
            x = self._modules[PADDING](x, padding)  # type: ignore[misc]
        return x if self.norm is None else self.norm(x)


class PlainDecoder(nn.TransformerDecoder):
    """`nn.TransformerDecoder` without the search for a causal mask."""

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
        """Has the arguments and the result of torch's decoder."""
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
"""Predicate on module and path that selects the modules to keep, with their submodules."""


@contextlib.contextmanager
def single_operators(model: nn.Module, stays: Chosen) -> Iterator[nn.Module]:
    """Replaces modules that cannot be recorded by equivalent ones inside the block.

    Yields: the model, or its substitute if the model itself is such a module.
    """
    swaps: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        yield _Swap(stays, swaps).get_twin(model, "")
    finally:
        for parent, name, child in reversed(swaps):
            own_children(parent)[name] = child


class _Swap:
    """Substitutes for the modules of one model, which preserve sharing.

    Args:
        stays: selects modules to keep.
        swaps: receives parent, name and original child of each substitution.
    """

    def __init__(self, stays: Chosen, swaps: list[tuple[nn.Module, str, nn.Module]]) -> None:
        self._stays = stays
        self._swaps = swaps
        self._twins: dict[int, nn.Module] = {}
        self._originals: list[nn.Module] = []  # ids stay valid as long as their objects exist
        self._slices: Slices = {}
        self._matrices: Matrices = {}

    def get_twin(self, module: nn.Module, path: str) -> nn.Module:
        """Returns the substitute of a module (itself for most), with substituted children."""
        # A layer that occurs at several paths has one substitute, so that it stays one layer.
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
    """Returns whether a model contains substitutes."""
    return any(STANDS_FOR in vars(module) for module in model.modules())


def _twin(module: nn.Module, shared: Slices, matrices: Matrices) -> nn.Module:
    """Returns the substitute of a module; itself for most."""
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
    """Returns whether a module runs the forward of a class."""
    return type(module).forward is cls.forward and "forward" not in vars(module)


def _knows_layers(module: nn.Module) -> bool:
    """Returns whether the layers of a stack are torch's; others may read the hint `is_causal`."""
    layers = own_children(module).get("layers")
    return all(
        isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
        for layer in (layers.children() if layers is not None else ())
    )


def _as_plain(module: nn.Module, plain: type[nn.Module]) -> nn.Module:
    twin: nn.Module = plain.__new__(plain)
    nn.Module.__init__(twin)
    # The substitute has the attributes and parameters themselves: the graph trains the model's own.
    twin.__dict__.update(vars(module))
    set_members(twin, children=dict(own_children(module)))
    vars(twin)[STANDS_FOR] = type(module)
    if plain is PlainEncoder and getattr(module, "use_nested_tensor", False):
        checks_mask = bool(getattr(module, "mask_check", True))
        own_children(twin)[PADDING] = FastPathPadding(checks_mask).train(module.training)
    return twin


@contextlib.contextmanager
def disable_fast_path() -> Iterator[None]:
    """Disables the fast path of torch's attention and transformers inside the block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
