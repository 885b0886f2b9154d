"""Plans of large models on the meta device: what is predicted, and what planning takes.

    python benchmarks/autosharding.py [--cases bert-base llama-7b ...]

Each case runs in a process of its own, so that its peak of memory is its own. Phases of planning
are multiples of the time in which BERT-base is captured by the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers

from chop import MaseGraph
from chop.distributed.plan import format_mesh
from chop.distributed.planning import Machine, Sharding, find_sharding
from chop.distributed.planning.simulation import Simulation

INPUTS = ["input_ids", "attention_mask"]
PLANS = ("auto", "megatron", "rows", "data", "replicate")
LIMITS = {
    "bert-base": {"end to end": 20.0},
    "bert-large": {"solving": 5.0},
    "llama-7b": {"solving": 5.0},
    "llama-7b-5GB": {"solving": 5.0},
    "llama-70b": {"solving": 60.0, "end to end": 60.0},
}
"""Processor seconds that a case may take; whether it does depends on the machine."""
MOST_BYTES = 4e9
"""Of this process at its peak."""


@dataclass(frozen=True)
class Case:
    """A model and the processes that it is planned for.

    Attributes:
        sizes: of the configuration.
        mesh: processes along each axis.
        batch: samples of the forward.
        length: tokens of each.
        memory_bytes: of a process; None: enough.
    """

    sizes: dict[str, int]
    mesh: tuple[int, ...]
    batch: int
    length: int
    memory_bytes: int | None = None

    def graph(self) -> MaseGraph:
        """The model without numbers, captured."""
        is_llama = "num_key_value_heads" in self.sizes
        with torch.device("meta"):
            if is_llama:
                config = transformers.LlamaConfig(**self.sizes, vocab_size=32000, use_cache=False)
                model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
            else:
                config = transformers.BertConfig(**self.sizes)
                model = transformers.BertForSequenceClassification(config)
        return MaseGraph(model.eval(), hf_input_names=INPUTS)


def llama(hidden: int, between: int, layers: int, heads: int, groups: int) -> dict[str, int]:
    """Sizes of a Llama."""
    return {
        "hidden_size": hidden,
        "intermediate_size": between,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
    }


LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
SEVEN = llama(4096, 11008, 32, 32, 32)
CASES = {
    "bert-base": Case({}, (4,), 8, 128),
    "bert-large": Case(LARGE, (4,), 8, 128),
    "llama-7b": Case(SEVEN, (8,), 1, 2048),
    "llama-7b-5GB": Case(SEVEN, (8,), 1, 2048, 5 * 10**9),
    "llama-70b": Case(llama(8192, 28672, 80, 64, 8), (16, 8), 16, 2048),
}


def machine(case: Case) -> Machine:
    """GPUs such as NVIDIA's A100; its first axis is between machines where there are two."""
    bandwidth = (25e9, 250e9) if len(case.mesh) == 2 else 250e9
    return Machine.of(case.mesh, 300e12, 1.5e12, bandwidth, 10e-6, case.memory_bytes, "nccl")


def measured(name: str) -> dict[str, Any]:
    """One case: the table's columns."""
    unit = _seconds(CASES["bert-base"].graph)
    case = CASES[name]
    start, busy = time.perf_counter(), time.process_time()
    mg = case.graph()
    captured = time.perf_counter() - start
    ids = torch.ones(case.batch, case.length, dtype=torch.long)
    found = find_sharding(mg, dict.fromkeys(INPUTS, ids), machine(case))
    whole, busy = time.perf_counter() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    phases = {"capture": captured, **found.planning_seconds}
    spent = {"end to end": busy, "solving": found.planning_seconds["solving"]}
    return {
        "case": name,
        "mesh": format_mesh(case.mesh),
        "nodes": len(list(mg.nodes)),
        "gap": found.gap,
        "phases": {phase: seconds / unit for phase, seconds in phases.items()},
        "total": whole / unit,
        "peak_bytes": peak,
        "limits": {
            **{f"{x} under {most:.0f} s": spent[x] < most for x, most in LIMITS[name].items()},
            "memory under 4 GB": peak < MOST_BYTES,
        },
        "plans": _plans(found),
        "failures": dict(found.failures),
    }


def _seconds(function: Any) -> float:
    """Time of the second call: libraries are loaded in the first."""
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _plans(found: Sharding) -> dict[str, list[float]]:
    rows: dict[str, Simulation] = {"auto": found.simulation, **found.alternatives}
    return {
        name: [x.seconds, x.sent_bytes, x.parameter_bytes, x.peak_bytes] for name, x in rows.items()
    }


def in_own_process(name: str) -> dict[str, Any]:
    """What `measured` gives, from another process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def predictions(rows: list[dict[str, Any]]) -> str:
    """Markdown: what is predicted of each plan."""
    lines = ["| case | mesh | plan | ms | sent (MB) | kept (MB) | peak (MB) |", "|" + "---|" * 7]
    for row in rows:
        for plan in PLANS:
            cells = ["cannot run", "", "", ""]
            if plan in row["plans"]:
                seconds, *sizes = row["plans"][plan]
                cells = [f"{1e3 * seconds:.2f}", *(f"{size / 1e6:,.1f}" for size in sizes)]
            lines.append(f"| {' | '.join([row['case'], row['mesh'], plan, *cells])} |")
    return "\n".join(lines)


def costs(rows: list[dict[str, Any]]) -> str:
    """Markdown: what planning takes, in captures of BERT-base."""
    phases = ("capture", "layouts", "solving", "simulation")
    names = ["case", "nodes", "gap", *phases, "total", "memory (GB)", "limits"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in rows:
        limits = (f"{name}: {'held' if held else 'NO'}" for name, held in row["limits"].items())
        cells = [
            *(row["case"], str(row["nodes"]), f"{row['gap']:.1e}"),
            *(f"{row['phases'][phase]:.2f}" for phase in phases),
            *(f"{row['total']:.2f}", f"{row['peak_bytes'] / 1e9:.2f}", "; ".join(limits)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    rows = [in_own_process(name) for name in options.cases]
    print(predictions(rows), costs(rows), sep="\n\n")


if __name__ == "__main__":
    main()
