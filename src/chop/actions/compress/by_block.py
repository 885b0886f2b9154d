"""Compression of a decoder on disk with only one block in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from chop.actions.compress.card import write_model_card
from chop.actions.compress.measure import FLOAT, QUANTIZED, Measured, measure
from chop.actions.compress.page import summarize_outcome
from chop.actions.compress.ptq import describe_skipped, method_title, quantize_after_training
from chop.actions.compress.saving import GRAPH_FILE, MODEL_FILES, ONNX_FILE
from chop.actions.compress.settings import CompressConfig
from chop.actions.compress.table import Candidate, printed_row
from chop.actions.compress.targets import about_targets, export_targets
from chop.actions.job import Output
from chop.actions.next_steps import steps_after_blocks
from chop.base.files import discard_older
from chop.base.installed import __version__
from chop.distributed.source import TensorSource
from chop.errors import CheckpointError, ConfigError
from chop.export.foreign.readers import get_reader
from chop.formats import INPUT_OPERANDS, parse_format_string
from chop.ir.batches import select_inputs
from chop.ir.graph import MaseGraph
from chop.models import is_own
from chop.models.meta import meta_model, weights_source
from chop.nn.quantized.base import quantizers_off
from chop.passes.transforms.learned_rounding import LearnedRoundingConfig
from chop.quantization.folding.awq import awq
from chop.quantization.folding.engine import sites_of_parts
from chop.quantization.folding.smoothquant import smooth
from chop.quantization.rounding.columns import Solver
from chop.quantization.rounding.gptq import WHERE, Gptq
from chop.quantization.rounding.learned import BlockLearning, check_learnable
from chop.quantization.walk.blocks import BlockWalk
from chop.quantization.walk.files import BlockFiles
from chop.quantization.walk.parts import Part, block_paths, get_parts
from chop.quantization.walk.values import NoBlocksError
from chop.quantization.walk.walk import Rounded, Rounder
from chop.quantization.walk.weights import LazyWeights
from chop.report.report import Report, announce
from chop.runs.progress import Stages
from chop.train import CAUSAL_LM
from chop.train.calibration import calibration_batches, example_inputs
from chop.workloads.checkpoint import load_checkpoint
from chop.workloads.fingerprints import fingerprint_of_tensors
from chop.workloads.hf_folder import FOLDER, write_folder
from chop.workloads.load import get_rows
from chop.workloads.workload import CHECKPOINT_EPOCHS, CHECKPOINT_LR, Workload

BLOCK = "block"
"""Kind of a stage, in addition to those of `chop.actions.compress.measure`."""
BLOCKS = "blocks"
"""Folder of finished blocks until the model is written."""
FOLDING = ("smoothquant", "awq")
"""Methods that move scales before weights are rounded."""
LEARNED = "learned_rounding"
"""Method that compares each block with the float block."""
SHARD = "500MB"
"""Maximum size of a weights file; each is in memory while it is written."""


@dataclass(frozen=True)
class Decoder:
    """Decoder with weights in files.

    Attributes:
        config: settings of the job.
        workload: its rows, with the graph's model.
        walk: rounds the graph block by block, reading weights on demand.
    """

    saves_all: ClassVar[bool] = True
    config: CompressConfig
    workload: Workload
    walk: BlockWalk

    @classmethod
    def load(cls, config: CompressConfig, workload: Workload | None) -> Self:
        """Loads the decoder; raises NoBlocksError if it cannot be walked block by block."""
        folder, number_format = Path(config.model), parse_format_string(config.formats[0])
        if is_own(config.model) or not folder.is_dir() or get_reader(folder) is not None:
            raise NoBlocksError("it is not a transformers folder with float weights")
        if not number_format.is_fitted:
            raise NoBlocksError(f"format {config.formats[0]} needs calibration data")
        try:
            model, data, task, *_ = load_checkpoint(
                config, lambda name, weights, **given: meta_model(name, **given)
            )
            if task.name != CAUSAL_LM:
                raise NoBlocksError(f"its task is {task.name}, expected {CAUSAL_LM}")
            blocks = block_paths(model)
            if not blocks:
                raise NoBlocksError("it has no list of blocks of the same class")
            config = config.with_operands(is_language_model=True)
            rows = get_rows(data, task)
            mg = MaseGraph(model, hf_input_names=[*example_inputs(model, rows["train"])])
            source = weights_source(model, folder, mg.model)
        except CheckpointError as error:
            raise NoBlocksError(f"its weights cannot be read tensor by tensor: {error}") from None
        loaded = Workload(
            mg.model,
            config.model,
            str(config.dataset),
            train=rows["train"],
            test=rows["test"],
            validation=rows["validation"],
            device=torch.device("cpu"),
            tuning_epochs=CHECKPOINT_EPOCHS,
            tuning_lr=CHECKPOINT_LR,
            has_seen_validation="validation" not in data,
            task=task,
        )
        count, leaves_calls = config.calibration_rows, config.has_default_operators
        mg = quantize_after_training(
            mg,
            number_format,
            config.operators,
            loaded,
            count,
            inplace=True,
            leaves_calls=leaves_calls,
            operands=config.operands or INPUT_OPERANDS,
        )
        parts = _parts(mg, blocks, config)
        weights = LazyWeights(mg.model, _reader(source, mg.model))
        calibration = calibration_batches(mg.model, loaded.train, rows=count)
        batches = list(select_inputs(mg, calibration, WHERE))
        files = BlockFiles(config.out / BLOCKS, _identity(folder, config, batches))
        walk = BlockWalk(mg, parts, weights, batches, files, LEARNED in config.method)
        return cls(config, loaded, walk)

    @staticmethod
    def interruption_note(config: CompressConfig) -> str:
        """Returns the closing sentence of an interrupted run."""
        return (
            f"finished blocks are in {config.out / BLOCKS}/; run the same command again to "
            "continue after them."
        )

    def measure(self) -> Measured:
        """Measures the float decoder, and the rounded one from its first unfinished block."""
        config, workload, walk = self.config, self.workload, self.walk
        mg = walk.mg
        label = parse_format_string(config.formats[0]).label
        done = walk.files.whole(len(walk.parts))
        begun = _begun(walk, done)
        announce(workload.title, f"{len(walk.parts) - 2} blocks, one in memory at a time{begun}")
        read_directly = [str(node.target) for node in mg.nodes if node.op == "get_attr"]
        with (
            Stages([FLOAT, *[BLOCK] * (len(walk.parts) - done), QUANTIZED]) as stages,
            _skipping_part(walk),
        ):
            with quantizers_off(mg.model), walk.weights.on_demand(read_directly):
                exact = measure(mg, FLOAT, FLOAT, workload, stages)
            rounder, rounding, skipped = _rounder(config, walk)
            for part in walk.run(rounder, lambda name: stages.stage(BLOCK, name)):
                skipped.setdefault(rounding, {}).update(part.skipped)
            walk.weights.load_rest()
            note = describe_skipped(mg, skipped)
            rounded = measure(mg, method_title(config.method), label, workload, stages, note)
        return Measured(exact, [rounded])

    def save(
        self, report: Report[dict[str, Any]], exact: Candidate, chosen: Candidate, output: Output
    ) -> Report[dict[str, Any]]:
        """Writes the transformers folder, then removes the block files."""
        config, workload, row = self.config, self.workload, chosen.row
        output.enter(_no_files_after(self.walk))
        discard_older(output.results, *MODEL_FILES, ONNX_FILE, GRAPH_FILE)
        write_folder(self.walk.mg, config, output.results / FOLDER, SHARD)
        write_model_card(output.results, self.walk.mg, exact, chosen, workload, config)
        output.run.leave_out(config.out / BLOCKS)
        saved = (
            f"saved {row.format} ({row.method}) in {config.out / FOLDER}/. Load it with "
            "from_pretrained of transformers, after import chop."
        )
        result = {
            **report.result,
            "saved": printed_row(chosen, workload.task.metric),
            "targets": export_targets(self.walk.mg),
        }
        notes = about_targets(result["targets"])
        return replace(
            report,
            documents={name: [*blocks, *notes] for name, blocks in report.documents.items()},
            result=result,
            closing=[saved],
            outcome=summarize_outcome(chosen, exact, round(1000 * row.size_kb), workload),
            steps=steps_after_blocks(result, config.out, self.walk.mg.model.record.class_name),
        )


def _parts(mg: MaseGraph, blocks: Sequence[str], config: CompressConfig) -> list[Part]:
    """Returns the parts of the graph; checks all methods on them before files are written."""
    parts = get_parts(mg, blocks)
    if set(FOLDING) & set(config.method):
        with quantizers_off(mg.model):
            sites_of_parts(mg, parts)
    if LEARNED in config.method:
        check_learnable(mg, parts)
    return parts


def _reader(source: TensorSource, model: nn.Module) -> Any:
    named = [*model.named_parameters(remove_duplicate=False)]
    named += model.named_buffers(remove_duplicate=False)  # type: ignore[arg-type]
    shapes = {name: tuple(x.shape) for name, x in named}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}

    def read(name: str) -> Tensor:
        x = source.read(name, tuple(slice(0, size) for size in shapes[name]))
        if x.is_floating_point() and bool(x.isnan().any()):
            raise ConfigError(f"the weights of the float model have NaN: {name}.")
        if name in parameters and bool(x.isinf().any()):  # masks are buffers with infinite values
            raise ConfigError(f"the weights of the float model have infinite values: {name}.")
        return x

    return read


def _identity(
    folder: Path, config: CompressConfig, batches: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns everything that the codes depend on."""
    files = sorted(file for end in ("safetensors", "json") for file in folder.glob(f"*.{end}"))
    tensors = ((name, x) for batch in batches for name, x in batch.items() if isinstance(x, Tensor))
    return {
        "version": __version__,
        "files": [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files],
        "format": config.formats[0],
        "operators": list(config.operators),
        "operands": list(config.operands or INPUT_OPERANDS),
        "method": list(config.method),
        "batches": fingerprint_of_tensors(tensors),
    }


