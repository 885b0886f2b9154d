"""Random state that no graph reproduces: Python's and numpy's generators, a model's own seeds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from chop.errors import CaptureError

UNUSUAL_SEED = 0x5EED_C0DE_1DE5
"""Seed that no model sets; a model that sets a common seed would go unnoticed at that seed."""

_SETS_STATE = frozenset({"manual_seed", "seed", "set_state"})


class NumpyRandomError(CaptureError):
    """Raised when a model draws from numpy's global generator."""


class HostRandomState:
    """States of Python's and numpy's global generators at one moment.

    Args:
        numpy: include numpy's, which takes 30 microseconds.
    """

    def __init__(self, numpy: bool) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state() if numpy else None

    def check_unmoved(self) -> None:
        """Raises CaptureError if the generators were used since."""
        if random.getstate() != self._python:
            raise CaptureError("the model draws from Python's `random` while it runs")
        if self._numpy is not None:
            (_, words, *rest), (_, before, *then) = np.random.get_state(), self._numpy
            if rest != then or not np.array_equal(words, before):
                raise NumpyRandomError("the model draws from `np.random` while it runs")

    def restore(self) -> None:
        """Restores the states."""
        random.setstate(self._python)
        if self._numpy is not None:
            np.random.set_state(self._numpy)


class TorchSeedWatch:
    """Detector of models that seed torch's generators or restore their state.

    A graph draws from the generators, and has no node that seeds one.

    Args:
        is_recording: returns whether the model's own Python is running.
    """

    def __init__(self, is_recording: Callable[[], bool]) -> None:
        self._is_recording = is_recording
        self._seeds: list[int] = []

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Refuses `torch.manual_seed` and the like inside the block, which starts at a seed."""
        seed_unusually()
        self.accept()
        generator = vars(torch.random)["default_generator"]
        # All functions of torch.random set the CPU generator as well, through this name.
        vars(torch.random)["default_generator"] = _ReadOnlyGenerator(generator, self._is_recording)
        try:
            yield
        finally:
            vars(torch.random)["default_generator"] = generator

    def accept(self) -> None:
        """Accepts the current seeds; leaves may set seeds."""
        self._seeds = _seeds()

    def check_unset(self) -> None:
        """Raises CaptureError if a method of a default generator has seeded it."""
        # A device that was used for the first time has added a generator.
        if any(now != then for now, then in zip(_seeds(), self._seeds, strict=False)):
            raise _seeded()


class _ReadOnlyGenerator:
    """Proxy of a default generator whose state a model may read but not set."""

    def __init__(self, generator: torch.Generator, is_recording: Callable[[], bool]) -> None:
        self._generator = generator
        self._is_recording = is_recording

    def __getattr__(self, name: str) -> Any:
        if name in _SETS_STATE and self._is_recording():
            raise _seeded()
        return getattr(self._generator, name)


def seed_unusually() -> None:
    """Seeds with `UNUSUAL_SEED`; `torch.manual_seed` formats the stack for every absent device."""
    if torch.accelerator.is_available():
        torch.manual_seed(UNUSUAL_SEED)
    else:
        torch.default_generator.manual_seed(UNUSUAL_SEED)


def _seeds() -> list[int]:
    generators = (torch.default_generator, *torch.cuda.default_generators)
    return [generator.initial_seed() for generator in generators]


def _seeded() -> CaptureError:
    return CaptureError(
        "the model sets torch's random generators while it runs (torch.manual_seed, "
        "torch.set_rng_state, torch.random.fork_rng)"
    )
