"""Random state that no graph repeats: other generators than torch's, and seeds a model sets."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from chop.errors import CaptureError

UNUSUAL_SEED = 0x5EED_C0DE_1DE5
"""A seed that no model sets itself; at a common one its own seeding would change nothing."""

_SETS_STATE = frozenset({"manual_seed", "seed", "set_state"})


class NumpyRandomError(CaptureError):
    """A model draws from numpy's global generator."""


class HostRandomState:
    """The states of Python's and numpy's global generators at one moment.

    Args:
        numpy: numpy's too; reading that one takes 30 microseconds.
    """

    def __init__(self, numpy: bool) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state() if numpy else None

    def check_unmoved(self) -> None:
        """Raises CaptureError where somebody has drawn since."""
        if random.getstate() != self._python:
            raise CaptureError("the model draws from Python's `random` while it runs")
        if self._numpy is not None:
            (_, words, *rest), (_, before, *then) = np.random.get_state(), self._numpy
            if rest != then or not np.array_equal(words, before):
                raise NumpyRandomError("the model draws from `np.random` while it runs")

    def restore(self) -> None:
        """Puts the states back."""
        random.setstate(self._python)
        if self._numpy is not None:
            np.random.set_state(self._numpy)


class TorchSeedWatch:
    """Finds a model that seeds torch's generators, or puts a state of theirs back.

    A graph draws what the generators give, and has no node that seeds one.

    Args:
        watching: whether the model's own Python runs at this moment.
    """

    def __init__(self, watching: Callable[[], bool]) -> None:
        self._watching = watching
        self._seeds: list[int] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Refuses `torch.manual_seed` and the like inside the block, which starts at a seed."""
        seed_unusually()
        self.accept()
        generator = vars(torch.random)["default_generator"]
        # Every function of torch.random sets the generator of the CPU too, and by this name.
        vars(torch.random)["default_generator"] = _Watched(generator, self._watching)
        try:
            yield
        finally:
            vars(torch.random)["default_generator"] = generator

    def accept(self) -> None:
        """Takes the seeds of now for granted: a leaf may seed as it likes."""
        self._seeds = _seeds()

    def check_unset(self) -> None:
        """Raises CaptureError where a method of a default generator has seeded it."""
        # A device that was first used meanwhile has a generator more.
        if any(now != then for now, then in zip(_seeds(), self._seeds, strict=False)):
            raise _seeded()


class _Watched:
    """A default generator whose state a model may read and not set."""

    def __init__(self, generator: torch.Generator, watching: Callable[[], bool]) -> None:
        self._generator = generator
        self._watching = watching

    def __getattr__(self, name: str) -> Any:
        if name in _SETS_STATE and self._watching():
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
