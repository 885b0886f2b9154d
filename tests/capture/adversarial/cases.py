"""What a case of the adversarial models is, and how its graph is compared with its model."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chop.capture.tracer import capture
from chop.captured.guards.input_guards import InputGuardWarning
from chop.captured.record import CaptureWarning
from chop.errors import CaptureError, ConfigError, GuardError

Inputs = dict[str, Any]
Outcome = dict[str, Any] | Exception

BATCH = 3
OTHER_BATCH = 5
WIDTH = 4
# Words of torch's own machinery, which tell a user nothing.
INTERNALS = re.compile(
    r"\b[suz]\d+\b|GuardOnDataDependent|FakeTensor|SymInt|SymBool|ShapeEnv|FunctionalTensor"
)


# Warnings that say how the graph is another model; under any other one it must not be.
DIFFERS = re.compile(r"outputs differ|the graph keeps the answer|the graph does not")


@dataclasses.dataclass
class Case:
    """One model, its inputs for a batch size, and what a reasonable user expects of a capture.

    `reason` is why a case is known to fail; `copies` says whether a deep copy is the same model.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    expect: str
    reset: Callable[[], None]
    reason: str
    copies: bool

    @property
    def name(self) -> str:
        return self.make.__name__

    def seeded(self, batch: int, seed: int) -> Inputs:
        """The inputs at `batch`, drawn with `seed`; every random state is then at `seed` too."""
        seed_all(seed)
        inputs = self.inputs(batch)
        seed_all(seed)
        return inputs

    def build(self) -> nn.Module:
        seed_all(1)
        self.reset()
        return self.make().eval()


def rows(batch: int) -> Inputs:
    return {"x": torch.randn(batch, WIDTH)}


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


class Cases(list[Case]):
    """The cases of one file; called on a class, it adds the class as a case."""

    def __call__(
        self,
        expect: str = "any",
        inputs: Callable[[int], Inputs] = rows,
        reset: Callable[[], None] = lambda: None,
        reason: str = "",
        copies: bool = True,
    ) -> Callable[[Any], Any]:
        def add(make: Any) -> Any:
            self.append(Case(make, inputs, expect, reset, reason, copies))
            return make

        return add


def check(case: Case) -> str:
    """Captures the case's model and compares; returns "equal", "warned" or "refused".

    Raises:
        AssertionError: the graph gives another result than the model and nothing said so, the
            user's model changed, a message speaks of torch's internals, or the verdict is not
            the one expected.
    """
    expected = history(case.build(), case)
    model = case.build()
    before = everything(model)
    graph, verdict, told = captured(case, model)
    assert_same("the user's model", everything(model), before)
    claims_to_be_equal = graph is not None and not DIFFERS.search(told)
    if claims_to_be_equal and case.copies:
        compare("a deep copy of the graph", expected, case, copy.deepcopy(graph))
    compare("the user's model", expected, case, copy.deepcopy(model) if case.copies else model)
    if claims_to_be_equal:
        # Where the model itself has just run, its graph shares what that left: it starts anew.
        graph = graph if case.copies else captured(case, case.build())[0]
        guarded = compare("the graph", expected, case, graph)
        assert case.expect != "equal" or not guarded, f"needless refusal: {guarded[0]}"
    assert case.expect in ("any", verdict), f"expected {case.expect}, came {verdict}"
    return verdict


