"""Subcases: one test that runs its body for many values and names each that fails.

A case of `pytest.mark.parametrize` costs milliseconds, and as much again in each worker that
collects it. `subcases` takes its place where the body takes less. Where it takes more, as on a GPU
that compiles a kernel for each, `CHOP_SUBCASES=apart` makes a case of each run, for many workers.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import evenly_spread, fix_seeds

Arguments = Mapping[str, Any]
Ids = Callable[[Any], object] | Iterable[object] | None
Test = Callable[..., None]


def subcases(names: str, values: Iterable[Any], ids: Ids = None, kept: int | None = None) -> Any:
    """Decorates a test: its body runs once for each of `values`, in one case of pytest.

    Each run has the seeds of a new test, a `monkeypatch` of its own and an empty `tmp_path`;
    other fixtures are shared. Runs that skip are left out; where all do, the test skips.

    Args:
        names: parameters of the test, separated by commas.
        values: one per run; of several names a tuple or a `pytest.param`.
        ids: as in `pytest.mark.parametrize`.
        kept: `make test` runs as many, evenly spread, and `make test-long` the others; stands in
            the topmost decorator of several, which together run all combinations.
    Raises:
        BaseExceptionGroup: with the ids of the runs that failed, and the error of each.
    """
    wanted = [name.strip() for name in names.split(",")]
    if os.environ.get("CHOP_SUBCASES") == "apart":
        return pytest.mark.parametrize(names, list(values), ids=ids)
    runs = dict(_named_runs(wanted, list(values), ids))

    def decorate(test: Test) -> Test:
        body, inner = getattr(test, "subcases", (test, {"": {}}))
        product = {
            f"{inner_label}-{label}".strip("-"): {**arguments, **own}
            for label, own in runs.items()
            for inner_label, arguments in inner.items()
        }
        names_of_body = [*inspect.signature(test).parameters]
        assert runs and set(wanted) <= set(names_of_body), f"{names}: {names_of_body}"
        made = _as_test(test, wanted, functools.partial(_run_all, body, product))
        made.subcases = (body, product)  # type: ignore[attr-defined]
        return made if kept is None else _sampled(made, body, product, kept)

    return decorate


def _sampled(test: Test, body: Test, runs: Mapping[str, Arguments], kept: int) -> Test:
    """Two cases of pytest: `kept` of the runs, and a long one with the others."""
    chosen = evenly_spread(len(runs), kept)
    parts: dict[str, dict[str, Arguments]] = {"kept": {}, "others": {}}
    for number, (label, arguments) in enumerate(runs.items()):
        parts["kept" if number in chosen else "others"][label] = arguments

    def run(part: str, **given: Any) -> None:
        _run_all(body, parts[part], **given)

    cases = ["kept", pytest.param("others", marks=pytest.mark.long)][: 1 + bool(parts["others"])]
    return pytest.mark.parametrize("part", cases)(_as_test(test, [], run, ["part"]))


def _named_runs(names: list[str], values: list[Any], ids: Ids) -> Iterator[tuple[str, Arguments]]:
    """Each run's id, made unique by its number, and its arguments by name."""
    labels = None if ids is None or callable(ids) else list(ids)
    seen: set[str] = set()
    for number, value in enumerate(values):
        is_param = hasattr(value, "marks")
        assert not is_param or not value.marks, f"{value}: a subcase has no marks"
        given = value.values if is_param else (value,) if len(names) == 1 else value
        label = value.id if is_param and value.id else labels[number] if labels else None
        if label is None:
            label = "-".join(str(ids(one) if callable(ids) else one) for one in given)
        if label in seen:
            label = f"{label}-{number}"
        seen.add(label)
        yield str(label), dict(zip(names, given, strict=True))


def _as_test(test: Test, without: list[str], run: Test, more: Iterable[str] = ()) -> Test:
    """`run` with the name, documentation, marks and parameters of `test`, `without` some."""
    made = functools.wraps(test)(lambda **given: run(**given))
    del made.__wrapped__  # type: ignore[attr-defined]
    names = [name for name in inspect.signature(test).parameters if name not in without]
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*more, *names)]
    )
    return made


def _run_all(test: Test, runs: Mapping[str, Arguments], /, **given: Any) -> None:
    failed: dict[str, BaseException] = {}
    skipped: list[BaseException] = []
    for number, (label, arguments) in enumerate(runs.items()):
        try:
            _run(test, number, {**given, **arguments})
        except pytest.skip.Exception as reason:
            skipped.append(reason)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"in the subcase {label}")
            failed[label] = error
    if failed:
        message = f"{len(failed)} of {len(runs)} subcases failed: {', '.join(failed)}"
        raise BaseExceptionGroup(message, list(failed.values()))
    if len(skipped) > len(runs) // 2:
        pytest.skip(f"{len(skipped)} of {len(runs)} subcases: {skipped[0]}")


def _run(test: Test, number: int, given: dict[str, Any]) -> None:
    """One run, with what pytest makes anew for each test."""
    fix_seeds()
    with pytest.MonkeyPatch.context() as monkeypatch:
        if "monkeypatch" in given:
            given["monkeypatch"] = monkeypatch
        if "tmp_path" in given:
            given["tmp_path"] = Path(given["tmp_path"]) / str(number)
            given["tmp_path"].mkdir()
        test(**given)
