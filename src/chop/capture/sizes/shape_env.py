"""Shape environment that stores each size test which decided the recording, with its line."""

from __future__ import annotations

from typing import Any

import sympy

from chop.capture.recording.source import current_line
from chop.private.symbolic_shapes import ShapeEnv, SLoc


class GuardedShapeEnv(ShapeEnv):
    """Shape environment that records size tests with their lines.

    A test in the model's own Python determines the control flow, so it is stored with its line. A
    test inside an operator belongs to the fake kernel, and the real kernel repeats it. It matters
    only if it made two sizes, or a size and a number, equal.
    """

    def __init__(self) -> None:
        super().__init__(
            # Two equal sizes of the example are separate symbols, and zero and one are constants,
            # as torch's kernels treat them.
            duck_shape=False,
            specialize_zero_one=True,
            prefer_deferred_runtime_asserts_over_guards=False,
        )
        self.evaluated_by_model = False
        self.tests: dict[sympy.Basic, str] = {}
        self.emptiness_tests: dict[sympy.Basic, str] = {}
        self._inside_operators: dict[sympy.Basic, str] = {}

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        """Evaluates a size test as torch does, and records it."""
        outcome = super().evaluate_expr(orig_expr, *args, **kwargs)
        if self.evaluated_by_model and orig_expr.free_symbols:
            self.keep(_as_condition(orig_expr, outcome))
        return outcome

    def _set_replacement(self, a: sympy.Symbol, tgt: sympy.Expr, msg: str) -> None:
        super()._set_replacement(a, tgt, msg)
        if self.replacements.get(a) == tgt:
            self.keep(sympy.Eq(a, tgt, evaluate=False))

    def keep(self, condition: sympy.Basic) -> None:
        """Stores a condition that decided the recording, with the line of the model."""
        if condition not in self.tests:
            self.tests[condition] = current_line()
        # Cached results of operators rely on these tests, so a later recording keeps them.
        if not self.evaluated_by_model:
            self._inside_operators[condition] = self.tests[condition]

    def record_if_assumed(self, condition: sympy.Basic) -> None:
        """Stores a test by the model that holds for all sizes but zero; torch assumes positive
        sizes.
        """
        if self.evaluated_by_model and condition.free_symbols:
            self.emptiness_tests.setdefault(condition, current_line())

    def reset_guards(self) -> bool:
        """Clears the tests of the model before another recording; returns False if it cannot.

        Tests in operators stay, since cached results depend on them. If two sizes were made equal,
        or data determined a size, another recording would not start from the same state.
        """
        if self.replacements or self.deferred_runtime_asserts:
            return False
        self.tests, self.emptiness_tests = dict(self._inside_operators), {}
        return True

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        # Stack summaries take a third of the time of a capture, and `keep` records the line.
        return SLoc(None, None), ""

    def _log_guard(self, prefix: str, g: Any, forcing_spec: bool) -> None:
        """Skips the structured log of torch, which takes time for every test."""


def _as_condition(expression: sympy.Basic, outcome: Any) -> sympy.Basic:
    if outcome is sympy.true or outcome is True:
        return expression
    if outcome is sympy.false or outcome is False:
        return sympy.Not(expression)
    return sympy.Eq(expression, outcome, evaluate=False)