@contextmanager
def _skipping_part(walk: BlockWalk) -> Iterator[None]:
    """Removes the block files if a tensor is missing from the checkpoint."""
    try:
        yield
    except NoBlocksError:
        walk.files.remove()
        raise


@contextmanager
def _no_files_after(walk: BlockWalk) -> Iterator[None]:
    """Removes the block files once the results are in place."""
    yield
    walk.files.remove()


def _begun(walk: BlockWalk, done: int) -> str:
    """Describes the progress of an earlier run; "" if there was none."""
    if done:
        return f"; resumes after {walk.parts[done - 1].name} of an earlier run"
    return "; starts again, since an earlier run had other settings" if walk.files.removed else ""


def _rounder(
    config: CompressConfig, walk: BlockWalk
) -> tuple[Rounder, str, dict[str, dict[str, str]]]:
    """Moves scales in all parts, and returns the rounder for one part.

    Returns: the rounder; its method, "" for rounding to nearest; and by method, the reasons for
        skipped layers by node name.
    """
    skipped: dict[str, dict[str, str]] = {}
    with quantizers_off(walk.mg.model):
        if "smoothquant" in config.method:
            _, skipped["smoothquant"] = smooth(walk)
        if "awq" in config.method:
            _, skipped["awq"] = awq(walk, parse_format_string(config.formats[0]))
    if LEARNED in config.method:
        start: Literal["nearest", "gptq"] = "gptq" if "gptq" in config.method else "nearest"
        settings = LearnedRoundingConfig(walk.batches, start=start)
        learning = BlockLearning(walk, settings.learning, walk.parts)
        return learning, LEARNED, {**skipped, LEARNED: learning.skipped}
    if "gptq" in config.method:
        gptq = Gptq(walk, Solver(actorder=True), weighs_rows=True)
        return gptq, "gptq", {**skipped, "gptq": gptq.skipped}
    return lambda _: Rounded(), "", skipped
