"""Symbolic sizes: dynamic dimensions of inputs, size nodes of the graph, and shape guards.

Every dynamic input dimension is a symbol while a model runs on fake tensors. This module creates
fake inputs with such dimensions, graph nodes that compute size expressions, and the conditions on
input sizes under which the recording is valid.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch import Tensor, fx, nn

from chop.base.notices import at_level
from chop.capture.sizes.shape_env import GuardedShapeEnv
from chop.capture.sizes.size_functions import COMPUTE, PAIRWISE, SizePrinter
from chop.captured.guards.shape_guards import ShapeGuard
from chop.errors import CaptureError
from chop.private.symbolic_shapes import (
    DimDynamic,
    FakeTensor,
    ValueRanges,
    bound_sympy,
    enable_python_dispatcher,
    fake_with_symbols,
    get_expression,
    in_kernel_invocation_manager,
    int_oo,
    size_functions,
)
from chop.private.torch_api import NOISY_LOGGERS, FakeTensorMode, check_sizes

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: object) -> bool:
    """Returns whether a Python value is a size, number or Boolean that depends on input sizes."""
    return isinstance(value, SYMBOLIC_TYPES)


def get_constant(tensor: Tensor) -> Tensor | None:
    """Returns the real tensor behind a fake one if its value does not depend on the inputs."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return tensor.constant


def get_meta(fake: FakeTensor, shape: Any, stride: Any) -> Tensor:
    """Returns the elements of a fake tensor like `fake`, with another shape and stride."""
    with in_kernel_invocation_manager(fake.fake_mode):
        return torch.empty_strided(shape, stride, dtype=fake.dtype, device="meta")


def new_fake(fake: FakeTensor, elements: Tensor | None = None) -> FakeTensor:
    """Returns a tensor like a fake one, without its history.

    Args:
        fake: a strided tensor.
        elements: result of `get_meta` for it, to save time.
    """
    new_elements = get_meta(fake, fake.shape, fake.stride()) if elements is None else elements
    return FakeTensor(fake.fake_mode, new_elements, fake.device)


