"""Allowlist of checkpoints: functions, methods and classes that a file may name.

A file contains names such as `"torch:add"`. Only names on this list are resolved, so that a
manipulated file cannot reach `torch.load`, `os.system` or a module that runs code on import.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chop.base.nested import read_field
from chop.base.plugins import get_root, missing
from chop.captured.huggingface.cache import NODE_FUNCTIONS
from chop.captured.layers.attention import ProjectedAttention
from chop.captured.layers.expert_linear import ExpertLinear
from chop.captured.module_tree import Scope
from chop.captured.nodes.targets import PYTHON_OPERATORS
from chop.captured.runtime import (
    REGIONS,
    AutogradCall,
    ByMode,
    FastPathPadding,
    by_mode,
    guard_autocast,
    guard_value,
    retain_grad,
    set_item,
)
from chop.errors import CheckpointError, shorten
from chop.formats import NumberFormat, QuantSpec
from chop.ir.ops import OPS
from chop.nn.packed import PACKED
from chop.private.torch_api import (
    ASSERT,
    IS_ALL_TRUE,
    NN_FUNCTIONS,
    SET_GRAD_ENABLED,
    OpOverload,
    get_schema,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# torch's list of functions with tensor arguments lacks factory functions.
FACTORIES = _words(
    "arange as_strided as_tensor asarray bartlett_window blackman_window broadcast_shapes complex "
    "empty empty_strided eye full hamming_window hann_window kaiser_window linspace logspace "
    "normal ones polar rand randint randn randperm range scalar_tensor tensor tril_indices "
    "triu_indices vander zeros rand_like randn_like randint_like sym_float sym_int sym_ite "
    "sym_max sym_min sym_not sym_sqrt sym_sum fftfreq rfftfreq result_type promote_types "
    "is_tensor is_grad_enabled"
)
BUILTINS = _words(
    "abs all any bool complex dict divmod float getattr int len list max min pow range round "
    "set slice sum tuple zip"
)
OPERATORS = frozenset(PYTHON_OPERATORS) | _words(
    "and_ or_ not_ truth contains index is_ is_not concat iconcat imatmul"
)
# Methods that call back into Python, expose raw memory or leave torch.
REFUSED_METHODS = _words(
    "apply_ map_ map2_ module_load numpy register_hook register_post_accumulate_grad_hook set_ "
    "share_memory_ storage untyped_storage data_ptr"
)
REFUSED_OPERATORS = _words("from_file save set_data manual_seed warn")
# Functions that call an argument: with these, reading an attribute could run code.
CALLING = _words("triplet_margin_with_distance_loss handle_torch_function boolean_dispatch")
CALLING_CLASSES = _words("TripletMarginWithDistanceLoss")
OPERATOR_METHODS = _words("__contains__ __rpow__ __rmod__ __rlshift__ __rrshift__ __rfloordiv__")
OPERATOR_NAMESPACES = re.compile(r"(aten|prims|chop)\.[a-z]\w*\.\w+")
TORCH_HOMES = ("torch.nn.modules.", "torch.nn.utils.parametriz")
TRANSFORMERS_HOMES = re.compile(
    r"transformers\.(activations|modeling_outputs|pytorch_utils|models\.\w+\.modeling_\w+)"
)
# Optional packages with models; see `_is_installed`.
LAYER_HOMES = re.compile(r"(timm\.(layers|models)|torchvision\.(models|ops))(\.\w+)*")
CHOP_HOMES = re.compile(r"chop\.nn(\.\w+)*")
CHOP_FUNCTION_HOMES = re.compile(r"chop\.nn\.quantized(\.\w+)*")
CAPTURED_CLASSES = {
    cls.__name__: cls for cls in (ByMode, ExpertLinear, FastPathPadding, ProjectedAttention, Scope)
}
CAPTURED_FUNCTIONS = {
    function.__name__: function
    for function in (
        *(set_item, read_field, retain_grad, guard_value, guard_autocast, by_mode),
        *(*REGIONS, *NODE_FUNCTIONS),
    )
}
# Imports are slow, and no model has layers from so many files.
MAX_IMPORTS = 64

CAPTURED_HOMES = re.compile(r"chop\.(capture|captured|nested|base\.nested)(\.\w+)*")
"""Modules, in this and earlier versions, that define parts of captured graphs."""


def get_reference(thing: Any) -> str:
    """Returns `module:qualname`, the name of a class or function in a file."""
    return f"{thing.__module__}:{thing.__qualname__}"


def _captured(reference: str, known: Mapping[str, Any]) -> Any | None:
    home, _, name = reference.partition(":")
    return known.get(name) if CAPTURED_HOMES.fullmatch(home) else None


class AllowList:
    """Resolver of the names in a checkpoint.

    Args:
        extra: the caller's own classes and functions that the checkpoint may contain.
    """

    def __init__(self, extra: Iterable[Any] = ()) -> None:
        self._extra: dict[str, Any] = {get_reference(thing): thing for thing in extra}
        self._imports: set[str] = set()

    def own(self, reference: str) -> Any:
        """Returns the caller's object of that name, or None."""
        return self._extra.get(reference)

    def function(self, reference: str) -> Callable[..., Any]:
        """Returns the function that a graph node or a module attribute names.

        Raises:
            CheckpointError: if it is not on the list.
        """
        if reference in self._extra:
            given: Callable[..., Any] = self._extra[reference]
            return given
        owner = self._extra.get(reference.removesuffix(".apply"))
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            return AutogradCall(owner)
        function = _functions().get(reference) or _captured(reference, CAPTURED_FUNCTIONS)
        if function is None:
            function = _operator_overload(reference)
        if function is None:
            function = self.imported(CHOP_FUNCTION_HOMES, reference, inspect.isfunction)
        if function is None:
            function = self.imported(TRANSFORMERS_HOMES, reference, _is_output_class)
        if function is None:
            raise CheckpointError(
                f"the checkpoint calls '{shorten(reference)}', which is not on the list of "
                "functions that a checkpoint may call; if it is yours, pass "
                f"allow=[{shorten(_last(reference))}] to MaseGraph.from_checkpoint."
            )
        return function

    def function_value(self, reference: str) -> Callable[..., Any]:
        """Returns a function that is an argument of a module or another function.

        Python's own functions are rejected: uses such as `getattr` are checked at the node that
        calls them.

        Raises:
            CheckpointError: if it is not on the list.
        """
        if reference.startswith("builtins:") and reference not in self._extra:
            raise CheckpointError(f"the checkpoint passes on '{reference}', which is not allowed.")
        return self.function(reference)

    def check_call(self, reference: str, args: Sequence[Any], kwargs: Iterable[str]) -> None:
        """Checks the arguments of functions that could run more than the function itself.

        Raises:
            CheckpointError: if an attribute is not allowed, or a function would be called.
        """
        if reference == "builtins:getattr":
            self.attribute(args[1] if len(args) > 1 else None)
        if reference.startswith("builtins:") and "key" in kwargs:
            raise CheckpointError(f"the checkpoint calls '{reference}' with a key function.")

    def method(self, name: str) -> str:
        """Returns `name` if a graph may call that method of a tensor.

        Raises:
            CheckpointError: if it is not on the list.
        """
        is_plain = not name.startswith("_") and callable(getattr(Tensor, name, None))
        if (is_plain or name in OPERATOR_METHODS) and name not in REFUSED_METHODS:
            return name
        raise CheckpointError(f"the checkpoint calls the method '{name}', which is not allowed.")

    def attribute(self, name: Any) -> str:
        """Returns `name` if a graph may read that attribute with `getattr`.

        Methods are rejected, since another call could run a bound method.

        Raises:
            CheckpointError: if it is not on the list.
        """
        is_public = isinstance(name, str) and name.isidentifier() and not name.startswith("_")
        if is_public and not any(callable(getattr(owner, name, None)) for owner in _owners()):
            return str(name)
        raise CheckpointError(f"the checkpoint reads the attribute {name!r}, which is not allowed.")

    def module_class(self, reference: str, package: str | None = None) -> type[nn.Module]:
        """Returns the class of a module in the checkpoint.

        Args:
            reference: `module:name`.
            package: package and version that declared it as an operator, according to the file.

        Raises:
            CheckpointError: if it is not on the list.
        """
        candidate: Any = self._extra.get(reference) or _torch_classes().get(reference)
        if candidate is None:
            candidate = _captured(reference, CAPTURED_CLASSES) or _declared_class(reference)
        for homes in (CHOP_HOMES, TRANSFORMERS_HOMES, LAYER_HOMES):
            candidate = candidate or self.imported(homes, reference, _is_module_class)
        if not _is_module_class(candidate):
            if package is not None:
                why = missing(str(package))
                raise CheckpointError(f"the checkpoint's operator '{_last(reference)}' {why}")
            root = get_root(home := reference.partition(":")[0])
            absent = LAYER_HOMES.fullmatch(home) and not _is_installed(root)
            own = f"allow=[{_last(reference)}] to MaseGraph.from_checkpoint"
            way = f"install {root}" if absent else f"if it is yours, pass {own}"
            raise CheckpointError(
                f"the checkpoint contains a module of class '{reference}', which is not on the "
                f"list of classes; {way}."
            )
        module_class: type[nn.Module] = candidate
        return module_class

    def imported(
        self, homes: re.Pattern[str], reference: str, fits: Callable[[Any], bool]
    ) -> Any | None:
        """Returns an object that one of `homes` defines itself; its own imports do not count.

        Args:
            homes: modules that may be imported.
            reference: `module:name`.
            fits: predicate of the object.

        Returns: None if there is no such object, or its package is not installed.

        Raises:
            CheckpointError: if the file has caused too many imports.
        """
        home, _, name = reference.partition(":")
        if not homes.fullmatch(home) or not name.isidentifier():
            return None
        if home not in sys.modules:
            self._imports.add(home)
        if len(self._imports) > MAX_IMPORTS:
            raise CheckpointError(f"the checkpoint names classes of over {MAX_IMPORTS} modules.")
        try:
            installed = homes is not LAYER_HOMES or _is_installed(home.partition(".")[0])
            candidate = vars(importlib.import_module(home)).get(name) if installed else None
        except (ImportError, RuntimeError):
            # torchvision raises RuntimeError if it does not fit torch.
            return None
        return candidate if fits(candidate) and candidate.__module__ == home else None


