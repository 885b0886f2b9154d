"""Comparison of the outputs of layers with equal names in two models.

Shapes: B rows, T tokens, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.errors import ConfigError
from chop.private.torch_api import Convolution

Recorded = dict[str, list[Tensor]]


class HiddenStates:
    """Outputs of the layers of a student and of its teacher, recorded by forward hooks.

    A layer is a module with a weight matrix or filter. Two layers match if their names and the
    shapes of their outputs are equal, so layers that pruning has narrowed do not count.

    Args:
        student: model to train.
        teacher: model to compare with.
        kind: `cosine` or `mse`.
        matched: path of a module of the student -> its path in the teacher, if they differ.
    Raises:
        ConfigError: no layer has a name in both.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        kind: str,
        matched: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        others = _layers(teacher)
        own = {_rename(name, matched or {}): layer for name, layer in _layers(student).items()}
        self._layers = {name: layer for name, layer in own.items() if name in others}
        if not self._layers:
            raise ConfigError(
                "distill: hidden compares layers of equal names, and the model and its teacher "
                "have no layer name in common; pass hidden='none'."
            )
        self._student: Recorded = {}
        self._teacher: Recorded = {}
        roots = (student, self._student), (teacher, self._teacher)
        self._hooks = [
            root.register_forward_pre_hook(lambda *_, recorded=recorded: recorded.clear())
            for root, recorded in roots
        ]
        self._hooks += [
            module.register_forward_hook(partial(_record, recorded, name))
            for recorded, layers in ((self._student, own), (self._teacher, others))
            for name, module in layers.items()
            if name in self._layers
        ]

    def remove(self) -> None:
        """Removes the hooks from both models."""
        for hook in self._hooks:
            hook.remove()
        self._student.clear()
        self._teacher.clear()

    def loss(self, mask: Tensor | None) -> Tensor:
        """Returns the mean difference over matching layers since the last call.

        Args:
            mask: (B, T); tokens with 0 do not count.
        Raises:
            ConfigError: no layers match.
        """
        losses = [
            self._difference(x, y, mask, isinstance(self._layers[name], Convolution))
            for name, outputs in self._student.items()
            for x, y in zip(outputs, self._teacher.get(name, []), strict=False)
            if x.shape == y.shape
        ]
        if not losses:
            raise ConfigError(
                "distill: hidden compares outputs of layers of equal names and shapes, and there "
                "are none; pass hidden='none'."
            )
        return torch.stack(losses).mean()

    def _difference(self, x: Tensor, y: Tensor, mask: Tensor | None, is_first: bool) -> Tensor:
        if is_first and x.dim() > 2:
            x, y = x.movedim(1, -1), y.movedim(1, -1)
        wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
        x, y = x.to(wide), y.to(wide)
        if mask is not None and mask.dim() == 2 and x.dim() == 3 and x.shape[:2] == mask.shape:
            counts = mask.to(x.device) != 0
            x, y = x[counts], y[counts]
        if self.kind == "cosine":
            return (1 - F.cosine_similarity(x, y, dim=-1)).mean()
        tiny = torch.finfo(wide).tiny
        return F.mse_loss(x, y) / y.square().mean().clamp(min=tiny)


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    return {
        name: layer
        for name, layer in model.named_modules()
        if name and isinstance(x := getattr(layer, "weight", None), Tensor) and x.dim() > 1
    }


def _rename(name: str, matched: Mapping[str, str]) -> str:
    """Returns the name of a student's layer in the teacher."""
    for path, other in matched.items():
        if name == path or name.startswith(f"{path}."):
            return other + name[len(path) :]
    return name


def _record(recorded: Recorded, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    if isinstance(output, Tensor) and output.is_floating_point():
        recorded.setdefault(name, []).append(output)
