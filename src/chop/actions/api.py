"""Python entry points `chop.quantize`, `chop.save` and `chop.compress`, on top of the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from torch import Tensor, autograd, nn

from chop import passes
from chop.actions.compress.job import compress as run_compression
from chop.actions.compress.saving import MODEL_FILES
from chop.actions.compress.settings import CompressConfig
from chop.actions.given_rows import (
    check_are_used,
    inputs_by_split,
    joined_columns,
    rows_by_split,
    with_label_column,
    with_scale,
)
from chop.base.notices import get_logger
from chop.captured.module import CapturedModule
from chop.captured.wrappers import (
    check_has_forward,
    check_has_python,
    check_is_module,
    check_is_unwrapped,
)
from chop.config import Range, convert, parse, with_checked_names
from chop.errors import CaptureError, ConfigError, describe, options_in_messages
from chop.formats import NumberFormat, QuantSpec, parse_format_string
from chop.ir.graph import MaseGraph
from chop.ir.storage.checkpoint import checkpoint_paths
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.quantization.described import add_summary, captured_inputs
from chop.quantization.float_calls import leave_calls_of_forwards
from chop.quantization.named_operators import check_operators, present_operators, weighted_operators
from chop.quantization.summary import vanishes, warn_about_lost_weights
from chop.train import Metric, Rows, Task
from chop.train.calibration import calibrated, example_inputs
from chop.train.distillation.settings import Distillation
from chop.train.dtypes import cast_inputs
from chop.train.unlabeled import read_inputs
from chop.workloads.probe import check_forward, check_weights
from chop.workloads.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger(__name__)


@with_checked_names
def quantize(
    model: nn.Module,
    format: str | NumberFormat = "8.auto",
    data: Any = None,
    *,
    operators: Sequence[str] | None = None,
    weights_only: bool = False,
    calibration_rows: int = 256,
    label_column: str | Sequence[str] | None = None,
) -> nn.Module:
    """Quantizes a model. The result has the same class, computes on rounded values, and can train.

    The outputs are those of the compressed model. The size stays as before, because the weights
    stay floats for training; `save` packs them and writes a small file.

    Args:
        model: model to quantize, unchanged; parameters are copied.
        format: format string for `chop.formats.parse_format_string` such as "8.auto" or
            "mxint:width=4", or a format.
        data: rows that show the model's inputs and calibrate scales: `(X, y)`, only X, a pandas
            frame, a mapping of columns, a list of rows or batches with or without labels, a
            DataLoader or a data set. None: inputs are guessed from the model, and
            scales that need calibration follow each batch.
        operators: operators to quantize, by name: linear, conv2d ... Default: all with a weight,
            except function calls in the model's code that no module can round, such as expert
            routers, which a warning lists.
        weights_only: leave inputs and biases in float.
        calibration_rows: number of rows of `data` that calibrate, 1 or more.
        label_column: column with labels in a frame, a mapping of columns or a data set; it is not
            an input of the model. Default: `labels` or `label`.
    Returns: the model in its mode. Its text begins with its formats, the packable share of its
        parameters, and bytes. `chop.MaseGraph` gives the graph, with packing and export.
    Raises:
        ConfigError: if a format or operator is unknown, or rows do not fit the model.
        CaptureError: if the model cannot be captured.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> type(quantize(net, "mxint:width=4", torch.randn(64, 4))[0]).__name__
        'QuantLinear'
    """
    check_has_forward(model, "chop.quantize")
    _check_has_layers(model, "chop.quantize")
    if not isinstance(format, str | NumberFormat):
        raise ConfigError(
            f"format: expected a text such as '8.auto' or a number format, got {describe(format)}."
        )
    number_format = parse_format_string(format) if isinstance(format, str) else format
    names = convert(
        weighted_operators() if operators is None else operators, tuple[str, ...], "operators"
    )
    check_operators(names)
    calibration_rows = convert(calibration_rows, Annotated[int, Range(1)], "calibration_rows")
    weights_only = convert(weights_only, bool, "weights_only")
    rows = _get_rows(model, with_label_column(data, label_column))
    check_has_python(model)
    check_weights(model)
    if rows is not None:
        check_forward(model, rows, type(model).__name__, "data")
    dummy_in = None if rows is None else example_inputs(model, rows)
    mg = MaseGraph(model, dummy_in=dummy_in)
    _check_is_captured(mg, model, "chop.quantize")
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    spec = QuantSpec(weight=number_format) if weights_only else QuantSpec.uniform(number_format)
    rules = {name: {"config": spec} for name in present_operators(mg, names)}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules})
    warn_about_lost_weights(mg, dict.fromkeys(dict(mg.model.named_modules()), spec), vanishes)
    if operators is None:
        leave_calls_of_forwards(mg, "chop.quantize")
    mg = mg if rows is None else calibrated(mg, rows, calibration_rows)
    return add_summary(mg.to_module(), dummy_in)


@with_checked_names
def save(model: nn.Module, path: str | Path, data: Any = None) -> dict[str, Any]:
    """Packs a quantized model and writes `PATH.pt` (its codes) and `PATH.mz` (its graph).

    `chop.MaseGraph.from_checkpoint(path)` reads them. `to_module(like=model)` of the result gives a
    packed model of the original class.

    Args:
        model: quantized model from `chop.quantize`, also after further training. It is unchanged.
        path: output path without a suffix. Missing folders are created.
        data: rows that show the model's inputs, as for `chop.quantize`. None: those of its own
            call, or guessed ones.
    Returns: `files`; `packed_share` of the parameters, 0 to 1; `bytes` of the parameters, and
        `float_bytes`, their size as floats.

    Raises:
        ConfigError: if the model is not quantized.
        CaptureError: if the model cannot be captured.
        WriteError: if the disk is full or read-only.

    Example::

        chop.save(chop.quantize(model, "8.auto"), "runs/small")
        small = chop.MaseGraph.from_checkpoint("runs/small").to_module(like=model)
    """
    convert(path, Path, "chop.save: path")
    check_is_module(model, "chop.save")
    files = list(checkpoint_paths(path))
    if not any(isinstance(x, QuantizedOperator | PackedOperator) for x in model.modules()):
        raise ConfigError("chop.save: expected a quantized model: call chop.quantize first.")
    rows = _get_rows(model, data)
    example = captured_inputs(model) if rows is None else example_inputs(model, rows)
    mg = MaseGraph(model, dummy_in=example)
    _check_is_captured(mg, model, "chop.save")
    packed, info = passes.pack_transform_pass(mg, {"silent": True})
    packed.export(path)
    return {"files": files, **{n: info[n] for n in ("packed_share", "bytes", "float_bytes")}}


def _check_is_captured(mg: MaseGraph, model: nn.Module, who: str) -> None:
    """Raises CaptureError if the model fails on guessed inputs."""
    if not mg.is_captured:
        raise CaptureError(
            f"{who}: the inputs of {type(model).__name__} cannot be guessed: pass rows that show "
            "them, as data=(inputs, labels)."
        )


def _get_rows(model: nn.Module, data: Any) -> Rows | None:
    """Returns rows for a model in its dtype, or None without data."""
    if data is None:
        return None
    check_is_unwrapped(model, "chop.quantize with data")
    check_has_python(model)
    return cast_inputs(model, {"": read_inputs(model, data)})[""]


@dataclass(frozen=True)
class Compressed:
    """Result of `compress`.

    Attributes:
        model: packed model of the original class; None if no format was within `max_drop`.
        folder: folder of the model's files, the table and the figures.
        result: content of `result.json`.
    """

    model: nn.Module | None
    folder: Path
    result: Mapping[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ConfigError: the model can be called, its report cannot."""
        raise ConfigError("a result of chop.compress cannot be called: use found.model.")

    def __getitem__(self, key: Any) -> NoReturn:
        """Raises ConfigError: the fields are attributes, and `result` has those of the report."""
        raise ConfigError(
            f"a result of chop.compress has no entry {key!r}: use found.model, or found.result for "
            "the content of result.json."
        )

    def __repr__(self) -> str:
        """Returns the verdict, the table and the path of the page."""
        return repr(self.result)

    def _repr_html_(self) -> str:
        """Returns the report of the job, for notebooks."""
        result: Any = self.result
        return str(result._repr_html_())


