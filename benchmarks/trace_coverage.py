"""Captures every transformers architecture that can be made offline, and checks each capture.

    python benchmarks/trace_coverage.py --jobs 2 --out runs/coverage

Writes `rows.jsonl` (one model per line, `--resume` skips those that are there) and `table.md`.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import multiprocessing
import os
import pickle
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from shrink import variants
from torch import nn
from torch.utils._pytree import tree_leaves

MOST_PARAMETERS = 40_000_000
MOST_MEMORY_BYTES = 12 * 2**30
TOLERANCE = 1e-5
SIZES = [(3, 14), (5, 9), (2, 23)]
CHECKS = ["eval", "batch", "length", "grad", "train", "keys", "deepcopy", "pickle"]


def architectures() -> dict[str, str]:
    """Per model type the class to capture: the base model, or else the first head there is."""
    from transformers.models.auto import modeling_auto

    mappings = [modeling_auto.MODEL_MAPPING_NAMES]
    mappings += [
        mapping
        for name, mapping in vars(modeling_auto).items()
        if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES")
    ]
    found: dict[str, str] = {}
    for mapping in mappings:
        for model_type, cls in mapping.items():
            found.setdefault(model_type, cls if isinstance(cls, str) else cls[0])
    return dict(sorted(found.items()))


def build(row: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny random model of the architecture `row["model"]` that runs, and its inputs.

    Raises:
        LookupError: no configuration works; the message says why, and `row["stage"]` how far
            the best one came.
    """
    import transformers

    from chop.ir.graph import dummy_inputs

    reasons = []
    cls = getattr(transformers, architectures()[row["model"]])
    for config in variants(transformers.CONFIG_MAPPING[row["model"]]):
        try:
            with torch.device("meta"):
                count = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
            if count > MOST_PARAMETERS:
                reasons.append(f"{count} parameters")
                continue
            torch.manual_seed(0)
            model = cls(config)
            row["stage"] = "eager"
            inputs = dummy_inputs(model, batch=SIZES[0][0], length=SIZES[0][1])
            if not run(model, inputs, train=False):
                raise ValueError("it returns no tensors")
            return model, inputs
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:150]}")
    raise LookupError("; ".join(dict.fromkeys(reasons)))


