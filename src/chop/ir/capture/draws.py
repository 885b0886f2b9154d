"""Draws of a model from generators that no graph knows: Python's and numpy's."""

from __future__ import annotations

import random

import numpy as np

from chop.errors import CaptureError


class NumpyDrawsError(CaptureError):
    """A model draws from numpy's global generator."""


class HostDraws:
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
                raise NumpyDrawsError("the model draws from `np.random` while it runs")

    def restore(self) -> None:
        """Puts the states back."""
        random.setstate(self._python)
        if self._numpy is not None:
            np.random.set_state(self._numpy)
