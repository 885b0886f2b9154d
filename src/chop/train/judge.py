"""Judges: user-supplied evaluation functions."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from chop.base.notices import assume, warn_once
from chop.captured.leaves import tensors_in
from chop.captured.module import CapturedModule
from chop.config import check_fields
from chop.errors import ConfigError, GraphError, describe
from chop.ir.graph.to_module import to_module
from chop.kernels.matmul_precision import matmul_precision
from chop.nn import cached_weights
from chop.statistics.intervals import Interval, bootstrap, wilson
from chop.train.feed import eval_mode
from chop.train.intervals import Score, draws_for
from chop.train.metric import Metric, values
from chop.train.seeds import seeded
from chop.train.user_code import user_code

UNNAMED = "score"
"""Name of a function without one, such as a lambda."""


@dataclass(frozen=True)
class Judge:
    """Evaluation function that returns a number for a model.

    Attributes:
        function: called with the model in evaluation mode and without gradients; returns a number,
            or a list or array with one number per row, of which the mean is used. Random generators
            start from the same seed in each call, so that drawn rows are the same for all models.
        name: name of the number in tables and results.
        higher_is_better: true if a larger number is a better model.
        code: name of the function in a command, `file.py:fn`; "" if it was passed in Python.
    """

    function: Callable[[nn.Module], Any]
    name: str
    higher_is_better: bool = True
    code: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigError for a function that does not take a model, and names that are none."""
        _check_function(self.function, 1, "evaluate", "the model")
        check_fields(self, "Judge")

    @classmethod
    def of(
        cls,
        function: Callable[[nn.Module], Any],
        name: str | None = None,
        *,
        lower_is_better: bool = False,
        code: str = "",
    ) -> Judge:
        """Builds the judge of a function, by default named after the function.

        Raises:
            ConfigError: if it is not callable with a model as its only argument.
        """
        return cls(
            function, get_name(function) if name is None else name, not lower_is_better, code
        )

    @property
    def metric(self) -> Metric:
        """Mean of the numbers of the rows, which are its predictions."""
        return Metric(
            self.name, _mean, values, higher_is_better=self.higher_is_better, is_relative=True
        )

    @property
    def title(self) -> str:
        """Name of the judge and of its function."""
        return f"evaluate '{self.code or self.name}'"

    def rows(self, model: nn.Module) -> tuple[Tensor, bool]:
        """Returns the numbers of a model, float64 or bool (K,), and true if there is one per row.

        Raises:
            ConfigError: if the function raises or does not return numbers.
        """
        model = _as_given(model)
        before = _sums(model)
        with (
            torch.no_grad(),
            matmul_precision("highest"),
            cached_weights(model),
            eval_mode(model),
            user_code(self.title, self.function),
            seeded(),
        ):
            calls = _Calls()
            hook = model.register_forward_pre_hook(calls)
            try:
                given = self.function(model)
            finally:
                hook.remove()
        if not calls.count:
            assume(
                f"{self.title} did not call the model that it was given. If it uses another one, "
                "its numbers are of that model: use the argument of the function."
            )
        after = _sums(model)
        changed = [name for name, total in before.items() if total != after.get(name)]
        if changed:
            raise ConfigError(
                f"{self.title}: changes the weights of the model ({changed[0]}), which is saved "
                "afterwards; let it work on copy.deepcopy(model)."
            )
        return self._numbers(given)

    def score(self, model: nn.Module) -> Score:
        """Evaluates a model. The score has an interval if there is a number per row."""
        numbers, is_by_row = self.rows(model)
        return self.compute_score(numbers, is_by_row)

    def compute_score(self, rows: Tensor, is_by_row: bool) -> Score:
        """Returns the score of the numbers in `rows`."""
        interval = interval_of_rows(rows) if is_by_row else None
        return Score(_mean(rows, rows), interval, None, len(rows) if is_by_row else 0)

    def _numbers(self, given: Any) -> tuple[Tensor, bool]:
        wrong = ConfigError(
            f"{self.title}: returned {describe(given)}, expected a number, or a list or array with "
            "one number per row."
        )
        if isinstance(given, numbers.Real) and not isinstance(given, bool | np.bool_):
            return torch.tensor([float(given)], dtype=torch.float64), False
        # A tuple has several numbers, such as a loss and an accuracy, whose mean has no meaning.
        if not isinstance(given, Tensor | np.ndarray | list):
            raise wrong
        try:
            scores = torch.as_tensor(given).detach().cpu()
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise wrong from None
        if scores.is_complex() or scores.dim() > 1 or not scores.numel():
            raise wrong
        numbers_of_rows = scores.double()
        is_whole = torch.equal(numbers_of_rows, numbers_of_rows.round())
        if scores.dim() and is_whole and numbers_of_rows.max() > 1:
            warn_once(
                f"{self.title}: returned whole numbers beyond 0 and 1, whose mean counts; if they "
                "are predicted classes, return predictions == labels instead."
            )
        # Rows that are right or wrong stay bool, of which the mean is a share.
        rows = scores if scores.dtype == torch.bool else numbers_of_rows
        return rows.reshape(-1), scores.dim() == 1


