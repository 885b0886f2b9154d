"""Compression with one block in memory: a decoder of a folder is rounded and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from chop import passes
from chop.actions.compress.measure import FLOAT, QUANTIZED, compute_scores, measure
from chop.actions.compress.page import summarize_outcome
from chop.actions.compress.ptq import describe_skipped, method_title
from chop.actions.compress.report import build_report
from chop.actions.compress.saving import GRAPH_FILE, MODEL_FILES, ONNX_FILE
from chop.actions.compress.settings import CompressConfig
from chop.actions.compress.table import Candidate, Row, footnotes, printed_row, terminal_table
from chop.actions.job import Job, Output, run_job
from chop.actions.next_steps import steps_after_blocks
from chop.base.files import discard_older
from chop.base.installed import __version__
from chop.distributed.source import TensorSource
from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.readers import get_reader
from chop.formats import QuantSpec, parse_format_string
from chop.ir.batches import select_inputs
from chop.ir.graph import MaseGraph
from chop.models import is_own
from chop.models.meta import meta_model, weights_source
from chop.nn.quantized.base import quantizers_off
from chop.passes.transforms.learned_rounding import LearnedRoundingConfig
from chop.quantization.float_calls import leave_calls_of_forwards
from chop.quantization.folding.awq import awq
from chop.quantization.folding.engine import sites_of_parts
from chop.quantization.folding.smoothquant import smooth
from chop.quantization.named_operators import present_operators
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import WHERE, Gptq
from chop.quantization.rounding.learned import BlockLearning, check_learnable
from chop.quantization.walk.blocks import BlockWalk
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.parts import Part, block_paths, get_parts
from chop.quantization.walk.values import NoBlocksError
from chop.quantization.walk.walk import Rounded, Rounder
from chop.quantization.walk.weights import LazyWeights
from chop.report.report import Note, Report, announce, show
from chop.runs.progress import Stages
from chop.train import CAUSAL_LM
from chop.train.calibration import calibration_batches, example_inputs
from chop.train.intervals import Score
from chop.train.rows import Rows
from chop.workloads.checkpoint import load_checkpoint
from chop.workloads.fingerprints import fingerprint_of_tensors
from chop.workloads.hf_folder import FOLDER, write_folder
from chop.workloads.load import get_rows, settings_with
from chop.workloads.workload import CHECKPOINT_EPOCHS, CHECKPOINT_LR, Workload

BLOCK = "block"
"""Kind of a stage, beside those of `chop.actions.compress.measure`."""
BLOCKS = "blocks"
"""Folder of what is done, until the model is written."""
FOLDING = ("smoothquant", "awq")
"""Methods that move scales before weights are rounded."""
LEARNED = "learned_rounding"
"""Method that compares each block with the float one."""
SHARD = "500MB"
"""Of the files of weights: each is in memory while it is written."""


@dataclass(frozen=True)
class Decoder:
    """A decoder whose weights are in files.

    Attributes:
        workload: its rows; the model is that of the graph.
        mg: the graph, quantized; its weights are read when they are needed.
        weights: which do so.
        walk: rounds it.
    """

    workload: Workload
    mg: MaseGraph
    weights: LazyWeights
    walk: BlockWalk


def compress_by_block(config: CompressConfig) -> dict[str, Any]:
    """Rounds a decoder with one block in memory, and writes the folder `model`.

    A run that was killed goes on after the last block that is written in `config.out/blocks`.

    Returns: what is in `result.json`.

    Raises:
        NoBlocksError: the model is none that can be worked on block by block.
    """
    return run_job(COMPRESS_BLOCKS, config)


def _load(config: CompressConfig, _: Workload | None) -> Decoder:
    folder = Path(config.model)
    if is_own(config.model) or not folder.is_dir() or get_reader(folder) is not None:
        raise NoBlocksError("it is no folder of transformers with float weights")
    try:
        model, data, task = load_checkpoint(config, _without_weights)
    except CheckpointError as error:
        raise NoBlocksError(f"its weights cannot be read in parts: {error}") from None
    if task.name != CAUSAL_LM:
        raise NoBlocksError(f"its task is {task.name}, expected {CAUSAL_LM}")
    rows = get_rows(data, task)
    blocks = block_paths(model)
    if not blocks:
        raise NoBlocksError("it has no list of blocks of one class")
    mg = _quantized(model, rows["train"], config)
    try:
        source = weights_source(model, folder, mg.model)
    except CheckpointError as error:
        raise NoBlocksError(f"its weights cannot be read in parts: {error}") from None
    parts = _parts(mg, blocks, config)
    weights = LazyWeights(mg.model, _reader(source, mg.model))
    workload = Workload(
        mg.model,
        config.model,
        str(config.dataset),
        train=rows["train"],
        test=rows["test"],
        device=torch.device("cpu"),
        tuning_epochs=CHECKPOINT_EPOCHS,
        tuning_lr=CHECKPOINT_LR,
        validation=rows["validation"],
        has_seen_validation="validation" not in data,
        task=task,
    )
    calibration = calibration_batches(mg.model, rows["train"], rows=config.calibration_rows)
    batches = list(select_inputs(mg, calibration, WHERE))
    files = BlockFiles(config.out / BLOCKS, _identity(folder, config, batches))
    walk = BlockWalk(mg, parts, weights, batches, files, LEARNED in config.method)
    return Decoder(workload, mg, weights, walk)


def _parts(mg: MaseGraph, blocks: Sequence[str], config: CompressConfig) -> list[Part]:
    """The parts of the graph, if all methods can work on them: files are written after that."""
    parts = get_parts(mg, blocks)
    if set(FOLDING) & set(config.method):
        with quantizers_off(mg.model):
            sites_of_parts(mg, parts)
    if LEARNED in config.method:
        check_learnable(mg, parts)
    return parts


def _without_weights(
    name: str, num_labels: int | None, task: str | None, weights: str | None
) -> nn.Module:
    model: nn.Module = meta_model(name, num_labels=num_labels, task=task)
    return model


def _quantized(model: nn.Module, train: Rows, config: CompressConfig) -> MaseGraph:
    """The graph of a model without weights, its operators in the format."""
    spec = QuantSpec.uniform(parse_format_string(config.formats[0]))
    if not spec.is_fitted:
        raise NoBlocksError(f"format {config.formats[0]} waits for data")
    mg = MaseGraph(model, hf_input_names=[*example_inputs(model, train)])
    mg, _ = passes.init_metadata_analysis_pass(mg, inplace=True)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, inplace=True)
    rule = {"config": spec}
    rules = dict.fromkeys(present_operators(mg, config.operators), rule)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", **rules}, inplace=True)
    if config.has_default_operators:
        leave_calls_of_forwards(mg, "chop compress")
    return mg


def _reader(source: TensorSource, model: nn.Module) -> Any:
    named = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)  # type: ignore[arg-type]
    shapes = {name: tuple(x.shape) for name, x in named}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def read(name: str) -> Tensor:
        x = source.read(name, tuple(slice(0, size) for size in shapes[name]))
        if x.is_floating_point() and bool(x.isnan().any()):
            raise ConfigError(f"the weights of the float model have NaN: {name}.")
        if name in parameters and bool(x.isinf().any()):  # buffers may have them, as masks do
            raise ConfigError(f"the weights of the float model have infinite values: {name}.")
        return x

    return read


def _identity(
    folder: Path, config: CompressConfig, batches: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """All that the codes depend on."""
    files = sorted(file for end in ("safetensors", "json") for file in folder.glob(f"*.{end}"))
    tensors = ((name, x) for batch in batches for name, x in batch.items() if isinstance(x, Tensor))
    return {
        "version": __version__,
        "files": [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files],
        "format": config.formats[0],
        "operators": list(config.operators),
        "method": list(config.method),
        "batches": fingerprint_of_tensors(tensors),
    }


def _run(config: CompressConfig, decoder: Decoder, output: Output) -> Report[dict[str, Any]]:
    workload, mg, walk = decoder.workload, decoder.mg, decoder.walk
    metric, label = workload.task.metric, parse_format_string(config.formats[0]).label
    done = walk.files.whole(len(walk.parts))
    begun = _begun(walk, done)
    announce(workload.title, f"one of {len(walk.parts) - 2} blocks in memory at a time{begun}")
    read_directly = [str(node.target) for node in mg.nodes if node.op == "get_attr"]
    with (
        Stages([FLOAT, *[BLOCK] * (len(walk.parts) - done), QUANTIZED]) as stages,
        _skipping_part(walk),
    ):
        with quantizers_off(mg.model), decoder.weights.on_demand(read_directly):
            exact = _float_candidate(mg, compute_scores(mg, workload, stages, FLOAT, FLOAT))
        rounder, skipped = _rounder(config, walk)
        for part in walk.run(rounder, lambda name: stages.stage(BLOCK, name)):
            skipped.setdefault(_of_weights(config), {}).update(part.left)
        decoder.weights.load_rest()
        skipped_note = describe_skipped(mg, skipped)
        rounded = measure(mg, method_title(config.method), label, workload, stages, skipped_note)
    candidates = [exact, rounded]
    output.enter(_no_files_after(walk))
    discard_older(output.results, *MODEL_FILES, ONNX_FILE, GRAPH_FILE)
    measured = show(
        terminal_table(
            f"{workload.title}: {metric.title}", candidates, metric, workload.get_name("test")
        ),
        *map(Note, footnotes(candidates)),
    )
    write_folder(mg, config, output.results / FOLDER, SHARD)
    report = build_report(candidates, None, measured, workload, config)
    report.result["saved"] = printed_row(rounded, metric)
    output.run.leave_out(config.out / BLOCKS)
    saved = (
        f"saved {label} ({rounded.row.method}) in {config.out / FOLDER}/, for transformers' "
        "from_pretrained, after import chop."
    )
    outcome = summarize_outcome(rounded, exact, round(1000 * rounded.row.size_kb), workload)
    steps = steps_after_blocks(config.out, mg.model.record.class_name)
    return replace(report, closing=[saved], outcome=outcome, steps=steps)


@contextmanager
def _skipping_part(walk: BlockWalk) -> Iterator[None]:
    """Inside, a value that no file has ends the walk without files of it."""
    try:
        yield
    except NoBlocksError:
        walk.files.remove()
        raise


@contextmanager
def _no_files_after(walk: BlockWalk) -> Iterator[None]:
    """Removes what is done of a walk when the results that it was done for are in place."""
    yield
    walk.files.remove()


def _begun(walk: BlockWalk, done: int) -> str:
    """What an earlier run has left, to be said; "" where it is nothing."""
    if done:
        return f"; goes on after {walk.parts[done - 1].name}, which an earlier run has done"
    return "; starts anew, as an earlier run had other settings" if walk.files.removed else ""


def _rounder(config: CompressConfig, walk: BlockWalk) -> tuple[Rounder, dict[str, dict[str, str]]]:
    """What rounds a part; before, scales are moved in all of them.

    Returns: and by method, why it leaves layers alone whatever the rows, by the name of a node.
    """
    left: dict[str, dict[str, str]] = {}
    with quantizers_off(walk.mg.model):
        if "smoothquant" in config.method:
            _, left["smoothquant"] = smooth(walk)
        if "awq" in config.method:
            _, left["awq"] = awq(walk, parse_format_string(config.formats[0]))
    if LEARNED in config.method:
        start: Literal["nearest", "gptq"] = "gptq" if "gptq" in config.method else "nearest"
        settings = LearnedRoundingConfig(walk.batches, start=start)
        learning = BlockLearning(walk, settings.learning, walk.parts)
        return learning, {**left, LEARNED: learning.skipped}
    if "gptq" in config.method:
        gptq = Gptq(walk, Solver(actorder=True), weighs_rows=True)
        return gptq, {**left, "gptq": gptq.skipped}
    return lambda _: Rounded(), left


def _of_weights(config: CompressConfig) -> str:
    """The method that rounds weights; "" for the nearest numbers, which leave none alone."""
    return next((name for name in (LEARNED, "gptq") if name in config.method), "")


def _float_candidate(mg: MaseGraph, scores: Mapping[str, Score]) -> Candidate:
    """The float model, of which the graph has the formats of the quantized one."""
    parameters = list(mg.model.parameters())
    numbers = sum(x.numel() for x in parameters)
    size = sum(x.numel() * x.element_size() for x in parameters)
    validation, test = scores["validation"], scores["test"]
    row = Row(
        FLOAT,
        FLOAT,
        validation.value,
        test.value,
        8 * size / numbers,
        0,
        size / 1000,
        validation_interval_95=validation.interval,
        test_interval_95=test.interval,
    )
    return Candidate(row, mg, scores)


def _kept(config: CompressConfig) -> str:
    return (
        f"the blocks that are done are kept in {config.out / BLOCKS}/; the same command goes on "
        "after them."
    )


COMPRESS_BLOCKS = Job(
    "compress", _run, _load, _kept, lambda config, x: settings_with(config, x.workload)
)
