"""Key-value caches of exported graphs: keys and values of each layer as input and output tensors.

A graph has its cache as one transformers object, which its nodes read and write. Files have no such
objects. They take the keys and values of past tokens, (batch, heads, past, size), and return those
of all tokens. Names are those of optimum's files: `past_key_values.0.key` and `present.0.key`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.huggingface import cache as captured
from chop.captured.huggingface.cache_names import CACHE_NAMES, POSITIONS, find_cache
from chop.captured.state.preserve_state import preserve_state
from chop.errors import GraphError
from chop.export.graphs.axes import BATCH, SEQUENCE, AxisNames
from chop.export.graphs.flat import map_tensors, named_tensors
from chop.export.target import Runner
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs

PAST, PRESENT = "past_key_values", "present"
PARTS = ("key", "value")
IDS, MASK, LOGITS = "input_ids", "attention_mask", "logits"
FEWEST = 2
"""Rows and tokens of an example: the exporter treats axes of size one as constants."""
PADDED = 2
"""Padding tokens at the beginning of an example text."""
GROWN = f"past + {SEQUENCE}"
Layers = Mapping[int, Mapping[str, Any]]
"""`key` and `value` tensors by layer index."""


def part_name(root: str, layer: int | str, part: str) -> str:
    """Returns the name of a layer's keys or values in files: `past_key_values.0.key`."""
    return f"{root}.{layer}.{part}"


def present_name(past: str) -> str:
    """Returns the name of the output that is the next call's past."""
    return past.replace(PAST, PRESENT, 1)


def has_cache(mg: MaseGraph) -> bool:
    """Returns True if a graph takes and extends a key-value cache."""
    return not mg.model.record.why_no_cache and bool(_updates(mg))


def _updates(mg: MaseGraph) -> list[fx.Node]:
    return [node for node in mg.nodes if node.target is captured.update_cache]


# --- what nodes call in place of the functions of a cache -----------------------------------------


def _past_length(past: Layers, layer: int) -> int:
    first: Tensor = next(iter(past.values()))["key"]  # all layers have seen the same tokens
    return first.shape[2]


def _key_sizes(past: Layers, queries: int, layer: int) -> tuple[int, int]:
    return _past_length(past, layer) + queries, 0