@with_checked_names
def compress(
    model: nn.Module,
    data: Any,
    test: Any = None,
    *,
    max_drop: float = 0.01,
    out: str | Path = "runs/compress",
    task: str | Task | None = None,
    metric: str | Metric | Callable[..., float] | None = None,
    evaluate: Callable[[nn.Module], Any] | str | None = None,
    loss: Callable[[Any, Tensor], Tensor] | str | None = None,
    lower_is_better: bool = False,
    distill: Any = None,
    **settings: Any,
) -> Compressed:
    """Finds the smallest quantized model within `max_drop` of float, as `chop compress` does.

    Args:
        model: trained model, unchanged.
        data: labeled rows for `chop.train.read_rows`, such as `(X, y)`, to calibrate, choose and
            train on; or splits by name: "train", "test" and "validation"; or the four arrays of
            scikit-learn's `train_test_split`.
        test: labeled rows to report on. Default: a fifth of `data`. The model may have been trained
            on them, which the report states first.
        max_drop: largest loss of the metric against float on validation rows.
        out: folder for the results.
        task: task of the model. Default: determined by the labels.
        metric: metric of the model. Default: the task's own.
        evaluate: scoring function for any task. It takes the model, in its own class and evaluation
            mode, and returns a number, or one number per row, whose mean counts and has an
            interval. Formats are chosen by it, `data` need no labels and are not split, and
            `max_drop` is a share of float's number. `metric="map"` names the number. A text
            `file.py:fn` works too.
        loss: loss of quantization-aware training, a function or a module. It takes the model's
            output and the labels of a batch, and returns their mean loss. Default: that of the
            task; with `evaluate` and without `task` there is none, and nothing is trained.
        lower_is_better: True if smaller numbers of `evaluate` are better.
        distill: quantization-aware training against the outputs of a teacher: True for `model`,
            another module or graph, `chop.train.Distillation` or a mapping of its fields.
        settings: settings of `chop.actions.compress.settings.CompressConfig`, such as
            `formats=("8.auto",)`; `label_column` names the labels in a frame, a mapping of columns
            or a data set. Settings for reading files, such as `pixel_mean`, are rejected.
    Raises:
        ConfigError: if rows or settings cannot be used.
        CaptureError: if the model cannot be captured.

    Example::

        found = chop.compress(net, (X, y), formats=("8.auto", "4.auto"), max_drop=0.02)
        found.model  # the packed model; the tables and files are in runs/compress
    """
    _check_is_original(model)
    named = {"max_drop": max_drop, "out": out}
    code = {"evaluate": evaluate, "loss": loss}
    named |= {name: each for name, each in code.items() if isinstance(each, str)}
    check_are_used(settings)
    lower_is_better = convert(lower_is_better, bool, "lower_is_better")
    taught = Distillation.read(distill, model)
    named |= {} if taught is None else _settings_of_distillation(taught)
    for name in settings.keys() & named.keys():
        raise ConfigError(f"chop.compress: '{name}' is given twice, once in distill; drop one.")
    if "label_column" in settings:
        settings["label_column"] = joined_columns(settings["label_column"])
    config = parse(CompressConfig, {**settings, **named}, "chop.compress")
    if loss is not None and config.qat_epochs == 0:
        raise ConfigError("loss: nothing is trained, since qat_epochs is 0.")
    with options_in_messages(False):
        trains = task is not None or loss is not None
        data, test = (with_label_column(each, config.label_column) for each in (data, test))
        splits = (
            rows_by_split(data, test)
            if evaluate is None
            else inputs_by_split(model, data, test, trains)
        )
        workload = Workload.of(
            model,
            **splits,
            task=task,
            metric=metric,
            evaluate=evaluate,
            lower_is_better=lower_is_better,
            loss=loss,
            device=config.torch_device,
            teacher=None if taught is None or taught.teacher.model is model else taught.teacher,
        )
        workload = with_scale(workload, config)
        result = run_compression(config, workload)
    if result["saved"] is None:
        return Compressed(None, config.out, result)
    # The files were just written from this model, so its own classes are trusted.
    own = {*map(type, model.modules()), *autograd.Function.__subclasses__()}
    graph = MaseGraph.from_checkpoint(config.out / Path(MODEL_FILES[0]).stem, allow=own)
    return Compressed(add_summary(graph.to_module(like=model)), config.out, result)