def captured(case: Case, model: nn.Module) -> tuple[nn.Module | None, str, str]:
    """The graph of `model` if there is one, the verdict, and its warnings, with fair messages."""
    inputs = case.seeded(BATCH, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            graph = capture(model, inputs)
        except (CaptureError, ConfigError) as error:
            assert_plain(str(error))
            return None, "refused", ""
    told = [str(w.message) for w in caught if issubclass(w.category, CaptureWarning)]
    for message in told:
        assert_plain(message)
    assert_same("the example", inputs, case.seeded(BATCH, 2))
    return graph, "warned" if told else "equal", " ".join(told)


def compare(who: str, expected: dict[str, Outcome], case: Case, module: nn.Module) -> list[str]:
    """Asserts that `module` gives the model's history; returns the refusals that it met."""
    case.reset()
    refusals = []
    # What the capture left of the model shows in its first calls.
    for step, came in history(module, case, few=who == "the user's model").items():
        wanted = expected[step]
        if isinstance(came, GuardError) and who != "the user's model":
            assert_plain(str(came))
            refusals.append(f"{step}: {came}")
        elif isinstance(wanted, Exception):
            assert isinstance(came, Exception), f"{who}, {step}: the model raised {wanted!r}"
        elif isinstance(came, Exception):
            raise AssertionError(f"{who}, {step}: raised {came!r}") from came
        else:
            assert_same(f"{who}, {step}", came, wanted)
        if isinstance(came, Exception) or isinstance(wanted, Exception):
            break
    return refusals


def history(module: nn.Module, case: Case, few: bool = False) -> dict[str, Outcome]:
    """What `module` gives over a series of calls: results, gradients, inputs and state after."""
    steps = {
        "the example": (False, BATCH, 2),
        "fresh values": (False, BATCH, 3),
        "another batch size": (False, OTHER_BATCH, 4),
        "a batch of one": (False, 1, 5),
        "training": (True, BATCH, 6),
        "training again": (True, OTHER_BATCH, 7),
        "the example again": (False, BATCH, 2),
    }
    if few:
        steps = {step: steps[step] for step in list(steps)[:2]}
    return {step: call(module, case, *how) for step, how in steps.items()}


def call(module: nn.Module, case: Case, training: bool, batch: int, seed: int) -> Outcome:
    """One call, in training with the gradients of parameters and inputs."""
    module.train(training)
    module.zero_grad()
    inputs = case.seeded(batch, seed)
    leaves = [v.requires_grad_() for v in inputs.values() if training and differentiable(v)]
    given = {k: v * 1 if any(v is leaf for leaf in leaves) else v for k, v in inputs.items()}
    try:
        with warnings.catch_warnings(), torch.set_grad_enabled(training):
            warnings.simplefilter("ignore")
            # An announcement at the call counts as a refusal does.
            warnings.simplefilter("error", InputGuardWarning)
            result = module(**given)
            loss = sum(t.abs().sum() for t in tensors(result) if t.grad_fn is not None)
            if training and isinstance(loss, Tensor):
                loss.backward()
    except InputGuardWarning as warning:
        return GuardError(str(warning))
    except Exception as error:
        return error
    grads = {k: copy.copy(p.grad) for k, p in module.named_parameters()}
    state = {k: v.detach().clone() for k, v in module.state_dict().items() if is_tensor(v)}
    return {
        "result": detached(result),
        "inputs after": detached(given),
        "parameter gradients": {k: g for k, g in grads.items() if g is not None},
        "input gradients": [leaf.grad for leaf in leaves],
        "state": state,
    }


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def differentiable(value: Any) -> bool:
    return is_tensor(value) and value.is_floating_point() and not value.is_sparse


def tensors(value: Any) -> list[Tensor]:
    """Every tensor within dicts, lists, tuples and dataclasses."""
    if is_tensor(value):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def detached(value: Any) -> Any:
    """`value` with its tensors cut from autograd and copied."""
    memo = {id(t): t.detach().clone() for t in tensors(value)}
    try:
        return copy.deepcopy(value, memo)
    except TypeError:
        return type(value)


def everything(model: nn.Module) -> dict[str, Any]:
    """A copy of all parameters, buffers and plain attributes of a model."""
    kept: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if name in ("_parameters", "_buffers"):
                value = {k: copy.copy(v.detach().clone()) for k, v in value.items() if is_usual(v)}
            elif name.endswith(("_modules", "_hooks")):
                value = list(value)
            elif is_usual(value):
                value = value.detach().clone()
            elif not isinstance(value, int | float | str | list | dict | tuple | type(None)):
                continue
            kept[f"{path}.{name}"] = detached(value) if tensors(value) else plain_copy(value)
    for path, parameter in model.named_parameters():
        kept[f"{path}.grad"] = copy.copy(parameter.grad)
    return kept


def is_usual(value: Any) -> bool:
    return is_tensor(value) and not nn.parameter.is_lazy(value)


def plain_copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return repr(value)


def assert_plain(message: str) -> None:
    found = INTERNALS.search(message)
    assert not found, f"the message speaks of '{found and found.group()}': {message}"


def assert_same(where: str, came: Any, wanted: Any) -> None:
    """Asserts equal structure, types, dtypes and numbers."""
    if is_tensor(wanted):
        assert is_tensor(came), f"{where}: expected a tensor, came {type(came).__name__}"
        assert came.layout == wanted.layout, f"{where}: {came.layout}, not {wanted.layout}"
        torch.testing.assert_close(came, wanted, equal_nan=True, msg=lambda m: f"{where}: {m}")
        return
    if dataclasses.is_dataclass(wanted) and not isinstance(wanted, type):
        assert type(came) is type(wanted), f"{where}: {type(came)}, not {type(wanted)}"
        came, wanted = vars(came), vars(wanted)
    if isinstance(wanted, dict):
        assert isinstance(came, dict), f"{where}: {type(came)}, not {type(wanted)}"
        assert list(came) == list(wanted), f"{where}: keys {list(came)}, not {list(wanted)}"
        for key in wanted:
            assert_same(f"{where}, {key}", came[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        # A size as a result is a tuple of the graph.
        kind = tuple if isinstance(wanted, torch.Size) else type(wanted)
        assert type(came) in (kind, type(wanted)), f"{where}: {type(came)}, not {kind}"
        assert len(came) == len(wanted), f"{where}: {len(came)} items, not {len(wanted)}"
        for index, (one, other) in enumerate(zip(came, wanted, strict=True)):
            assert_same(f"{where}, {index}", one, other)
    elif isinstance(wanted, int | float | str | bool | type(None)):
        assert came == wanted, f"{where}: {came!r}, not {wanted!r}"