def _owners() -> tuple[type, ...]:
    """Returns the classes of objects that can occur in a graph."""
    transformers = sys.modules.get("transformers.configuration_utils")
    configs = () if transformers is None else (transformers.PretrainedConfig,)
    plain = (dict, list, tuple, str, torch.Size, torch.dtype, torch.device, types.FunctionType)
    return (Tensor, nn.Module, NumberFormat, QuantSpec, OpOverload, *plain, *configs)


def _declared_class(reference: str) -> type[nn.Module] | None:
    """Returns a class of an operator that an installed package or the program declares."""
    for row in OPS.values():
        quantized = (row.quantized, row.quantized and PACKED.get(row.quantized))
        kinds: tuple[type[nn.Module] | None, ...] = (
            *row.modules,
            *quantized,
            row.twin,
            row.integer,
        )
        for kind in kinds:
            if kind is not None and get_reference(kind) == reference:
                return kind
    return None


def _last(reference: str) -> str:
    return reference.rpartition(":")[2].removesuffix(".apply").rpartition(".")[2]


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Returns functions by `home:name`, cached; imports nothing."""
    overridable = {
        id(function)
        for functions in torch.overrides.get_overridable_functions().values()
        for function in functions
    }
    compiled = {id(function) for function in vars(NN_FUNCTIONS).values()}
    table: dict[str, Callable[..., Any]] = {
        "torch._C:_set_grad_enabled": SET_GRAD_ENABLED,
        "torch:_assert": ASSERT,
        "torch:_is_all_true": IS_ALL_TRUE,
    }
    homes = (torch, F, torch.linalg, torch.fft, torch.special, NN_FUNCTIONS)
    for home in homes:
        for name, value in _public_callables(home):
            is_ours = home is F and (value.__module__ == F.__name__ or id(value) in compiled)
            known = id(value) in overridable or name in FACTORIES or is_ours
            if known and name not in CALLING:
                table[f"{home.__name__}:{name}"] = value
    for name, value in _public_callables(operator):
        if name in OPERATORS:
            table[f"operator:{name}"] = value
    table |= {f"builtins:{name}": getattr(builtins, name) for name in BUILTINS}
    table |= {f"math:{name}": value for name, value in _public_callables(math)}
    for name in dir(Tensor):
        is_plain = not name.startswith("_") and name not in REFUSED_METHODS
        if is_plain and callable(value := getattr(Tensor, name)):
            table[f"torch.Tensor:{name}"] = value
    return table


def _public_callables(home: types.ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(home).items():
        if not name.startswith("_") and callable(value) and not isinstance(value, type):
            yield name, value


def _operator_overload(reference: str) -> Callable[..., Any] | None:
    home, _, name = reference.partition(":")
    if home != "torch.ops" or not OPERATOR_NAMESPACES.fullmatch(name):
        return None
    try:
        overload: Any = operator.attrgetter(name)(torch.ops)
    except AttributeError:
        return None
    base = name.split(".")[1]
    types = [str(argument.type) for argument in get_schema(overload).arguments]
    takes_storage = any(kind in ("Storage", "str", "t") for kind in types)
    if base in REFUSED_METHODS | REFUSED_OPERATORS or (takes_storage and "chop." not in name):
        return None
    call: Callable[..., Any] = overload
    return call


@cache
def _torch_classes() -> dict[str, type[nn.Module]]:
    homes = [home for name, home in sys.modules.items() if name.startswith(TORCH_HOMES)]
    return {
        get_reference(value): value
        for home in homes
        for value in vars(home).values()
        if _is_module_class(value)
        and value.__module__ == home.__name__
        and value.__name__ not in CALLING_CLASSES
    }


def _is_module_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _is_output_class(value: Any) -> bool:
    from transformers.utils.generic import ModelOutput

    return isinstance(value, type) and issubclass(value, ModelOutput)


def _is_installed(package: str) -> bool:
    """Returns whether a package is imported or installed as a distribution.

    A folder of that name in the working directory does not count: it may have come with the file,
    and importing it would run its code.
    """
    if package in sys.modules:
        return True
    spec = importlib.util.find_spec(package)
    try:
        home = Path(str(importlib.metadata.distribution(package).locate_file(package)))
    except importlib.metadata.PackageNotFoundError:
        return False
    places = map(Path, (spec and spec.submodule_search_locations) or ())
    here = Path.cwd().resolve()
    return any(x.resolve() == home.resolve() and x.resolve().parent != here for x in places)
