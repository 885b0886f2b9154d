"""Lowering of a quantized graph to integer operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from chop.captured.state.preserve_state import preserve_state
from chop.formats import NumberFormat, QuantSpec, parse_format, parse_format_string
from chop.ir.batches import Batches, by_name, check_are_listed, select_inputs
from chop.ir.graph import MaseGraph
from chop.ir.settled import settled_copy
from chop.nn.integer import IntegerOptions
from chop.nn.quantized import leaf_operators
from chop.nn.quantized.base import quantizers_off
from chop.passes.base import graph_pass
from chop.quantization.calibration import sample_operands
from chop.quantization.operators import quantize_nodes

if TYPE_CHECKING:
    from chop.integer.lower import Lowered

ERROR = "error"


@dataclass(frozen=True)
class LowerToIntegerConfig:
    """Settings of `lower_to_integer_transform_pass`.

    Attributes:
        batches: inputs of the model, by name or in order, in the example's sizes, on which both
            graphs are compared. With class labels as `labels`, accuracies are measured.
        example: inputs by name, whose batch size and length the integer graph gets, if it depends
            on them; default, the first of `batches`.
        observed: inputs that determine the windows of blocks with shared exponents; default,
            `batches`.
        missing: treatment of float operators between the others: "error", or a format to quantize
            them to, calibrated on `batches`.
        internal_bits: width of integers inside softmax, LayerNorm and RMSNorm: "small", as in a
            circuit, or "exact", as wide as int64 allows.
        decode: lower one step of a decoder. The graph reads one token at a time and keeps keys and
            values in caches for as many tokens as the example has. Its inputs are the token ids
            (tokens, 1) and `start`, which is 1 for the first token of a sequence, otherwise 0.
        weights: "fixed", or "loadable" for a circuit whose weights are written at run time. Sums
            are then as wide as any weights of the formats need.
        circuit: integer graph of a circuit with loadable weights, which gets those of this graph.
            Steps and shifts inside stay those of the circuit.
    """

    batches: Batches
    example: Mapping[str, Any] | None = None
    observed: Batches | None = None
    missing: str | Mapping[str, Any] | NumberFormat = ERROR
    internal_bits: Literal["small", "exact"] = "small"
    decode: bool = False
    weights: Literal["fixed", "loadable"] = "fixed"
    circuit: MaseGraph | None = None


@graph_pass(
    config=LowerToIntegerConfig,
    requires=("add_common_metadata_analysis_pass",),
    takes_packed=True,
)
def lower_to_integer_transform_pass(mg: MaseGraph, config: LowerToIntegerConfig) -> dict[str, Any]:
    """Rewrites the graph to integer arithmetic, as in a circuit.

    Formats do not change: every operator reads the same rounded inputs. Edges between operators
    carry exact sums as integers; each format that reads an edge becomes one requantizer after the
    producer, a shift if steps are powers of two. Activation functions become tables over all codes.
    Values that depend only on shapes are computed now, and attention masks are proven to be causal
    or to hide the keys that a 0-1 input hides.

    The integer graph computes the same as the quantized one in eval mode. Inputs and outputs keep
    their names. The host encodes inputs, where NaN has the code 0, and decodes outputs as float32.

    With `decode`, each token gets the codes that it has in the integer graph of whole sequences,
    which is checked on the example. Padding masks are not read. Formats need one fixed scale per
    tensor.

    Returns:
        operators: a row per operator: `name`, `kind`, number of result `codes` compared with the
            quantized operator on the same inputs, after its readers' rounding, number of
            `different` ones, the `largest` difference in steps, number of `saturated` ones, the
            largest magnitude `seen` in the result before rounding, its proven bounds `low` and
            `high`, and their `bits`.
        accuracy: accuracies of the `float`, `quantized` and `integer` graph, 0 to 1; empty without
            labels, and with `decode`.

    Raises:
        ConfigError: if formats, operators or masks have no integer form (the message lists all), or
            batches have other sizes than the example.
    Warns: an input in `batches` has NaN, or nearly all of its numbers are far outside of the range
        of its format.

    Source: integer-only inference, Jacob et al. 2018, arXiv:1712.05877.

    Example config::

        {"batches": [{"input": inputs, "labels": labels}], "internal_bits": "small"}
    """
    # The engine is imported when it is used: it loads parts of torch.fx that take long.
    from chop.integer.compare import accuracy, compare
    from chop.integer.decoding import read_inputs
    from chop.integer.grids import observed_grids
    from chop.integer.lower import WHERE, lower, warn_about_lost_bits
    from chop.integer.outside import warn_about_outside

    quantized = settled_copy(mg)
    where = f"{WHERE}.batches"
    check_are_listed(mg, config.batches, where)
    batches = [_on_cpu(by_name(mg, batch, where)) for batch in config.batches]
    inputs = list(select_inputs(quantized, batches, where))
    observed = inputs
    if config.observed is not None:
        check_are_listed(mg, config.observed, f"{WHERE}.observed")
        own = [_on_cpu(by_name(mg, batch, f"{WHERE}.observed")) for batch in config.observed]
        observed = list(select_inputs(quantized, own, f"{WHERE}.observed"))
    if config.missing != ERROR:
        _quantize_missing(quantized, _format(config.missing), inputs)
    example = inputs[0] if config.example is None else _on_cpu(config.example)
    operators = {} if config.circuit is None else dict(config.circuit.model.named_modules())
    options = IntegerOptions(config.internal_bits, config.weights, operators)
    if config.decode:
        lowered = _lower_step(quantized, example, observed, options)
        warn_about_lost_bits(lowered.mg, operators)
        tokens = [read_inputs(lowered.mg, batch) for batch in inputs]
        records = compare(lowered.mg, lowered.steps, tokens)
        mg.model = lowered.mg.model
        return {"operators": [asdict(record) for record in records], "accuracy": {}}
    measured = _accuracies(quantized, batches)
    lowered = lower(quantized, example, observed_grids(quantized, observed), options)
    warn_about_lost_bits(lowered.mg, operators)
    warn_about_outside(lowered.mg, inputs, where)
    records = compare(lowered.mg, lowered.steps, inputs)
    mg.model = lowered.mg.model
    measured["integer"] = accuracy(mg, batches)
    accuracies = {name: share for name, share in measured.items() if share is not None}
    return {"operators": [asdict(record) for record in records], "accuracy": accuracies}


def _lower_step(
    mg: MaseGraph, example: Mapping[str, Any], observed: Batches, options: IntegerOptions
) -> Lowered:
    """Lowers a step of a decoder, and compares it with whole sequences."""
    from chop.integer.decoding import check_steps, without_padding
    from chop.integer.grids import observed_grids
    from chop.integer.lower import lower, lower_step

    copy = mg.copy()
    lowered = lower_step(mg, example, observed_grids(mg, observed), options)
    whole = without_padding(lowered.mg, example)
    grids = observed_grids(copy, observed)
    check_steps(lowered.mg, lower(copy, whole, grids, options).mg, whole)
    return lowered


def _on_cpu(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x.cpu() if isinstance(x, Tensor) else x for name, x in batch.items()}


def _format(chosen: str | Mapping[str, Any] | NumberFormat) -> NumberFormat:
    return parse_format_string(chosen) if isinstance(chosen, str) else parse_format(chosen)


def _quantize_missing(
    mg: MaseGraph, number_format: NumberFormat, inputs: list[dict[str, Any]]
) -> None:
    """Quantizes the quantizable float operators and calibrates them."""
    from chop.integer.masks import demanded_nodes

    spec = QuantSpec.uniform(number_format)
    known = leaf_operators(mg.model)
    quantize_nodes(
        mg,
        {
            node: spec
            for node in demanded_nodes(mg)
            if mg.operator(node).is_quantizable and str(node.target) not in known
        },
    )
    steps = {path: step for path, step in leaf_operators(mg.model).items() if path not in known}
    wanted = {
        path: [name for name, quantizer in step.spec.items() if not quantizer.is_fitted]
        for path, step in steps.items()
    }
    samples = sample_operands(mg.model, inputs, wanted)
    for path, step in steps.items():
        step.spec = step.spec.fitted(samples.get(path, {}))


def _accuracies(mg: MaseGraph, batches: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Returns accuracies of the graph without and with its formats, from the same state."""
    from chop.integer.compare import accuracy

    measured = dict[str, float | None]()
    with preserve_state(mg.model), quantizers_off(mg.model):
        measured["float"] = accuracy(mg, batches)
    with preserve_state(mg.model):
        measured["quantized"] = accuracy(mg, batches)
    return measured
