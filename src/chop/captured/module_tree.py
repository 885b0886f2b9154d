"""Module tree of a capture: the model's paths, order, sharing and persistence in own containers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from chop.captured.joined import join_in_state_dicts, joined_names
from chop.captured.leaves import LeafRule
from chop.captured.overrides import has_hooks
from chop.errors import CaptureError, GraphError
from chop.private.modules import (
    not_persistent,
    own_buffers,
    own_children,
    own_members,
    own_parameters,
)
from chop.private.torch_api import BATCH_NORMS, DROPOUTS


class Scope(nn.Module):
    """Placeholder for a traced module, whose computation is part of the graph.

    It holds the parameters, buffers and children under their original names, which preserves paths
    and `state_dict` keys.
    """

    def __init__(self, class_name: str) -> None:
        super().__init__()
        self._scoped_class = class_name

    def forward(self, *args: object, **kwargs: object) -> None:
        """Raises an error, since the nodes of this module belong to the graph.

        Raises:
            GraphError: always.
        """
        raise GraphError(
            f"expected a call of the whole captured model, got one of its {self._get_name()}, "
            "whose nodes are part of the graph; to call it separately, capture the model with this "
            "class in `leaves`"
        )

    def _get_name(self) -> str:
        return str(vars(self)["_scoped_class"])


STANDS_FOR = "_stands_for"
"""Attribute of a substitute that holds the class of the original module."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_FIELDS: dict[type[nn.Module], int] = {
    **{cls: len(vars(cls())) for cls in _CONTAINERS},
    Scope: len(vars(Scope(""))),
}
"""Number of attributes of modules created by the capture."""


def changed_scopes(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns the traced submodules that got hooks or attributes."""
    modules = []
    for name, child in own_children(module).items():
        if child is not None and type(child) in _FIELDS:
            if len(vars(child)) > _FIELDS[type(child)] or has_hooks(child):
                modules.append((name, child))
            for path, inner in changed_scopes(child):
                modules.append((f"{name}.{path}", inner))
    return modules


def _empty_twin(module: nn.Module) -> nn.Module:
    for container in _CONTAINERS:
        if type(module) is container:
            return container()
    return Scope(get_class(module).__name__)


def mirror(model: nn.Module, root: nn.Module, leaves: LeafRule, called: Collection[str]) -> None:
    """Fills `root` with the tree of `model`. Leaves, parameters and buffers are shared.

    Args:
        model: the captured model.
        root: an empty module.
        leaves: rule for the modules that were not traced.
        called: targets of the graph's `call_module` nodes.
    """
    twins: dict[int, nn.Module] = {id(model): root}

    def get_twin(module: nn.Module, path: str) -> nn.Module:
        if id(module) not in twins:
            if path in called or leaves.is_leaf(module, path):
                twins[id(module)] = module
            else:
                twins[id(module)] = _empty_twin(module)
                fill(module, twins[id(module)], path)
        return twins[id(module)]

    def fill(source: nn.Module, twin: nn.Module, path: str) -> None:
        twin.training = source.training
        # A member may have the name of an attribute that only the twin has, such as `graph`. So
        # members are stored in torch's dicts directly, without its checks of names.
        own_parameters(twin).update(own_parameters(source))
        own_buffers(twin).update(own_buffers(source))
        not_persistent(twin).update(not_persistent(source))
        for name, child in own_children(source).items():
            child_path = f"{path}.{name}" if path else name
            own_children(twin)[name] = None if child is None else get_twin(child, child_path)
        if joined := joined_names(source):
            join_in_state_dicts(twin, joined)

    fill(model, root, "")


def check_names(model: nn.Module) -> None:
    """Refuses members that attribute access hides, since a graph could not read them.

    Raises:
        CaptureError: a parameter, buffer or child has the name of an attribute of its class.
    """
    for path, module in model.named_modules():
        for members in own_members(module):
            for name, value in members.items():
                attribute = getattr(module, name, None)
                if value is not None and not isinstance(attribute, nn.Module | Tensor):
                    full = f"{path}.{name}" if path else name
                    raise CaptureError(
                        f"{full} has the name of an attribute of its class "
                        f"{type(module).__name__}, which hides it; rename it"
                    )


def computed_tensors(module: nn.Module) -> dict[int, Any]:
    """Returns detached twins of attribute tensors with autograd history, by id.

    Old weight norms and masks store the weight of the last call this way. `copy.deepcopy` refuses
    it unless the twin is in its memo. Their hooks recompute it at each call.
    """
    held = [value for part in module.modules() for value in vars(part).values()]
    return {
        id(x): x.detach().clone().requires_grad_(x.requires_grad)
        for x in held
        if isinstance(x, Tensor) and not x.is_leaf
    }


def member(module: nn.Module, name: str) -> Tensor | nn.Module | None:
    """Returns the parameter, buffer or child of that name, even if an attribute hides it."""
    for members in own_members(module):
        if name in members:
            result: Tensor | nn.Module | None = members[name]
            return result
    return None


def member_at(module: nn.Module, path: str) -> Tensor | nn.Module | None:
    """Returns the parameter, buffer or module at a dotted path; None if there is none."""
    current: Tensor | nn.Module | None = module
    for step in path.split("."):
        if not isinstance(current, nn.Module):
            return None
        current = member(current, step)
    return current


def member_paths(model: nn.Module) -> set[str]:
    """Returns the paths of all parameters, buffers and submodules."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for members in own_members(module)
        # Members of a TorchScript module are not dicts, but support `items`.
        for name, _ in members.items()
    }


def add_extras(
    root: nn.Module, modules: Mapping[str, nn.Module], constants: Mapping[str, Tensor]
) -> None:
    """Adds the members of the graph: modules created by the capture, and constant tensors."""
    for path, module in modules.items():
        owner, _, name = path.rpartition(".")
        home = root.get_submodule(owner)
        module.train(home.training)
        home.add_module(name, module)
    for name, tensor in constants.items():
        root.register_buffer(name, tensor.detach(), persistent=False)


def is_impure_module(module: nn.Module) -> bool:
    """Returns whether a call of a leaf has side effects, so that it stays even if unused.

    It may draw random numbers, count batches, or write in place into shared tensors.
    """
    return any(map(_has_an_effect, module.modules()))


def _has_an_effect(module: nn.Module) -> bool:
    drops = isinstance(module, DROPOUTS)
    counts = isinstance(module, BATCH_NORMS)
    in_place = getattr(module, "inplace", False) is True
    return drops or counts or in_place or not type(module).__module__.startswith("torch.nn")


def qualified_class(module: nn.Module) -> str:
    """Returns `module.Class` of an object's class."""
    cls = get_class(module)
    return f"{cls.__module__}.{cls.__qualname__}"


def get_class(value: object) -> type:
    """Returns the class of an object, or of the original if it is a substitute during a capture."""
    cls: type = getattr(value, "__dict__", {}).get(STANDS_FOR, type(value))
    return cls
