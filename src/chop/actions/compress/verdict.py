"""Verdict of a compression: size, metric and speed in one sentence, then three points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chop.actions.bench.latency import Fastest, describe_speed, find_fastest, no_gain
from chop.actions.bench.ways import LOADED, ONNXRUNTIME, SAVED, in_folder
from chop.actions.compress.report import (
    describe_files,
    float_onnx_bytes,
    rounds_inputs,
    smaller,
    times_smaller,
)
from chop.actions.compress.saving import ONNX_FILE
from chop.workloads.hf_folder import FOLDER

if TYPE_CHECKING:
    from chop.actions.compress.settings import CompressConfig
    from chop.actions.compress.table import Candidate
    from chop.workloads.workload import Workload


def write_verdict(
    saved: Candidate,
    exact: Candidate,
    result: Mapping[str, Any],
    workload: Workload,
) -> str:
    """Compares the saved model with float in one sentence: size, metric on test rows and speed."""
    metric = workload.task.metric
    row, (mine, reference) = saved.row, (c.scores["test"] for c in (saved, exact))
    best = find_fastest(result["speed"])
    return (
        f"saved {row.format} ({row.method}): weights {_smaller(result, best)}, "
        f"{metric.name} {mine.format(metric)}{saved.tested_on(workload)} against "
        f"{reference.format(metric)} float, {_faster(best)}."
    )


def _smaller(result: Mapping[str, Any], best: Fastest | None) -> str:
    text, whole = smaller(times_smaller(result)), float_onnx_bytes(result)
    if best is None or best.name != ONNXRUNTIME or not result["onnx"] or not whole:
        return text
    as_onnx = smaller(whole / result["onnx"]["size_bytes"])
    as_onnx = as_onnx if as_onnx.split()[1] != text.split()[1] else as_onnx.split()[0]
    return f"{text} ({as_onnx} as {ONNX_FILE})"


def _faster(best: Fastest | None) -> str:
    if best is None:
        return "speed not measured"
    if not best.is_faster:
        return "not faster than float on this machine"
    return f"and with {'PyTorch' if best.name == SAVED else best.name} {best.in_short()}"


def list_points(result: Mapping[str, Any], config: CompressConfig) -> list[str]:
    """Returns three lines below the verdict: files and sizes, speed, and code to load the model."""
    packed = f"{result['packed_share']:.1%} of the parameters are packed"
    whole, size = (sum(result[f"{name}_bytes"].values()) for name in ("float", "saved"))
    both = f"model.pt and model.mz together are {smaller(whole / size)}"
    files = f"- Files in {config.out}/: {describe_files(result)}; {both}; {packed}."
    return [files, f"- {_speed(result, config)}", f"- Use: {_use(result, config)}"]


def _speed(result: Mapping[str, Any], config: CompressConfig) -> str:
    best, rounded = find_fastest(result["speed"]), rounds_inputs(result)
    in_torch = describe_speed(result["speed"], rounded)
    if best is None:
        return in_torch
    if not best.is_faster:
        why = no_gain(rounded, result["not_measured"], config.out, config.model)
        return f"Speed: {best.times()}. {why}"
    if best.name == SAVED:
        return in_torch
    return f"Speed: {best.name}, {best.times()}. {in_torch.removeprefix('Speed: ')}"


def _use(result: Mapping[str, Any], config: CompressConfig) -> str:
    steps = [in_folder(LOADED, config.out)]
    reason = result["why_no_folder"]
    if not reason:
        steps.append(
            f"from_pretrained({f'{config.out}/{FOLDER}'!r}) of transformers, after import chop"
        )
    if result["onnx"]:
        entries = result["onnx"]["session_config"].items()
        steps.append(
            f"onnxruntime with {config.out}/{ONNX_FILE} and the session entries "
            + ", ".join(f"{name}={value}" for name, value in entries)
        )
    return "; ".join(steps) + (f". No transformers folder: {reason}" if reason else ".")