def _longer(past: Layers, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    before = past[layer]
    return torch.cat([before["key"], keys], 2), torch.cat([before["value"], values], 2)


def _whole_mask(mask: Tensor, length: int) -> Tensor:
    return mask  # of all tokens, as no place of the cache is free


def _given_positions(positions: Tensor, ids: Any, mask: Any, start: Any, by_mask: bool) -> Tensor:
    return positions


FLAT: Mapping[Any, Callable[..., Any]] = {
    captured.cached_length: _past_length,
    captured.key_sizes: _key_sizes,
    captured.update_cache: _longer,
    captured.pad_attention_mask: _whole_mask,
    captured.positions_or_default: _given_positions,
}


def flatten_cache(mg: MaseGraph, where: str) -> None:
    """Replaces the cache of a graph by nested inputs and outputs, `PAST` and `PRESENT`.

    Args:
        mg: graph with a cache; it is changed.
        where: caller, for messages.

    Raises:
        GraphError: if other nodes read the cache.
    """
    inputs = {str(node.target): node for node in mg.nodes if node.op == "placeholder"}
    cache = next(inputs[name] for name in CACHE_NAMES if name in inputs)
    updates = _updates(mg)
    for node in mg.nodes:
        if node.target in FLAT:
            node.target = FLAT[node.target]
    _give_presents(mg, cache, updates)
    others = [user.name for user in cache.users if user.target not in FLAT.values()]
    if others:
        raise GraphError(
            f"{where}: the cache is read by {others[0]}; only attention layers may read it."
        )
    cache.target = PAST
    for name in mg.model.record.optional_inputs:
        inputs[name].args = ()  # files have no inputs that may be left out


def _give_presents(mg: MaseGraph, cache: fx.Node, updates: Sequence[fx.Node]) -> None:
    """Replaces the cache in the graph's output by keys and values."""
    (output,) = (node for node in mg.nodes if node.op == "output")
    answer: Any = output.args[0]
    fields = {name: value for name, value in answer.kwargs.items() if value is not cache}
    fields[PRESENT] = {}
    with mg.fx_graph.inserting_before(output):
        for update in updates:
            parts = (mg.fx_graph.call_function(operator.getitem, (update, i)) for i in range(2))
            fields[PRESENT][update.args[3]] = dict(zip(PARTS, parts, strict=True))
    output.args = (fields,)
    mg.fx_graph.erase_node(answer)


# --- examples -------------------------------------------------------------------------------------


def cached_examples(mg: MaseGraph) -> list[dict[str, Any]]:
    """Returns example inputs with a cache: a continued text with left padding, and a new text.

    Both have the positions that the model computes by default. The transformers cache stores all
    tokens, including those of sliding-window layers.
    """
    example = example_inputs(mg.model)
    ids = _at_least(example[IDS], FEWEST)
    # Of a token that sees nothing, itself included, engines make anything.
    mask = torch.ones_like(ids, dtype=example[MASK].dtype)
    count = _past_tokens(*ids.shape)
    before = ids[:, torch.arange(count, device=ids.device) % ids.shape[1]]
    seen = torch.ones_like(before, dtype=mask.dtype)
    seen[0, :PADDED] = 0
    cache = _new_cache()
    with preserve_state(mg.model), torch.no_grad():
        mg.model.eval()(**_inputs(mg, before, seen, cache))
    goes_on = _inputs(mg, ids, torch.cat([seen, mask], 1), cache)
    return [goes_on, _inputs(mg, ids, mask, _emptied(cache))]


def _at_least(x: Tensor, count: int) -> Tensor:
    """Repeats a tensor along axes that are shorter than `count`."""
    return x.repeat(*(-(-count // size) for size in x.shape))


def _past_tokens(rows: int, tokens: int) -> int:
    """Returns a number of past tokens unlike other sizes: the exporter merges equal axes."""
    counts = (n for n in itertools.count(PADDED + 1) if n != tokens and rows not in (n, n + tokens))
    return next(counts)


def _inputs(mg: MaseGraph, ids: Tensor, mask: Tensor, cache: Any) -> dict[str, Any]:
    inputs = {IDS: ids, MASK: mask, str(mg.model.record.optional_inputs[-1]): cache}
    start = mask.shape[1] - ids.shape[1]
    for node in mg.nodes:
        if node.target is captured.positions_or_default:
            positions = captured.positions_or_default(None, ids, mask, start, bool(node.args[4]))
            inputs[POSITIONS] = positions.clone()  # the exporter takes no views
    return inputs


def _new_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def _emptied(cache: Any) -> Any:
    """Returns an empty cache with the same layers."""
    empty = _new_cache()
    for layer, parts in list_layers(cache).items():
        empty.update(parts["key"][:, :, :0], parts["value"][:, :, :0], layer)
    return empty


# --- nested and flat ------------------------------------------------------------------------------


def list_layers(cache: Any) -> Layers:
    """Returns keys and values of a transformers cache by layer, without empty layers."""
    held = ((i, layer) for i, layer in enumerate(cache.layers) if layer.is_initialized)
    return {i: {"key": layer.keys, "value": layer.values} for i, layer in held}


def with_past(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Converts inputs of a graph to those after `flatten_cache`."""
    name, cache = find_cache(inputs)
    others = {key: x for key, x in inputs.items() if key != name}
    return {**others, PAST: list_layers(cache)}


def with_present(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Converts outputs of a graph to those after `flatten_cache`."""
    _, cache = find_cache(answer)
    fields = {key: x for key, x in answer.items() if x is not cache}
    return {**fields, PRESENT: list_layers(cache)}


def from_cache(run: Runner, shapes: Mapping[str, Sequence[int]]) -> Runner:
    """Wraps a file's runner to accept a transformers cache, or none for a new text.

    Missing positions count the tokens of a row without padding, like `generate` of transformers.

    Args:
        run: runner that takes the file's inputs by name, or nested as in `with_past`.
        shapes: shapes of the inputs; sizes of dynamic axes are ignored.
    """
    pasts = {name: shape for name, shape in shapes.items() if name.startswith(f"{PAST}.")}

    def answers(inputs: Mapping[str, Any]) -> Mapping[str, Tensor]:
        ids, mask = inputs[IDS], inputs[MASK]
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        empty = {name: torch.zeros(len(ids), x[1], 0, x[3]) for name, x in pasts.items()}
        given = {POSITIONS: positions, **empty, **inputs}
        if find_cache(inputs)[1] is None:
            return run(given)
        past = map_tensors(_in_float32, with_past(inputs)[PAST])
        return run(given | named_tensors({PAST: past}))

    return answers if pasts else run


def _in_float32(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() else x


def cache_axes(mg: MaseGraph) -> dict[str, AxisNames]:
    """Returns the dynamic axes by input or output name of a graph after `flatten_cache`.

    Token ids and logits are omitted: their axes are the default ones.
    """
    axes: dict[str, AxisNames] = {MASK: {0: BATCH, 1: GROWN}}
    for update in _updates(mg):
        for part in PARTS:
            past = part_name(PAST, str(update.args[3]), part)
            axes[past] = {0: BATCH, 2: "past"}
            axes[present_name(past)] = {0: BATCH, 2: GROWN}
    return axes
