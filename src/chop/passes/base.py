"""Graph passes: functions with the decorator `@graph_pass`, one per file."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

from torch import nn

from chop.base.plugins import Registry
from chop.config import convert, ignoring, parse, without_na
from chop.errors import (
    ChopError,
    ConfigError,
    GraphError,
    describe,
    did_you_mean,
    enumerate_names,
)
from chop.ir.graph import MaseGraph, Provenance
from chop.ir.verify import verify
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.passes.documentation import pass_docstring

C = TypeVar("C")
log = logging.getLogger(__name__)


class GraphPass(Protocol):
    """Signature of passes: `mg, info = some_pass(mg, {...})`."""

    __name__: str

    def __call__(
        self,
        mg: MaseGraph | None = None,
        pass_args: Any = None,
        *,
        graph: MaseGraph | None = None,
        inplace: bool = False,
    ) -> tuple[MaseGraph, dict[str, Any]]:
        """Runs the pass on `mg` (or `graph`) and returns the graph and the info."""


def _checked_pass(name: str, value: Any) -> GraphPass:
    """Checks the value that a package declares as the pass `name`."""
    own_name = getattr(value, "__name__", None)
    if not callable(value) or own_name is None:
        raise PASSES.misfit(name, value, "a function under @graph_pass")
    if own_name != name:
        raise PASSES.misname(name, value, own_name)
    return cast(GraphPass, value)


MASE_KEYS = (
    "report",
    "baseline_weight_path",
    "load_name",
    "load_type",
    "input_generator",
    "dummy_in",
    "add_value",
    "force_device_meta",
)
"""Keys of MASE configs that are read elsewhere or not needed here."""
PASSES: Registry[GraphPass] = Registry("passes", as_row=_checked_pass)
"""Registry of the passes of `graph_pass` by name, and of passes of other packages."""


@dataclasses.dataclass(frozen=True)
class NoConfig:
    """Empty settings of passes without options."""


def graph_pass(
    config: type[C] | Callable[[Mapping[str, Any]], C],
    requires: Iterable[str] = (),
    takes_packed: bool = False,
    ignores: Collection[str] = (),
) -> Callable[[Callable[[MaseGraph, C], dict[str, Any]]], GraphPass]:
    """Creates a pass from a function `(mg, config) -> info`.

    The pass is called as `(mg, pass_args={}, inplace=False)`. Its settings are parsed into `config`
    and do not change. A pass whose name ends in `_transform_pass` works on a copy, unless `inplace`
    is true. Other passes annotate the given graph. The returned graph is verified and records the
    pass.

    Args:
        config: frozen dataclass of the settings, or a function that builds one from a mapping.
        requires: names of passes that must run before. Missing analysis passes are run with their
            defaults; missing transform passes are an error.
        takes_packed: true if a transform pass supports layers with packed weights.
        ignores: keys without effect, which are logged at debug level; if given, MASE's "NA" is read
            as None.

    Raises:
        ConfigError: if `config` is neither a dataclass nor a function, or the name of the pass has
            no known ending. Raised by the pass, if a setting is invalid, `requires` names no pass,
            or the function returns no dictionary.
        GraphError: raised by the pass, if a required transform pass has not run, the graph is not
            a MaseGraph, or it has packed layers that the pass would have to change.
    """
    if not callable(config) or getattr(config, "__name__", "").endswith(ENDINGS):
        raise ConfigError(f"{USAGE}, got {getattr(config, '__name__', config)!r} as config.")

    if isinstance(requires, str):
        raise ConfigError(f"{USAGE}; requires: expected a list of names, got {requires!r}.")

    def decorate(function: Callable[[MaseGraph, C], dict[str, Any]]) -> GraphPass:
        name = function.__name__
        if not name.endswith(ENDINGS):
            raise ConfigError(f"pass '{name}': expected a name that ends in {', '.join(ENDINGS)}.")
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise ConfigError(f"pass '{name}': {USAGE}, but {error}.") from None
        transforms = name.endswith("_transform_pass")

        def run(
            mg: MaseGraph | None = None,
            pass_args: Any = None,
            *others: Any,
            graph: MaseGraph | None = None,
            inplace: bool = False,
            **unknown: Any,
        ) -> tuple[MaseGraph, dict[str, Any]]:
            _check_arguments(name, others, unknown)
            if mg is not None and graph is not None and mg is not graph:
                raise GraphError(f"{name}: mg and graph are two names of one argument; drop one.")
            given = graph if mg is None else mg
            convert(inplace, bool, f"{name}: inplace")
            _check_names(name, requires)
            check_graph(name, given, [needed for needed in requires if not _is_analysis(needed)])
            assert given is not None
            if transforms and not takes_packed:
                _refuse_packed(name, given)
            if ignores and isinstance(pass_args, Mapping):
                pass_args = ignoring(without_na(pass_args), ignores, name)
            settings = _parse(config, pass_args, name)
            result = given.copy() if transforms and not inplace else given
            with _explaining_missing_data(name, result):
                _run_missing(result, requires)
                info = function(result, settings)
            if not isinstance(info, dict):
                raise ConfigError(
                    f"{name}: {USAGE}, which returns a dictionary, got {describe(info)}."
                )
            if transforms:
                _log_if_unchanged(name, info)
            result.provenance.append(Provenance(name, repr(settings)[:MAX_CONFIG_TEXT]))
            if result.is_captured:
                verify(result)
            return result, info

        PASSES[name] = made = _as_pass(run, function, config, transforms)
        return made

    return decorate


@contextmanager
def _explaining_missing_data(name: str, mg: MaseGraph) -> Iterator[None]:
    """Turns torch's errors on a model without data, on the meta device, into a GraphError."""
    try:
        yield
    except RuntimeError as error:
        empty = next((path for path, x in mg.model.named_parameters() if x.is_meta), None)
        if empty is None or isinstance(error, ChopError):
            raise
        raise GraphError(
            f"{name}: parameter '{empty}' is on the meta device, without data: load the weights "
            "first (model.load_state_dict(..., assign=True)), then capture the model."
        ) from error