class _Calls:
    """Count of the calls of a model and of its copies: a hook that can be copied and pickled."""

    count = 0

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Counts a call."""
        self.count += 1

    def __deepcopy__(self, memo: Any) -> _Calls:
        """Returns the counter itself, for a copy of the model."""
        return self


def _sums(model: nn.Module) -> dict[str, float]:
    """Returns the sum of each parameter, which shows changes of its numbers."""
    real = (pair for pair in model.named_parameters() if not pair[1].is_meta)
    return {name: float(x.detach().sum(dtype=torch.float64).nan_to_num()) for name, x in real}


def _as_given(model: nn.Module) -> nn.Module:
    """Returns the model of a graph as an instance of the user's class.

    Returns the graph's module itself if the class's own forward cannot apply the graph's changes.
    """
    if not isinstance(model, CapturedModule):
        return model
    try:
        return to_module(model, ())
    except GraphError as error:
        warn_once(f"evaluate: gets the captured graph instead of your class: {error}")
        return model


def interval_of_rows(rows: Tensor) -> Interval | None:
    """Returns the confidence interval of the mean of rows (K,): Wilson's for bools, else bootstrap.

    Returns: None for a single row or if some rows are not finite.
    """
    if len(rows) < 2 or not bool(rows.isfinite().all()):
        return None
    if rows.dtype == torch.bool:
        return wilson(float(rows.sum()), len(rows))
    rows = rows.double()
    return bootstrap(lambda i: rows[i].mean().item(), len(rows), draws_for(len(rows)))


def get_name(function: Callable[..., Any]) -> str:
    """Returns the name of a function, of the function that it wraps, or of a callable's class.

    >>> get_name(len), get_name(lambda model: 0.0)
    ('len', 'score')
    """
    plain = getattr(function, "func", function)  # functools.partial
    name = getattr(plain, "__name__", type(plain).__name__)
    return name if name.isidentifier() else UNNAMED


def _check_function(function: Any, count: int, setting: str, takes: str) -> None:
    """Checks that a callable accepts the given number of arguments.

    Raises:
        ConfigError: if it does not.
    """
    is_loss = setting == "loss"
    is_class = isinstance(function, type)
    if not callable(function) or is_class or (isinstance(function, nn.Module) and not is_loss):
        advice = f"; pass an instance, {function.__name__}()" if is_class and is_loss else ""
        raise ConfigError(
            f"{setting}: expected a function of {takes}, got {describe(function)}{advice}."
        )
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        inspect.signature(called).bind(*[None] * count)
    except TypeError as error:
        advice = " chop.compress(metric=...) takes functions of predictions and labels."
        raise ConfigError(
            f"{setting}: '{get_name(function)}' must be callable with only {takes}: "
            f"{error}.{advice * (count == 1)}"
        ) from None
    except ValueError:  # some of those written in C have no signature
        return


def checked_loss(function: Any, code: str = "") -> Callable[[Any, Tensor], Tensor]:
    """Wraps a user-supplied loss so that each result is checked.

    Args:
        function: (output of the model, labels of the batch) -> a scalar; a function, or a module
            such as `nn.CrossEntropyLoss()`.
        code: name of the function in a command, `file.py:fn`; "" if it was passed in Python.
    Raises:
        ConfigError: if it does not accept these arguments; in training, it raises or returns no
            number with a gradient.
    """
    _check_function(function, 2, "loss", "the model's output and the labels")
    title = f"loss '{code or get_name(function)}'"

    def loss(output: Any, labels: Tensor) -> Tensor:
        watch = _RefusedBroadcast(output, labels)
        with user_code(title, function), warnings.catch_warnings(), watch:
            # Outputs (B, 1) and labels (B,) would be broadcast to (B, B).
            warnings.filterwarnings("error", "Using a target size")
            value = function(output, labels)
        if function is F.nll_loss or isinstance(function, nn.NLLLoss):
            _check_log_probabilities(output)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ConfigError(
                f"{title}: returned {describe(value)}, expected one number with a "
                "gradient, such as the mean over the rows."
            )
        if bool(value.isnan()) and not any(bool(x.isnan().any()) for x in _floats_in(output)):
            raise ConfigError(f"{title}: returned NaN, although the model's output has none.")
        return value.reshape(())

    return loss


def _check_log_probabilities(output: Any) -> None:
    """Raises ConfigError unless the scores of each row are log-probabilities, as for `NLLLoss`."""
    for scores in _floats_in(output)[:1]:
        total = scores.detach().float().logsumexp(1)
        if not torch.allclose(total, torch.zeros_like(total), atol=1e-2):
            raise ConfigError(
                "loss: NLLLoss takes log-probabilities, and the model returns logits: pass "
                "nn.CrossEntropyLoss()."
            )


class _RefusedBroadcast(TorchFunctionMode):
    """Refuses a calculation that broadcasts outputs (B, 1) and labels (B,) to (B, B).

    Only the tensors themselves count, since ranking losses compare the rows in pairs.
    """

    def __init__(self, output: Any, labels: Tensor) -> None:
        super().__init__()
        self._output, self._labels = output, labels

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        pair = [x for x in args if x is self._output or x is self._labels]
        if len(pair) == 2 and isinstance(result, Tensor):
            shapes, rows = {tuple(x.shape) for x in pair}, len(self._labels)
            if rows > 1 and shapes == {(rows, 1), (rows,)} and result.shape == (rows, rows):
                raise ConfigError(
                    f"loss: the model's output {(rows, 1)} and the labels {(rows,)} are broadcast "
                    f"to {(rows, rows)}: use output.squeeze(1), or labels.unsqueeze(1)."
                )
        return result


def _floats_in(output: Any) -> list[Tensor]:
    return [x for x in tensors_in(output) if x.is_floating_point()]


def _mean(predictions: Tensor, labels: Tensor) -> float:
    return predictions.double().mean().item()