def tensors(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """Whether two lists of tensors agree to the tolerance (relative to each tensor's size)."""
    if len(ours) != len(theirs) or not ours:
        return False
    return all(
        a.shape == b.shape
        and torch.allclose(
            a.detach().double(),
            b.detach().double(),
            rtol=0,
            atol=TOLERANCE * _scale(b),
            equal_nan=True,
        )
        for a, b in zip(ours, theirs, strict=True)
    )


def _scale(tensor: torch.Tensor) -> float:
    if tensor.numel() == 0:
        return 1.0
    values = tensor.detach().double().abs()
    finite = values[torch.isfinite(values)]
    return max(1.0, float(finite.max())) if finite.numel() else 1.0


def run(model: nn.Module, inputs: dict[str, Any], train: bool) -> list[torch.Tensor]:
    """The tensors of a forward pass at a fixed seed."""
    # Some models keep what they computed in eval() until the next train(), gradients included.
    model.train().train(train)
    torch.manual_seed(1)
    return tensors(model(**inputs))


def gradients(model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """The parameter gradients of a fixed scalar of the outputs, in eval mode."""
    model.zero_grad(set_to_none=True)
    outputs = [t for t in run(model, inputs, train=False) if t.requires_grad]
    sum(
        (t.double() * torch.linspace(0.5, 1.5, t.numel()).view_as(t)).mean() for t in outputs
    ).backward()
    return [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]


def compare(do: Callable[[nn.Module], Any], model: nn.Module, captured: nn.Module) -> str:
    """`equal`, `refused: why`, `WRONG`, `error: what`; `not defined` if the model itself fails."""
    from chop.errors import GuardError

    try:
        theirs = do(model)
    except Exception:
        return "not defined"
    try:
        ours = do(captured)
    except GuardError as refusal:
        return f"refused: {refusal}"
    except Exception as error:
        return f"error: {type(error).__name__}: {str(error)[:300]}"
    return word(same(ours, theirs))


def padded(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with one token of the first row masked."""
    mask = inputs["attention_mask"].clone()
    mask[0, -1] = 0
    return {**inputs, "attention_mask": mask}


def compare_at(
    size: tuple[int, int], model: nn.Module, captured: nn.Module, pad: bool = False
) -> str:
    """`compare` on inputs of another batch size and sequence length."""
    from chop.ir.graph import dummy_inputs

    inputs = dummy_inputs(model, batch=size[0], length=size[1])
    if pad:
        inputs = padded(inputs)
    return compare(lambda twin: run(twin, inputs, train=False), model, captured)


def examine(row: dict[str, Any]) -> None:
    """All checks of the architecture `row["model"]`; `row["stage"]` says how far they came."""
    from chop.capture.tracer import capture

    model, inputs = build(row)
    row |= {"class": type(model).__name__, "inputs": sorted(inputs)}
    model.config.use_cache = False
    expected = run(model, inputs, train=False)
    row["repeatable"] = same(run(model, inputs, train=False), expected)
    row["stage"] = "capture"
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = capture(model, inputs)
    row["seconds"] = round(time.process_time() - start, 2)
    row["warnings"] = [str(w.message) for w in caught]
    row["nodes"] = len(captured.graph.nodes)
    row["leaves"] = [report.class_name.rpartition(".")[2] for report in captured.auto_leaves]
    row["eval_only"] = captured.record.eval_only
    row["stage"] = "check"
    row["eval"] = word(same(run(captured, inputs, train=False), expected))
    check(row, model, captured, inputs)
    row["stage"] = "done"


def check(
    row: dict[str, Any], model: nn.Module, captured: nn.Module, inputs: dict[str, Any]
) -> None:
    """Everything besides equality on the example inputs.

    Some models drop their causal mask together with an attention mask of ones. These are checked
    with a masked token too, and `row["eval"]` still tells that they differ on the example.
    """
    pad = row["eval"] == "WRONG" and "attention_mask" in inputs
    if pad:
        inputs = padded(inputs)
        row["eval, padded"] = compare(lambda twin: run(twin, inputs, train=False), model, captured)
    row["batch"] = compare_at((SIZES[1][0], SIZES[0][1]), model, captured, pad)
    row["length"] = worst([compare_at(size, model, captured, pad) for size in SIZES[1:]])
    row["keys"] = word(list(captured.state_dict()) == list(model.state_dict()))
    again = {
        "deepcopy": lambda twin: run(copy.deepcopy(twin), inputs, train=False),
        "pickle": lambda twin: run(pickle.loads(pickle.dumps(twin)), inputs, train=False),
        "grad": lambda twin: gradients(twin, inputs),
        "train": lambda twin: run(twin, inputs, train=True),
    }
    for name, do in again.items():
        row[name] = compare(do, model, captured)


def word(good: bool) -> str:
    """A verdict in a word."""
    return "equal" if good else "WRONG"


def worst(verdicts: list[str]) -> str:
    """The most worrying verdict."""
    order = ["WRONG", "error", "refused", "equal", "not defined"]
    return min(verdicts, key=lambda verdict: order.index(verdict.split(":")[0]))


# --- workers ------------------------------------------------------------------------------------


def work(model_type: str, queue: Any) -> None:
    """Runs in a process of its own, so that a crash or a hang costs one model."""
    torch.set_num_threads(1)
    # Without a limit the system kills whichever process is largest, perhaps this tool.
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    row: dict[str, Any] = {"model": model_type, "stage": "instantiate"}
    try:
        examine(row)
    except Exception as error:
        row |= {
            "error": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc()[-2500:],
        }
    queue.put(row)


def preload() -> None:
    """Captures two models, which fills caches of torch that forked workers then find full."""
    torch.set_num_threads(1)
    for model_type in ("bert", "vit"):
        examine({"model": model_type})


def get_rows(models: list[str], jobs: int, timeout: float) -> Iterator[dict[str, Any]]:
    """The rows of some architectures as they come, computed by `jobs` processes at a time."""
    preload()
    context = multiprocessing.get_context("fork")
    waiting, running = collections.deque(models), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            model_type, queue = waiting.popleft(), context.SimpleQueue()
            process = context.Process(target=work, args=(model_type, queue), daemon=True)
            process.start()
            running[model_type] = (process, queue, time.monotonic())
        for model_type, (process, queue, start) in list(running.items()):
            row = None
            if not queue.empty():
                row = queue.get()
            elif not process.is_alive():
                row = {"model": model_type, "stage": "crash", "error": f"exit {process.exitcode}"}
            elif time.monotonic() - start > timeout:
                row = {"model": model_type, "stage": "timeout", "error": f"over {timeout:.0f} s"}
            if row is not None:
                process.kill()
                process.join()
                del running[model_type]
                yield row
        time.sleep(0.02)


# --- the report ---------------------------------------------------------------------------------


def verdict(row: dict[str, Any]) -> str:
    """The class that a model counts as."""
    if row["stage"] in ("instantiate", "eager"):
        return "not runnable"
    if row["stage"] != "done":
        return "not captured"
    words = {check: str(row[check]).split(":")[0] for check in CHECKS}
    if "WRONG" in words.values():
        announced = any("outputs differ" in text for text in row["warnings"])
        return "differs, announced" if announced else "wrong"
    if "error" in words.values():
        return "partly"
    if "refused" in words.values() or row["eval_only"]:
        return "refused"
    return "complete"


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown summary, with every model that is not complete."""
    verdicts = {row["model"]: verdict(row) for row in rows}
    runnable = [row for row in rows if verdicts[row["model"]] != "not runnable"]
    counts = collections.Counter(verdicts.values())
    leaves = [row for row in runnable if row.get("leaves") and verdicts[row["model"]] == "complete"]
    lines = ["| verdict | models |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in counts.most_common()]
    lines += [f"| complete, with automatic leaves | {len(leaves)} |", ""]
    lines += [
        "| check | equal | refused | not defined | error | WRONG |",
        "|---|---|---|---|---|---|",
    ]
    done = [row for row in runnable if row["stage"] == "done"]
    for check in CHECKS:
        words = collections.Counter(str(row[check]).split(":")[0] for row in done)
        cells = [str(words[w]) for w in ("equal", "refused", "not defined", "error", "WRONG")]
        lines.append(f"| {check} | {' | '.join(cells)} |")
    lines += ["", "| model | verdict | cause |", "|---|---|---|"]
    for row in rows:
        if verdicts[row["model"]] != "complete":
            lines.append(f"| {row['model']} | {verdicts[row['model']]} | {cause(row)} |")
    return "\n".join(lines) + "\n"


def cause(row: dict[str, Any]) -> str:
    """Why a model is not complete, in one line."""
    text = row.get("error") or row.get("eval_only") or ""
    if row.get("eval, padded") == "equal":
        text = "equal once a token is masked; the model drops its causal mask with a mask of ones"
    if row["stage"] == "done" and not text:
        bad = [f"{c}: {row[c]}" for c in CHECKS if row[c] not in ("equal", "not defined")]
        text = "; ".join(bad)
    return " ".join(str(text).replace("|", "/").split())[:220]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="model types")
    parser.add_argument("--limit", type=int, help="how many model types")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds per model")
    parser.add_argument("--out", type=Path, default=Path("runs/coverage"))
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    rows = []
    if options.resume and path.exists():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    known = {row["model"] for row in rows}
    models = [name for name in options.only or architectures() if name not in known]
    with path.open("a" if options.resume else "w") as file:
        for row in get_rows(models[: options.limit], options.jobs, options.timeout):
            rows.append(row)
            file.write(json.dumps(row, default=str) + "\n")
            file.flush()
            print(
                f"{row['model']:32s} {verdict(row):13s} {row.get('seconds', '')} {cause(row)[:150]}"
            )
    rows.sort(key=lambda row: row["model"])
    (options.out / "table.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
