"""Tutorial 7: a model on several processes, by a plan that is searched for.

python examples/tutorial_7.py            (four processes, simulated, two minutes)
python examples/tutorial_7.py --quick    (fewer budgets, to see that it works, half a minute)

A plan says which process keeps what of the parameters, and in which layout each node reads its
inputs. The search runs on this process alone, others are simulated. It is asked for the fastest
plan within less and less memory; then for machines whose links are fast and slow; then for the
model with weights packed in 4 bits, which fits where the float model does not. The last plan runs
on two processes of this machine, and every node is compared with one process. On the cores of one
CPU that is no faster than one process: what a plan saves here is memory.
"""

import argparse
from pathlib import Path

from chop import MaseGraph, passes
from chop.actions.shard.job import shard
from chop.actions.shard.settings import ShardConfig
from chop.base.tables import print_table
from chop.distributed.planning.plan_report import plan_rows
from chop.errors import PlanError
from chop.models import load_model
from chop.report.plots import plot_plans

INTEGER = {"name": "integer", "width": 4, "frac_width": 3}


def search(mg, **settings):
    """What `autosharding_analysis_pass` finds on two processes; None where nothing fits."""
    try:
        _, info = passes.autosharding_analysis_pass(mg, {"mesh": 2, **settings})
    except PlanError as error:
        print(error)
        return None
    return info


def row(name, info):
    """One line of a table on a plan."""
    found = info["simulation"]
    return {
        "": name,
        "predicted (us)": f"{found.seconds * 1e6:.1f}",
        "parameters (kB)": f"{found.parameter_bytes / 1000:.1f}",
        "peak memory (kB)": f"{found.peak_bytes / 1000:.1f}",
        "sent": ", ".join(f"{x.calls} {x.operation}" for x in found.collectives) or "nothing",
    }


def budgets(mg, texts, out):
    """The fastest plan within less and less memory."""
    # The plans that need no search are the same whatever the budget: they are simulated once.
    found = {text: search(mg, memory_bytes=text, compare=text == texts[0]) for text in texts}
    print_table("Budgets", [row(text, info) for text, info in found.items() if info])
    first = found[texts[0]]
    plans = {text: info["simulation"] for text, info in found.items() if info}
    rows = plan_rows({**first["alternatives"], **plans})
    plot_plans(out / "plans.png", rows, "vision transformer on two processes")


def links(mg):
    """Two bandwidths of slow processes, two plans."""
    rows = []
    for bandwidth in (1e6, 1e9):
        speeds = {"flops": 1e10, "memory_bandwidth": 1e10, "latency": 1e-7}
        info = search(mg, bandwidth=bandwidth, compare=False, **speeds)
        rows += [row(f"{bandwidth / 1e6:.0f} MB/s", info)] if info else []
    print_table("Links", rows)


def packed(out, memory):
    """A model in 4 bits, where the float model does not fit; and its run on two processes."""
    mg = MaseGraph(load_model("vit"))
    search(mg, memory_bytes=memory, compare=False)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": {"config": INTEGER}})
    mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    mg.export(out / "packed")
    config = ShardConfig(
        model=str(out / "packed.mz"), mesh=2, memory=memory, run=True, out=out / "run"
    )
    return shard(config)


def main():
    """Searches, compares and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer budgets")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial-7"), help="a folder")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    mg = MaseGraph(load_model("vit"))
    texts = ["1MB", "170kB"] if arguments.quick else ["1MB", "250kB", "200kB", "170kB", "150kB"]
    budgets(mg, texts, arguments.out)
    links(mg)
    packed(arguments.out, "140kB")


if __name__ == "__main__":
    main()