def _log_if_unchanged(name: str, info: Mapping[str, Any]) -> None:
    """Logs a warning if a pass skipped all layers that it looked at."""
    if info.get("skipped") and not any(x for key, x in info.items() if key != "skipped"):
        reasons = [f"'{layer}': {reason}" for layer, reason in info["skipped"].items()]
        log.warning("%s: nothing was changed; %s", name, enumerate_names(reasons, 3))


def _check_arguments(name: str, others: Collection[Any], unknown: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that are arguments of their own, without a dictionary."""
    if not others and len(unknown) == 1 and isinstance(next(iter(unknown.values())), Mapping):
        raise ConfigError(
            f"{name}: unknown argument '{next(iter(unknown))}': pass the settings as the second "
            f"argument, {name}(mg, settings), or as pass_args=settings."
        )
    if others or unknown:
        got = ", ".join(unknown) or f"{2 + len(others)} without names"
        raise ConfigError(
            f"{name}: expected a graph and one dictionary of settings, {name}(mg, "
            f"{{'{next(iter(unknown), 'key')}': ...}}), got the arguments {got}."
        )


def _as_pass(
    run: Callable[..., Any], function: Callable[..., Any], config: Any, transforms: bool
) -> GraphPass:
    """Wraps `run` with the name of `function` and the signature and help of a pass."""
    named = functools.wraps(function, assigned=("__module__", "__name__", "__qualname__"))(run)
    # What `help` and type hints show is how the pass is called, not the function inside.
    call = inspect.signature(GraphPass.__call__, eval_str=True)
    parameters = [p for name, p in call.parameters.items() if name != "self"]
    named.__signature__ = call.replace(parameters=parameters)  # type: ignore[attr-defined]
    named.__annotations__ = {p.name: p.annotation for p in parameters}
    named.__annotations__["return"] = call.return_annotation
    arguments = TRANSFORM_ARGUMENTS if transforms else ANNOTATE_ARGUMENTS
    named.__doc__ = pass_docstring(function, config, arguments, "the graph")
    return cast(GraphPass, named)


TRANSFORM_ARGUMENTS = {
    "mg": "graph, of which a copy is changed.",
    "pass_args": "",
    "graph": "the same as `mg`; MASE's name.",
    "inplace": "changes the graph instead of a copy.",
}
ANNOTATE_ARGUMENTS = {
    "mg": "graph to read and annotate.",
    "pass_args": "",
    "graph": "the same as `mg`; MASE's name.",
    "inplace": "has no effect, since the graph itself is returned.",
}


MAX_CONFIG_TEXT = 2000
QUANTIZES = "quantize_transform_pass"
"""Pass whose result a graph of a quantized model also has."""
METADATA = ("init_metadata_analysis_pass", "add_common_metadata_analysis_pass")
ENDINGS = ("_analysis_pass", "_transform_pass", "_interface_pass")
"""Endings of the names of passes."""
USAGE = "expected @graph_pass(config=SomeDataclass) above a function (mg, config)"


def check_graph(name: str, mg: object, requires: Iterable[str] = ()) -> None:
    """Raises GraphError unless `mg` is a graph on which the passes `requires` have run."""
    if not isinstance(mg, MaseGraph):
        advice = "; capture it: MaseGraph(model)" if isinstance(mg, nn.Module) else ""
        if isinstance(mg, tuple):
            advice = "; unpack what a pass returns: mg, info = ..."
        raise GraphError(f"{name}: expected a MaseGraph, got {type(mg).__name__}{advice}.")
    done = {step.name for step in mg.provenance}
    for needed in requires:
        if needed not in done and not (needed == QUANTIZES and _is_quantized(mg)):
            settings = ", {...}" * (needed == QUANTIZES)
            raise GraphError(f"{name}: run {needed}(mg{settings}) first.")


def _is_quantized(mg: MaseGraph) -> bool:
    """Returns True if a graph has quantized layers, as that of a model from `chop.quantize`."""
    modules = (x for x in mg.model.modules() if isinstance(x, QuantizedOperator))
    return any(not module.spec.is_float for module in modules)


def _check_names(name: str, requires: Iterable[str]) -> None:
    for needed in requires:
        if needed not in PASSES:
            raise ConfigError(f"{name} requires '{needed}': {did_you_mean(needed, PASSES)}")


def _is_analysis(name: str) -> bool:
    return name.endswith("_analysis_pass") and name in PASSES


def _run_missing(mg: MaseGraph, requires: Iterable[str]) -> None:
    """Runs the missing analysis passes among the required ones with their defaults."""
    names = [step.name for step in mg.provenance]
    if METADATA[0] in names:  # initialization empties the metadata of earlier passes
        names = names[len(names) - 1 - names[::-1].index(METADATA[0]) :]
    done = set(names)
    for needed in requires:
        if needed not in done and _is_analysis(needed):
            PASSES[needed](mg)
        elif needed == QUANTIZES and needed not in done:
            _run_missing(mg, METADATA)


def _refuse_packed(name: str, mg: MaseGraph) -> None:
    for path, module in mg.model.named_modules():
        if isinstance(module, PackedOperator):
            raise GraphError(
                f"{name}: layer '{path}' is packed and cannot be changed; unpack it first: "
                "mg, _ = pack_transform_pass(mg, {'unpack': True})."
            )


def _parse(config: type[C] | Callable[[Mapping[str, Any]], C], settings: Any, where: str) -> C:
    if isinstance(config, type) and dataclasses.is_dataclass(config):
        parsed: C = parse(config, settings, where)
        return parsed
    if isinstance(settings, Mapping | None):
        return config(dict(settings or {}))
    raise ConfigError(f"{where}: expected a mapping, got {describe(settings)}.")
