"""Captured module: a graph module that copies, pickles, and checks guards at each call."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from chop.base.files.library_errors import library_errors
from chop.captured.call_arguments import call_arguments
from chop.captured.dtype_constants import float_dtypes, follow_cast
from chop.captured.followed_calls import warn_about_compiled
from chop.captured.guards.input_guards import check_input_guards
from chop.captured.guards.shape_guards import (
    MAX_LENGTH,
    ShapeGuard,
    compile_guard,
    guard_holds,
    violation_message,
)
from chop.captured.huggingface.cache import check_optional
from chop.captured.huggingface.generation import generator
from chop.captured.module_tree import changed_scopes, member_at
from chop.captured.nodes.generated_code import input_name, set_code_generator, wrap_forward
from chop.captured.nodes.modes import MODE, Forwards, IsTraining, copy_in_mode, mode_paths
from chop.captured.nodes.node_list import NodeRecord, graph_to_nodes, nodes_to_graph
from chop.captured.original import KEY
from chop.captured.overrides import has_hooks
from chop.captured.padding.hidden import following, is_followed_call
from chop.captured.record import CaptureRecord, RecordAttribute
from chop.captured.runtime import exit_open_regions
from chop.captured.specs import check_matches
from chop.captured.state import outer_values
from chop.captured.state.outer_values import OuterValues
from chop.captured.state.python_state import PythonState
from chop.errors import ConfigError, GuardError
from chop.private.modules import own_buffers
from chop.private.torch_api import source_lives_with

_NOT_STATE = ("_graph", "_code", "_lineno_map", "_prologue_start", "_compiled_guards")
_PICKLED_META = ("spec", "nn_module_stack", "source", MODE)


class CapturedModule(fx.GraphModule):
    """The graph of a model together with the model's module tree.

    Call it like the model: positions are those of its `forward`. Arguments of the model that were
    not captured are dropped if they have no effect (None, the default of the signature,
    `token_type_ids` of zeros) and refused otherwise. Inputs of shapes outside of the guards are
    refused. Call `recompile()` after a change of `graph`.

    Parameters, buffers and children of the model may have any names. If a name is an attribute of
    `torch.fx.GraphModule` (`graph`, `code`, `meta`), the attribute is that of `torch.fx`, and
    `get_submodule`, `get_parameter`, `get_buffer` and `state_dict` have the model's member.

    Raises:
        GuardError: a call violates a guard.
    """

    def __init__(self, class_name: str) -> None:
        super().__init__(nn.Module(), fx.Graph(), class_name)
        self._record = CaptureRecord(class_name)

    @property
    def record(self) -> CaptureRecord:
        """The record of the capture."""
        record: CaptureRecord = self.__dict__["_record"]
        return record

    # transformers reads this attribute of a model.
    config: Any = RecordAttribute("config")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the graph; the class docstring lists ignored and refused arguments."""
        args, accepted = call_arguments(self.record, args, kwargs)
        # Dynamo treats `forward` as a constant of the class, but guards the code that it reads.
        if torch.compiler.is_compiling() and self._code:
            warn_about_compiled(self)
            return super().__call__(*args, **accepted)
        if self.training and self.record.eval_only is not None:
            raise GuardError(f"the graph was captured for eval() only: {self.record.eval_only}")
        self._check_inputs(args, accepted)
        self._check_scopes()
        # A node ends a `no_grad` or autocast region of the graph. After an error inside the region,
        # the gradient mode and autocast of the caller have to be restored here.
        with torch.set_grad_enabled(torch.is_grad_enabled()), exit_open_regions():
            if is_followed_call(self, self.record.example_inputs):
                return self._call_followed(args, accepted)
            return super().__call__(*args, **accepted)

    def _call_followed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Runs the graph while its parts can query which elements of their inputs are padding."""
        names = [*self.record.example_inputs, *self.record.optional_inputs]
        named = dict(zip(names, args, strict=False))
        with following(self, {**named, **kwargs}, copies=False) as given:
            return super().__call__(
                *(given[name] for name in named), **{k: given[k] for k in kwargs}
            )

    def admit(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], runs_modules: bool = True
    ) -> dict[str, Any]:
        """Returns the inputs of the graph by name, after all checks of a call.

        Interpreters that run the graph node by node use it to get the same inputs as a call.

        Args:
            args: inputs by position.
            kwargs: inputs by name.
            runs_modules: False skips the checks of hooks and changed modules, for programs that
                were made from the graph earlier.

        Raises:
            GuardError: the inputs violate a guard.
        """
        args, accepted = call_arguments(self.record, args, kwargs)
        self._check_inputs(args, accepted)
        if runs_modules:
            self._check_scopes()
        names = [*self.record.example_inputs, *self.record.optional_inputs]
        return dict(zip(names, args, strict=False)) | accepted

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Continues texts like the model's own `generate`, see `transformers`.

        Raises:
            CaptureError: the graph takes no cache; the message has the reason.
            ConfigError: the texts are no tensor, or transformers rejects the arguments.
        """
        texts = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        if texts is not None and not isinstance(texts, Tensor):
            raise ConfigError(
                "generate: expected token IDs as a tensor (texts, tokens), got a "
                f"{type(texts).__name__}; a tokenizer's result is passed as generate(**tokens)."
            )
        original = vars(self).get(KEY)
        cls = original and original.get_class("")
        model = generator(self, self.record, cls)
        name = self.record.class_name
        with library_errors(name, error=ConfigError, problem="cannot generate"):
            return model.generate(*args, **kwargs)

    def train(self, mode: bool = True) -> CapturedModule:
        """Sets the mode; modules that the model itself keeps in `eval()` stay there."""
        super().train(mode)
        for path in self.record.always_eval:
            self.get_submodule(path).eval()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> CapturedModule:
        """Moves or casts the module, including constants that follow the dtype of the model."""
        constants = {name: self._buffers[name] for name in self.record.constants}
        own = float_dtypes(self)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, constant in constants.items():
            # Constants are not buffers of the model, so `.to(dtype)` must not cast them.
            moved = self._buffers[name]
            if constant is not None and moved is not None and moved.dtype != constant.dtype:
                self._buffers[name] = constant.to(moved.device)

        def cast(dtype: torch.dtype) -> torch.dtype:
            result: torch.dtype = fn(torch.empty(0, dtype=dtype)).dtype
            return result

        if follow_cast(self.record, self.graph, own, functools.cache(cast)):
            self.recompile()
        return self

    def _check_scopes(self) -> None:
        """Refuses hooks on modules inside the graph, and warns of changed outer values."""
        changed = changed_scopes(self)
        for path, scope in changed:
            if not (has_hooks(scope) or "forward" in vars(scope)):
                continue
            if not any(n.op == "call_module" and n.target == path for n in self.graph.nodes):
                raise GuardError(
                    "expected hooks and replaced forwards on leaf modules only, got one on "
                    f"{path}, whose nodes are part of the graph; remove it, or capture the model "
                    f"with leaves=[{path!r}] (custom_ops in MaseGraph)"
                )
        outer: OuterValues | None = vars(self).get(outer_values.KEY)
        if outer is not None:
            outer.warn(self, [("", self), *changed])

    def _check_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        record = self.record
        names = list(record.example_inputs)
        every = [*names, *record.optional_inputs]
        twice = [name for name in every[: len(args)] if name in kwargs]
        if len(args) > len(every) or twice:
            too = f" and {twice[0]} by name too" if twice else ""
            raise GuardError(
                f"the graph was captured with {', '.join(every)}, got {len(args)} by position{too}"
            )
        given = dict(zip(every, args, strict=False)) | {**kwargs}
        missing = [name for name in names if name not in given]
        if missing:
            raise GuardError(
                f"the graph was captured with the inputs {', '.join(names)}, got no "
                f"{', '.join(missing)}; pass "
                "every input, or capture the model without them"
            )
        self.check_inputs(given)
        if record.asked:
            examples, were_contiguous = record.example_inputs, record.contiguous_inputs
            check_input_guards(record.asked, examples, were_contiguous, given)

    def check_inputs(self, given: Mapping[str, Any]) -> None:
        """Raises GuardError if inputs, by name, violate a guard."""
        record = self.record
        try:
            for name in given:
                if name in record.example_inputs:
                    check_matches(name, record.example_inputs[name], given[name])
                elif name in record.optional_inputs:
                    check_optional(name, given[name])
            guards, together, codes = self._guard_codes()
            if together is None or not guard_holds(together, given):
                for guard, code in zip(guards, codes, strict=True):
                    if not guard_holds(code, given):
                        raise GuardError(violation_message(guard, given))
        except GuardError as error:
            if not record.guessed:
                raise
            raise GuardError(f"the inputs of this graph were guessed: {error}") from None

    def _guard_codes(self) -> tuple[list[ShapeGuard], Any, list[Any]]:
        """Returns the guards of this mode: as one condition, which is faster, and individually."""
        record = self.record
        count = len(record.guards) + (len(record.training_guards) if self.training else 0)
        by_mode = self.__dict__.setdefault("_compiled_guards", {})
        cached = by_mode.get(self.training)
        if cached is None or len(cached[0]) != count:
            guards = [*record.guards, *record.training_guards][:count]
            whole = " and ".join(f"({guard.expression})" for guard in guards)
            together = compile_guard(ShapeGuard(whole)) if 0 < len(whole) < MAX_LENGTH else None
            cached = by_mode[self.training] = guards, together, list(map(compile_guard, guards))
        entry: tuple[list[ShapeGuard], Any, list[Any]] = cached
        return entry

    # --- members of any name

    def shadowed_members(self) -> Iterator[str]:
        """Names of the model's parameters, buffers and children that collide with `torch.fx`
        attributes.
        """
        for members in (self._parameters, self._buffers, self._modules):
            for name, value in members.items():
                if value is not None and getattr(self, name) is not value:
                    yield name

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in _NOT_STATE or name in self.__dict__ or hasattr(type(self), name)
        if own and not isinstance(value, Tensor | nn.Module):
            # torch would treat `self.graph = graph` as an assignment to a child of that name.
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """Returns the module at a dotted path.

        Raises:
            AttributeError: there is none.
        """
        module = member_at(self, target) if target else self
        if not isinstance(module, nn.Module):
            raise AttributeError(f"{self.record.class_name} has no module '{target}'")
        return module

    def get_parameter(self, target: str) -> nn.Parameter:
        """Returns the parameter at a dotted path.

        Raises:
            AttributeError: there is none.
        """
        parameter = member_at(self, target)
        return parameter if isinstance(parameter, nn.Parameter) else super().get_parameter(target)

    def get_buffer(self, target: str) -> Tensor:
        """Returns the buffer at a dotted path.

        Raises:
            AttributeError: there is none.
        """
        path, _, name = target.rpartition(".")
        buffer = own_buffers(self.get_submodule(path)).get(name)
        return super().get_buffer(target) if buffer is None else buffer

    def recompile(self) -> Any:
        """Generates the code of `forward` from the graph."""
        paths = mode_paths(self.graph)
        if not paths:
            return self._compile()
        graph, cls = self.graph, cast(Any, type(self))

        def make(is_training: IsTraining) -> Callable[..., Any]:
            # torch.fx writes the code of a graph into the class of its module.
            before, self._graph = cls.forward, copy_in_mode(graph, is_training)
            try:
                self._compile()
                compiled: Callable[..., Any] = cls.forward
            finally:
                self._graph, cls.forward = graph, before
            return compiled

        forwards = Forwards(paths, make)

        @functools.wraps(cls.forward)
        def forward(self: CapturedModule, *args: Any, **kwargs: Any) -> Any:
            return forwards.of(self)(self, *args, **kwargs)

        cls.forward = forward
        return None

    def _compile(self) -> Any:
        set_code_generator(self.graph)
        code = super().recompile()
        cls: Any = type(self)
        source_lives_with(cls.forward)
        inputs = [input_name(node) for node in self.graph.nodes if node.op == "placeholder"]
        cls.forward = wrap_forward(cls.forward, inputs, any(self.shadowed_members()))
        return code

    # torch.fx copies and unpickles a graph module by tracing its code again, which renames nodes,
    # loses metadata and fails on sizes; the node list is the graph.

    def _plain_state(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_STATE}

    def _with_history(self) -> Iterator[Tensor]:
        """Returns tensors that a forward has written with a gradient; copies lose that history."""
        return (x for x in PythonState(self).tensors.values() if not x.is_leaf)

    def __reduce__(self) -> Any:
        if next(self._with_history(), None) is not None:
            # Pickling would turn them into leaf tensors that require a gradient.
            return copy.deepcopy(self).__reduce__()
        meta = [
            {key: node.meta[key] for key in _PICKLED_META if key in node.meta}
            for node in self.graph.nodes
        ]
        return _unpickled, (
            _plain_class(self),
            self._plain_state(),
            graph_to_nodes(self.graph),
            meta,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModule:
        twin = memo[id(self)] = _bare(_plain_class(self))
        twin.__dict__.update(self._copied_state(memo))
        twin.graph = copy.deepcopy(self.graph)
        # FX copies the dict of a node's metadata, but not its values.
        for node in twin.graph.nodes:
            for key, value in node.meta.items():
                if hasattr(value, "copy_for"):
                    node.meta[key] = value.copy_for(node, memo)
        return twin

    def _copied_state(self, memo: dict[int, Any]) -> dict[str, Any]:
        """Copies the attributes; of tensors with autograd history, their values.

        Few models hold such tensors, and the search for them takes longer than the copy. It runs
        only after torch refused to copy one.
        """
        if all(parameter.is_leaf for parameter in self.parameters()):
            attempt = dict(memo)
            try:
                state = copy.deepcopy(self._plain_state(), attempt)
            except RuntimeError:
                pass
            else:
                alive = attempt.pop(id(attempt), [])  # `copy` keeps copied objects alive here
                memo.update(attempt)
                memo.setdefault(id(memo), []).extend(alive)
                return state
        for tensor in self._with_history():
            plain = copy.deepcopy(tensor.detach(), memo)
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(plain, False) if is_parameter else plain
        return copy.deepcopy(self._plain_state(), memo)


# The other entries of the record are attributes of the same name, for code outside of chop.
for _entry in (
    *("class_name", "example_inputs", "optional_inputs", "ignored_inputs", "ignored_defaults"),
    *("asked", "contiguous_inputs", "takes_any_keyword", "fixed_inputs", "guards"),
    *("training_guards", "auto_leaves", "always_eval", "eval_only", "guessed", "constants"),
    *("follows_dtype", "node_digests"),
):
    setattr(CapturedModule, _entry, RecordAttribute(_entry))


def _plain_class(module: CapturedModule) -> type[CapturedModule]:
    # torch.fx creates a class for every graph module, which holds its `forward`.
    return type(module).__mro__[1]


def _bare(cls: type[CapturedModule]) -> CapturedModule:
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    return module


def _unpickled(
    cls: type[CapturedModule],
    state: dict[str, Any],
    records: list[NodeRecord],
    meta: list[dict[str, Any]],
) -> CapturedModule:
    module = _bare(cls)
    module.__dict__.update(state)
    graph = nodes_to_graph(records)
    for node, attributes in zip(graph.nodes, meta, strict=True):
        node.meta.update(attributes)
    module.graph = graph
    return module
