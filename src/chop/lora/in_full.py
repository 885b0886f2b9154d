"""Fully trained parameters in addition to adapters: PEFT's `modules_to_save` and `bias`.

PEFT trains copies of modules, chop the modules themselves. A parameter shared by several modules is
stored once in chop, and once per module in PEFT's files.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from chop.errors import GraphError
from chop.ir.graph import MaseGraph
from chop.lora.peft_format import AdapterFile
from chop.nn.lora import ADAPTER_MODULES, LoraLinear
from chop.nn.transposed import stores_transposed


def is_inside(name: str, paths: Collection[str]) -> bool:
    """Returns true if a dotted name equals a path or is inside one of them."""
    return any(name.startswith(f"{path}.") for path in paths)


def trained_in_full(
    mg: MaseGraph, layers: Mapping[str, LoraLinear], where: str
) -> tuple[str, list[str], list[str]]:
    """Returns PEFT's `bias`, the biases that it covers, and other trained modules.

    For a shared parameter, all modules that use it are returned.

    Raises:
        GraphError: if a trained parameter is the weight of an adapted layer, belongs directly to
            the model, or shares a module with adapters.
    """
    own = {f"{path}.{name}.weight" for path in layers for name in ADAPTER_MODULES}
    groups = _names_of_parameters(mg)
    parameters = {
        name: parameter.requires_grad
        for parameter, names in groups
        for name in _used(mg, names)
        if name not in own
    }
    biases = [name for name in parameters if name.rpartition(".")[2] == "bias"]
    adapted = [f"{path}.bias" for path in layers if f"{path}.bias" in parameters]
    bias = "none"
    if biases and all(parameters[name] for name in biases):
        bias = "all"
    elif any(parameters[name] for name in adapted):
        bias = "lora_only"
    covered = {"all": biases, "lora_only": adapted, "none": []}[bias]
    rest = [name for name, trains in parameters.items() if trains and name not in covered]
    owners = dict.fromkeys(name.rpartition(".")[0] for name in rest)
    for name in rest:
        owner = name.rpartition(".")[0]
        if owner == "" or any(is_inside(f"{path}.", [owner]) for path in layers):
            raise GraphError(
                f"{where}: '{name}' is trained and PEFT's format cannot store it; freeze it, or "
                "fuse the adapters and export the graph."
            )
    return bias, covered, [owner for owner in owners if not is_inside(owner, owners)]


def copy_in_full(mg: MaseGraph, adapter: AdapterFile) -> None:
    """Copies the fully trained parameters of an adapter file to a graph.

    Modules keep sharing a parameter if the file has the same values for all of them. Otherwise they
    get separate parameters, such as an output layer that was trained apart from the embedding.
    """
    rest = dict(adapter.full)
    for old, names in _names_of_parameters(mg):
        given = {name: rest.pop(name) for name in names if name in rest}
        if not given:
            continue
        trains = any(_trains(name, adapter) for name in given)
        new = {name: _parameter(mg.model, name, x, old, trains) for name, x in given.items()}
        first, used = next(iter(new.values())), _used(mg, names)
        if used <= given.keys() and all(torch.equal(first, other) for other in new.values()):
            new = dict.fromkeys(names, first)
        unused = [name for name in names if name not in used and name not in given]
        for name, parameter in {**new, **dict.fromkeys(unused, first)}.items():
            _set(mg.model, name, parameter)
    for name, value in rest.items():  # buffers
        old_buffer = mg.model.get_buffer(name)
        _set(mg.model, name, value.to(old_buffer.device, old_buffer.dtype))


def are_tied_pairs(mg: MaseGraph, saved: Collection[str]) -> bool:
    """Returns true if modules are tied in pairs, which PEFT can keep tied in training.

    PEFT ties modules by their transformers metadata, which does not cover a third module with the
    weight.
    """
    config = mg.model.record.config
    tied = [names for _, names in _names_of_parameters(mg) if len(names) > 1]
    shared = [names for names in tied if any(is_inside(name, saved) for name in names)]
    are_pairs = all(len(names) == 2 and _used(mg, names) == set(names) for names in shared)
    return bool(shared) and are_pairs and getattr(config, "tie_word_embeddings", False)


def warn_about_shared_weights(mg: MaseGraph, layers: Collection[str], where: str) -> None:
    """Warns of adapted layers with shared weights, which PEFT's merging also changes elsewhere."""
    names = {f"{path}.weight" for path in layers}
    shared = [sorted(group) for _, group in _names_of_parameters(mg) if len(group) > 1]
    pairs = [(name, other) for group in shared for name in group for other in group]
    first = next(((n, o) for n, o in pairs if n in names and o not in names), None)
    if first is not None:
        layer, other = (name.rpartition(".")[0] for name in first)
        warnings.warn(
            f"{where}: the weight of '{layer}' is shared with '{other}': peft computes the same as "
            f"the graph, but its merge_and_unload would change '{other}'; adapt other layers, or "
            "merge with fuse_lora_weights_transform_pass.",
            stacklevel=3,
        )


def _names_of_parameters(mg: MaseGraph) -> list[tuple[nn.Parameter, list[str]]]:
    """Returns every parameter of a graph with all of its names."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in mg.model.named_parameters(remove_duplicate=False):
        parameters[id(parameter)] = parameter
        names[id(parameter)].append(name)
    return [(parameter, names[key]) for key, parameter in parameters.items()]


def _used(mg: MaseGraph, names: Sequence[str]) -> set[str]:
    """Returns the names by which the graph reads a parameter; all names if it reads none."""
    if len(names) == 1:
        return set(names)
    called = {str(node.target) for node in mg.nodes if node.op == "call_module"}
    read = {str(node.target) for node in mg.nodes if node.op == "get_attr"}
    return {name for name in names if name in read or is_inside(name, called)} or set(names)


def _trains(name: str, adapter: AdapterFile) -> bool:
    """Returns true if PEFT trains a parameter of its file.

    If a layer near an embedding is adapted, the file also contains the embedding, untrained.
    """
    path, _, own = name.rpartition(".")
    if own == "bias" and (adapter.bias == "all" or path in adapter.layers):
        return adapter.bias != "none"
    return any(step.endswith(adapter.modules_to_save) for step in _ancestors(path))


def _ancestors(path: str) -> Iterator[str]:
    """Returns a path and the paths of its parent modules."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _parameter(
    model: nn.Module, name: str, value: Tensor, old: Tensor, trains: bool
) -> nn.Parameter:
    owner = model.get_submodule(name.rpartition(".")[0])
    if name.endswith(".weight") and stores_transposed(owner):
        value = value.t()
    # A new parameter: what shared the old one, like tied embeddings, keeps its values.
    return nn.Parameter(value.to(old.device, old.dtype), requires_grad=trains)


def _set(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, own = name.rpartition(".")
    setattr(model.get_submodule(path), own, value)