class Sizes:
    """Symbols of one recording: their origins, and the graph nodes that compute with them.

    Args:
        graph: receives the size nodes.
        symbolic: False makes every size a number, so that a recording is valid for the example
            sizes only. It is several times faster and needs no private API.
        before: sizes of an earlier recording of the same inputs, whose symbols may be shared.
    """

    def __init__(self, graph: fx.Graph, symbolic: bool = True, before: Sizes | None = None) -> None:
        self._graph = graph
        self._inputs: dict[str, FakeTensor] = {}
        self._env: GuardedShapeEnv | None
        self._mode: FakeTensorMode
        self.continues: bool = before is not None and (
            before._env is None or before._env.reset_guards()
        )
        if before is not None and self.continues:
            self._env, self._mode, self._inputs = before._env, before._mode, before._inputs
        else:
            self._env = GuardedShapeEnv() if symbolic else None
            self._mode = FakeTensorMode(
                shape_env=self._env, allow_non_fake_inputs=True, static_shapes=not symbolic
            )
            if symbolic:
                # torch checks each entry of its cache by arithmetic on sizes, which takes half of
                # the time of a recording. `FakeCache` replaces it.
                self._mode.cache_enabled = False
        self._origins: dict[sympy.Symbol, tuple[fx.Node, int | None]] = {}
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        self._written: dict[sympy.Basic, fx.Node] = {}
        self._described: dict[sympy.Basic, int | str] = {}
        self._fixed: list[ShapeGuard] = []
        self._examples: dict[str, tuple[int, ...]] = {}
        self._fakes: list[Tensor] = []
        self._computed: dict[sympy.Symbol, str] = {}

    @contextlib.contextmanager
    def fake_mode(self) -> Iterator[None]:
        """Makes every tensor created inside the block fake."""
        # An error inside a fake kernel is handled by the capture; torch would also print it.
        quiet = at_level(logging.CRITICAL, *NOISY_LOGGERS)
        with quiet, enable_python_dispatcher(), self._mode:
            yield

    @contextlib.contextmanager
    def evaluated_by(self, model: bool) -> Iterator[None]:
        """Attributes size tests inside the block to the model's Python or to an operator."""
        if self._env is None:
            yield
            return
        before, self._env.evaluated_by_model = self._env.evaluated_by_model, model
        try:
            yield
        finally:
            self._env.evaluated_by_model = before

    # --- inputs

    def fake_input(
        self, name: str, tensor: Tensor, is_dynamic: Callable[[Tensor, int], bool]
    ) -> Tensor:
        """Returns a fake copy of an input.

        Args:
            name: name of the input in guards: `"x"`, `"batch['mask']"`.
            tensor: the example; only its shape, dtype and device matter.
            is_dynamic: returns whether a dimension is dynamic.
        """
        if self._env is None:
            fake: Tensor = self._mode.from_tensor(tensor, static_shapes=True)
            self._fix(name, tensor, range(tensor.dim()))
            return fake
        dims = [
            DimDynamic.DYNAMIC if is_dynamic(tensor, dim) else DimDynamic.STATIC
            for dim in range(tensor.dim())
        ]
        if name not in self._inputs:
            self._inputs[name] = fake_with_symbols(self._mode, name, tensor, dims)
        fake = self._inputs[name]
        if fake.layout is torch.strided:
            # The model may write into it, and the next recording shares it.
            fake = new_fake(fake)
        fake.requires_grad_(tensor.requires_grad)
        self._fix(name, tensor, [d for d, kind in enumerate(dims) if kind is DimDynamic.STATIC])
        self._examples[name] = tuple(tensor.shape)
        self._fakes.append(fake)
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                self._names[size.node.expr] = sympy.Symbol(f"{name}.shape[{dim}]")
        return fake

    def fake_member(self, tensor: Tensor, dtype: torch.dtype) -> FakeTensor:
        """Returns a fake of another dtype that represents a parameter or buffer."""
        is_parameter = isinstance(tensor, nn.Parameter)
        # Made without fake mode, whose entry and dispatch take longer than all the rest.
        with in_kernel_invocation_manager(self._mode):
            elements = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=dtype, device="meta"
            )
        requires_grad = is_parameter and tensor.requires_grad
        return FakeTensor(
            self._mode, elements, tensor.device, requires_grad=requires_grad, _is_param=is_parameter
        )

    def _fix(self, name: str, tensor: Tensor, dims: Any) -> None:
        for dim in dims:
            self._fixed.append(ShapeGuard(f"{name}.shape[{dim}] == {tensor.shape[dim]}"))

    def free_number(self, name: str, example: int) -> Any:
        """Returns a size that no input shape determines; a node has to compute it, see
        `bind_number`.

        Args:
            name: unique name.
            example: at least 2.

        Raises:
            CaptureError: sizes are plain numbers in this recording.
        """
        if self._env is None:
            raise CaptureError(
                f"{name} is not known before a call, and this recording has no dynamic sizes"
            )
        if name not in self._inputs:
            dims = [DimDynamic.DYNAMIC]
            self._inputs[name] = fake_with_symbols(self._mode, name, torch.empty(example), dims)
        size: Any = self._inputs[name].shape[0]
        self._computed[size.node.expr] = name
        return size

    def computed_size_tests(self) -> Iterator[tuple[str, str]]:
        """Returns computed sizes that the model's Python tests, by name, with the lines."""
        tests = {} if self._env is None else self._env.tests
        for condition, where in tests.items():
            computed = condition.free_symbols & self._computed.keys()
            if computed and not _always_true(condition, least=0):
                yield from ((self._computed[symbol], where) for symbol in computed)

    # --- sizes as nodes

    def bind(self, tensor: Tensor, node: fx.Node) -> None:
        """Registers `node` as the source of the symbols that first appear in `tensor`'s shape."""
        if self._env is None:
            return
        for dim, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt):
                expression = get_expression(size)
                if expression.is_Symbol and expression not in self._origins:
                    self._origins[expression] = (node, dim)

    def bind_number(self, number: Any, node: fx.Node) -> None:
        """Registers `node` as the source of a number such as the result of `item()`."""
        expression = get_expression(number)
        if expression.is_Symbol:
            self._origins.setdefault(expression, (node, None))

    def write(self, value: Any) -> Any:
        """Returns a symbolic number as a node of the graph, or as a plain number if it is constant.

        Raises:
            CaptureError: the number depends on data that no recorded operator produced.
        """
        expression = value.node.expr
        if expression.is_number or isinstance(expression, BooleanAtom):
            kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
            return kind(expression)
        return self._write(expression)

    def _write(self, expression: sympy.Basic) -> Any:
        if isinstance(expression, BooleanAtom):
            return bool(expression)
        if expression.is_Integer:
            return int(expression)
        if expression.is_number:
            return float(expression)
        if expression not in self._written:
            if expression.is_Symbol:
                self._written[expression] = self._write_symbol(expression)
            else:
                self._written[expression] = self._write_function(expression)
        return self._written[expression]

    def _write_symbol(self, symbol: sympy.Symbol) -> fx.Node:
        if symbol not in self._origins:
            raise CaptureError(f"no recorded operator computes the number {symbol}")
        node, dim = self._origins[symbol]
        return node if dim is None else self._graph.call_method("size", (node, dim))

    def _write_function(self, expression: sympy.Basic) -> Any:
        if isinstance(expression, sympy.Add):
            return self._write_sum(expression)
        values = [self._write(part) for part in expression.args]
        kind = type(expression)
        if kind in COMPUTE:
            return self._graph.call_function(COMPUTE[kind], tuple(values))
        if kind in PAIRWISE:
            function = PAIRWISE[kind]
            return functools.reduce(
                lambda a, b: self._graph.call_function(function, (a, b)), values
            )
        if isinstance(expression, size_functions.ModularIndexing):
            base, divisor, modulus = values
            quotient = self._graph.call_function(operator.floordiv, (base, divisor))
            return self._graph.call_function(operator.mod, (quotient, modulus))
        raise CaptureError(f"the size {expression} cannot be written in Python ({kind.__name__})")

    def _write_sum(self, expression: sympy.Add) -> Any:
        # `a - b` reads better than `a + -1 * b`, so negative terms and numbers go last.
        terms = sorted(
            expression.args, key=lambda term: (term.could_extract_minus_sign(), term.is_number)
        )
        total = self._write(terms[0])
        for term in terms[1:]:
            function, term = (
                (operator.sub, -term) if term.could_extract_minus_sign() else (operator.add, term)
            )
            total = self._graph.call_function(function, (total, self._write(term)))
        return total

    # --- descriptions

    def describe(self, size: Any) -> int | str:
        """Returns a size as an int, or as an expression of input sizes such as `"x.shape[0]"`."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = size.node.expr
        if expression not in self._described:
            self._described[expression] = (
                int(expression) if expression.is_number else self._print(expression)
            )
        return self._described[expression]

    def _print(self, expression: sympy.Basic) -> str:
        return str(SizePrinter().doprint(expression.xreplace(self.names())))

    def names(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """Returns the name of each symbol: `x.shape[0]`, or its node (`nonzero.shape[0]`)."""
        made = {
            symbol: sympy.Symbol(node.name if dim is None else f"{node.name}.shape[{dim}]")
            for symbol, (node, dim) in self._origins.items()
        }
        return {**made, **self._names}

    def guards(self) -> list[ShapeGuard]:
        """Returns the conditions on input sizes under which the recording is valid."""
        if self._env is None:
            return list(self._fixed)
        guards = list(self._fixed)
        for condition, where in self._env.tests.items():
            # Data-dependent sizes are unknown before a call, so only conditions on inputs can be
            # checked.
            if condition.free_symbols <= self._names.keys() and not _always_true(condition):
                guards.append(ShapeGuard(self._print(condition), where))
        for condition, where in self._env.emptiness_tests.items():
            known = condition.free_symbols <= self._names.keys()
            if known and not _always_true(condition, least=0):
                guards.append(ShapeGuard(self._print(condition), where))
        return guards

    def add_guards(self, other: Sizes) -> None:
        """Adds the conditions of a second recording of the same inputs."""
        if self._env is not None and other._env is not None:
            ours, theirs = self._env, other._env
            ours.tests = {**theirs.tests, **ours.tests}
            ours.emptiness_tests = {**theirs.emptiness_tests, **ours.emptiness_tests}

    def unbacked_size(self, least: int, most: Any) -> Any:
        """Returns a new data-dependent size, which the result of an operator has to determine.

        Args:
            least: smallest possible value.
            most: largest possible value. None: unbounded.

        Raises:
            CaptureError: sizes are plain numbers here, and no number would hold for other data.
        """
        if self._env is None:
            raise CaptureError("a size depends on data, and this recording has no dynamic sizes")
        size = self._env.create_unbacked_symint()
        check_sizes(size >= least)
        if most is not None:
            check_sizes(size <= most)
        return size

    # --- other sizes of the same inputs

    def grown_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns a second example shape per input: each independent size grows differently."""
        if self._env is None:
            return {}
        grown = self._grown_symbols()
        shapes: dict[str, list[int]] = {}
        for symbol, name in self._names.items():
            root, _, dim = str(name).rpartition(".shape[")
            shape = shapes.setdefault(root, [int(size) for size in self._examples[root]])
            shape[int(dim[:-1])] = int(self._env.simplify(symbol).xreplace(grown))
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _grown_symbols(self) -> dict[sympy.Symbol, sympy.Integer]:
        assert self._env is not None
        roots: dict[sympy.Symbol, None] = {}
        for symbol in self._names:
            roots.update(dict.fromkeys(self._env.simplify(symbol).free_symbols))
        values = self._env.backed_var_to_val
        # Distinct increments show which size a result follows when several are equal.
        return {root: values[root] + step for step, root in enumerate(roots, start=1)}

    def infer_size(self, example: int, grown: int | None, known: Iterable[Any]) -> Any:
        """Returns the size that was `example` at the example sizes and `grown` at the grown ones.

        Args:
            example: the size in an eager run on the example inputs.
            grown: the size in a run on inputs of `grown_shapes`; None if that failed.
            known: nearby symbolic sizes, which are tried first.
        Returns: a number if the size is constant, a known size that grew alike, or a new
            data-dependent size.
        """
        # Two eager runs identify a size: equal in both it is constant, else it follows a known one.
        if self._env is None or example == grown:
            return example
        moved = self._grown_symbols()
        for size in [*known, *self._input_sizes()]:
            if not isinstance(size, torch.SymInt):
                continue
            expression = size.node.expr
            seen = (
                expression.xreplace(self._env.backed_var_to_val),
                expression.xreplace(moved) if grown is not None else None,
            )
            if seen == (example, grown):
                return size
        return self._env.create_unbacked_symint()

    def _input_sizes(self) -> list[Any]:
        return [size for fake in self._fakes for size in fake.shape if is_symbolic(size)]


def _always_true(condition: sympy.Basic, least: int = 1) -> bool:
    ranges = {symbol: ValueRanges(least, int_oo) for symbol in condition.free_symbols}
    try:
        # torch does not decide whether a size equals itself, and assumes positive sizes.
        if isinstance(condition, sympy.Eq) and sympy.expand(condition.lhs - condition.rhs) == 0:
            return True
        bounds = bound_sympy(condition, ranges)
        return bounds.is_singleton() and bool(bounds.lower)
    except (NotImplementedError, TypeError, AssertionError):
        return False
