"""Input dtypes: conversion of floats in batches to the dtypes of the capture."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from chop.captured.module import CapturedModule
from chop.captured.specs import TensorSpec
from chop.captured.state.preserve_state import preserve_state
from chop.errors import GuardError
from chop.ir.propagate import GraphRunner, bind_inputs

Dtypes = dict[str, tuple[torch.dtype, torch.dtype]]
"""Input name -> (dtype of the batch, dtype at capture)."""


class InputDtypes:
    """Converts the floats of a batch to the dtypes of the capture if the graph takes no others.

    Some graphs take others, such as boolean masks or images that the model converts itself. The
    first batch of new dtypes is a trial.

    Args:
        model: the captured module; `model.to(dtype)` changes the expected dtypes.
    """

    def __init__(self, model: CapturedModule) -> None:
        self._model = model
        self._converted: dict[tuple[tuple[str, torch.dtype], ...], frozenset[str]] = {}

    def adapt(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch by name in dtypes that the graph takes.

        Raises:
            GuardError: if the graph takes floats and got integers, or the reverse.
        """
        others = self._others(batch)
        key = tuple((name, actual) for name, (actual, _) in others.items())
        if key not in self._converted:
            self._converted[key] = self._to_convert(batch, others)
        return _convert(batch, others, self._converted[key])

    def _others(self, batch: Mapping[str, Any]) -> Dtypes:
        examples = self._model.record.example_inputs
        return {
            name: (x.dtype, spec.dtype)
            for name, x in batch.items()
            if isinstance(x, Tensor) and isinstance(spec := examples.get(name), TensorSpec)
            if x.dtype != spec.dtype
        }

    def _to_convert(self, batch: Mapping[str, Any], others: Dtypes) -> frozenset[str]:
        if not others or self._takes(batch):
            return frozenset()
        floats = frozenset(
            n for n, both in others.items() if all(d.is_floating_point for d in both)
        )
        converted = _convert(batch, others, floats)
        for name in others.keys() - floats:
            if not self._takes(converted) and self._takes(_convert(converted, others, [name])):
                actual, expected = (str(x).removeprefix("torch.") for x in others[name])
                raise GuardError(
                    f"the graph was captured for {name} of {expected}, got {actual}; convert it"
                )
        return floats

    def _takes(self, batch: Mapping[str, Any]) -> bool:
        """Returns whether the graph runs on a batch; fake tensors would hide some errors."""
        with preserve_state(self._model), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._model.eval()
            try:
                GraphRunner(self._model).run(*bind_inputs(self._model, batch))
            except Exception:
                # The run that follows reports the reason.
                return False
        return True


def _convert(batch: Mapping[str, Any], others: Dtypes, names: Iterable[str]) -> dict[str, Any]:
    chosen = {*names}
    return {name: x.to(others[name][1]) if name in chosen else x for name, x in batch.items()}