def _check_is_original(model: Any) -> None:
    """Raises ConfigError for what is no model to compress; warns of layers that are quantized."""
    if isinstance(model, MaseGraph | CapturedModule):
        raise ConfigError(
            "chop.compress: expected the original module, got a captured graph; pass the module "
            "that it was captured from."
        )
    check_has_forward(model, "chop.compress")
    _check_has_layers(model, "chop.compress")
    quantized = [x for x in model.modules() if isinstance(x, QuantizedOperator)]
    if not all(each.spec.is_float for each in quantized):
        log.warning(
            "chop.compress: the model has quantized layers. They are the reference that the tables "
            "call float; pass the original model to compare with it."
        )


def _settings_of_distillation(taught: Distillation) -> dict[str, Any]:
    """Returns the settings of `CompressConfig` for a distillation, without defaults and teacher."""
    given = {
        f"distill_{each.name}": getattr(taught, each.name)
        for each in fields(taught)
        if each.name != "teacher" and getattr(taught, each.name) != each.default
    }
    return {"distill": True, **given}


def _check_has_layers(model: nn.Module, who: str) -> None:
    """Raises ConfigError for a single layer, whose class would change, and for packed layers."""
    if any(isinstance(each, PackedOperator) for each in model.modules()):
        raise ConfigError(
            f"{who}: the layers are packed, so this model is compressed already; pass the original "
            "model."
        )
    if type(model).__module__.startswith("torch.nn") and not any(model.children()):
        kind = type(model).__name__
        got = f"a single {kind}: pass nn.Sequential(layer)"
        if isinstance(model, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            got = f"an empty {kind}"
        raise ConfigError(f"{who}: expected a model with layers, got {got}.")
