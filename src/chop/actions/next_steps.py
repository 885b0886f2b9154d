"""Next steps after a job: command lines and Python code to paste, shown on its page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chop.base.trust import confirmation
from chop.report.command_line import command_line
from chop.report.report import Step
from chop.runs import read_manifest
from chop.train.tasks import CAUSAL_LM
from chop.workloads.hf_folder import FOLDER
from chop.workloads.settings import JudgedWorkloadConfig, WorkloadConfig

LOAD = "Load the model in PyTorch"
KEEP = "--keep-best"
LANGUAGE_TARGETS = ("compressed-tensors", "gguf", "gptq")
"""Targets with engines for language models, in order of preference."""
OWN = ("out", "device", "seed")
"""Settings that every job sets for itself."""


def quoted(path: str | Path) -> str:
    """Quotes a path for a shell."""
    return shlex.quote(str(path))


def load_step(stem: Path, label: str = LOAD) -> Step:
    """Returns the code that loads a checkpoint.

    Args:
        stem: common path of its two files, without a suffix.
        label: label of the step.
    """
    code = f"from chop import MaseGraph\n\nmodel = MaseGraph.from_checkpoint({str(stem)!r}).model"
    return Step(label, code)


def steps_after_compression(
    result: Mapping[str, Any], out: Path, class_name: str, onnx_file: str, trust: str = ""
) -> list[Step]:
    """Returns steps that locate, load, export and measure the model.

    Args:
        result: result of the compression.
        out: its output folder.
        class_name: class of the model, for transformers.
        onnx_file: name of the file for onnxruntime.
        trust: option that confirms the code that the run names, after a space, or "".
    """
    if result["saved"] is None:
        return _steps_without_model()
    steps = [Step("The model is in this folder", f"{out}/"), load_step(out / "model")]
    if not result["why_no_folder"]:
        steps.append(_transformers_step(out, class_name))
    if result["onnx"]:
        entries = result["onnx"]["session_config"].items()
        lines = [
            "import onnxruntime\n",
            "options = onnxruntime.SessionOptions()",
            *(f"options.add_session_config_entry({name!r}, {x!r})" for name, x in entries),
            f"session = onnxruntime.InferenceSession({str(out / onnx_file)!r}, options)",
        ]
        steps.append(Step("Run it with onnxruntime", "\n".join(lines)))
    return [*steps, *_steps_with_run(quoted(out), trust, _best_target(result))]


def _best_target(result: Mapping[str, Any]) -> str:
    """Returns the first target for language models that fits the result; onnx for others."""
    fits = (name for name in LANGUAGE_TARGETS if result["targets"].get(name) == "")
    return next(fits, "onnx") if result["task"] == CAUSAL_LM else "onnx"


def _transformers_step(out: Path, class_name: str) -> Step:
    code = (
        f"import chop\nfrom transformers import {class_name}\n\n"
        f"model = {class_name}.from_pretrained({str(out / FOLDER)!r})"
    )
    return Step("Load it with transformers", code)


def _steps_with_run(run: str, trust: str, target: str) -> list[Step]:
    return [
        Step("Export it for other engines", f"chop export {run} --to {target}{trust}"),
        Step("Measure its speed here", f"chop bench model --compressed {run}{trust}"),
        Step("Compare its predictions with the float model", f"chop evaluate {run}{trust}"),
    ]


def steps_with_run(run: str | Path, command: str, trust: str = "") -> list[Step]:
    """Returns steps with the saved model of a run, without the command that has just used it.

    Args:
        run: output folder of `chop compress`. There are no steps for other models.
        command: command that made the page, such as "evaluate".
        trust: option that confirms the code that the run names, after a space, or "".
    """
    if not (Path(run) / "model.mz").is_file():
        return []
    steps = _steps_with_run(quoted(run), trust, "onnx")
    return [step for step in steps if not step.code.startswith(f"chop {command} ")]


def _steps_without_model() -> list[Step]:
    again = command_line(sys.argv)
    if not again.startswith("chop "):
        return []
    return [Step("No model was saved: save the best one anyway", f"{again} {KEEP}")]


def steps_after_blocks(result: Mapping[str, Any], out: Path, class_name: str) -> list[Step]:
    """Returns steps after a compression block by block, which only writes a transformers folder."""
    export = f"chop export {quoted(out / FOLDER)} --to {_best_target(result)}"
    return [
        Step("The model is in this folder", f"{out / FOLDER}/"),
        _transformers_step(out, class_name),
        Step("Export it for other engines", export),
    ]


def steps_after_search(
    where: str, model: Path | None, recipe: Path | None, trust: str = ""
) -> list[Step]:
    """Returns steps that build and load the best of a search, and continue the search.

    Args:
        where: arguments that name the search; "" if it was in memory.
        model: the best model's checkpoint without suffix; None if the search saved none.
        recipe: settings of `chop compress` that build the best model; None if there are none, as
            for an architecture.
        trust: option that confirms the code that the recipe names, after a space, or "".
    """
    steps = []
    if model is not None:
        steps.append(load_step(model, "Load the best model"))
    if recipe is not None:
        command = f"chop compress --config {quoted(recipe)}{trust}"
        steps.append(Step("Build the best model", command))
    if where:
        command = f"chop search show {where}"
        steps.append(Step("See the best trials, and which choices matter", command))
    return steps


def export_search_step(where: str, folder: Path, trust: str = "") -> Step:
    """Returns the step that builds a model from the formats of a search.

    Args:
        where: arguments that name the search.
        folder: folder for the formats.
        trust: option that confirms the code that the search names, after a space, or "".
    """
    file = quoted(folder / "best.toml")
    code = f"chop search export {where} {file}{trust}\nchop compress --config {file}{trust}"
    return Step("Build the best model: write its formats, and compress with them", code)


def steps_after_sweep(config: WorkloadConfig, name: str, number_format: str) -> list[Step]:
    """Returns the step that builds a model from a format of a sweep.

    Args:
        config: settings of the sweep.
        name: name of the model. A model of a Python program has no command line.
        number_format: smallest format within the tolerated loss, or "".
    """
    if name != config.model or not number_format:
        return []
    code = f"chop compress {workload_options(config)} --formats {number_format}"
    return [Step(f"Compress to {number_format}, the smallest format with little loss", code)]


def steps_after_pruning(config: WorkloadConfig, name: str, run: Path | None) -> list[Step]:
    """Returns steps that make the model smaller, because zeros alone do not.

    Args:
        config: settings of the sweep.
        name: name of the model. A model of a Python program has no command line.
        run: output folder of `chop compress` whose model was pruned, or None.
    """
    if run is not None:
        return steps_with_run(run, "sweep prune", confirmation(config.model))
    if name != config.model:
        return []
    code = f"chop compress {workload_options(config)}"
    return [Step("Quantize the model: zeros alone make no file smaller", code)]


def steps_after_emit(out: Path) -> list[Step]:
    """Returns steps that locate the circuit and repeat its checks."""
    return [
        Step("The circuit is in this folder; its top module is called top", f"{out / 'rtl'}/"),
        Step("Repeat all its checks", f"chop emit --check-only --out {quoted(out)}"),
    ]


def steps_with_files(files: Mapping[str, Path]) -> list[Step]:
    """Returns one step for each file, with its label and path."""
    return [Step(label, str(path)) for label, path in files.items()]


def compress_again(run: Path, given: Mapping[str, Any]) -> str:
    """Returns the command that compresses the model of a run with other settings.

    Args:
        run: folder of a finished run with a model in its settings.
        given: options of the command line by name, which replace those of the run.
    Raises:
        CheckpointError: if the manifest of the run cannot be read.
    """
    settings = read_manifest(run).settings.items()
    known = {name: tuple(x) if isinstance(x, list) else x for name, x in settings}
    options = workload_options(SimpleNamespace(**{**known, **given}))
    own = {each.name for each in fields(JudgedWorkloadConfig)} - {*OWN}
    rest = {"out": Path(f"{run}-2"), **given}
    return f"chop compress {options} {_options({x: rest[x] for x in rest if x not in own})}"


def _options(values: Mapping[str, Any]) -> str:
    """Returns options of a command line. A tuple is joined by commas, a list repeats its option."""
    parts: list[str] = []
    for name, value in values.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            parts.append(f"--{option}" if value else f"--no-{option}")
            continue
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        for each in value if isinstance(value, list) else [value]:
            parts += [f"--{option}", quoted(each)]
    return " ".join(parts)


def workload_options(config: Any) -> str:
    """Returns command-line options for the model and data of settings, without defaults."""
    default, given = JudgedWorkloadConfig(), {}
    for each in fields(default):
        value = getattr(config, each.name, getattr(default, each.name))
        if each.name in OWN or (each.name != "model" and value == getattr(default, each.name)):
            continue
        given[each.name] = value
    return _options(given)
