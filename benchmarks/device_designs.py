"""What `chop emit --device ecp5-85` chooses, beside the best fold that is one for all nodes.

Each design is emitted as the command does, simulated under all profiles of stalls, placed and
routed. An encoder layer has the sizes of BERT-tiny, 32 tokens and drawn weights. The best uniform
fold is the first that fits by the estimate, of folds 2 % apart from the fastest design on.

python benchmarks/device_designs.py [--models mlp encoder] [--samples 8] [--seeds 1] [--out FOLDER]

Writes `FOLDER/table.md`, and a folder of `chop emit` for each model. All is done again in each run,
but for routed seeds, which are kept in the cache folder.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.hardware.costs.devices import parse_device
from chop.hardware.folds.fold import excess
from chop.hardware.folds.foldable import Foldable
from chop.workloads.workload import Workload

DEVICE = "ecp5-85"
MODELS = ("mlp", "cnn", "vit", "encoder")
TOKENS, FEATURES = 32, 128
USED = {"lut": "TRELLIS_COMB", "ff": "TRELLIS_FF", "dsp": "MULT18X18D", "bram": "DP16KD"}
"""Resource -> the cell that takes it, after routing."""


class EncoderLayer(nn.Module):
    """An encoder layer of BERT-tiny's sizes: (N, 32, 128) to (N, 4096)."""

    def __init__(self) -> None:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertLayer

        super().__init__()
        config = BertConfig(hidden_size=FEATURES, num_attention_heads=2, intermediate_size=512)
        config._attn_implementation = "sdpa"
        self.layer = BertLayer(config)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.weight, 1, 0.2)
                nn.init.normal_(module.bias, 0, 0.2)
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.3)
                nn.init.normal_(module.bias, 0, 0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        """All features of all tokens, as one row of a sample."""
        out = self.layer(hidden)
        return (out[0] if isinstance(out, tuple) else out).flatten(1)


def main() -> None:
    """Emits and places each design, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--samples", type=int, default=8, help="simulated, of each design")
    parser.add_argument("--seeds", type=int, default=1, help="of the router")
    parser.add_argument("--out", type=Path, default=Path("runs/device_designs"))
    given = parser.parse_args()
    rows = []
    for name in given.models:
        rows.append(get_row(name, given.samples, given.seeds, given.out / name))
        print(rows[-1], flush=True)
        write_text(given.out / "table.md", markdown_table(rows) + "\n")


def get_row(name: str, samples: int, seeds: int, out: Path) -> dict[str, Any]:
    """A line of the table."""
    config = EmitConfig(
        model="vit" if name == "encoder" else name,
        device=DEVICE,
        samples=samples,
        icarus_samples=0,
        synthesis=False,
        place=True,
        place_seeds=seeds,
        out=out,
        force=True,
    )
    found = emit(config, encoder_workload() if name == "encoder" else None)
    placed, parts = found["placement"], found["components"]
    path, cells = placed["critical_path"], placed["utilization"]
    counts = [(part["multipliers"], part["soft_multipliers"]) for part in parts]
    return {
        "model": name,
        "interval": found["verification"][0]["interval"],
        "uniform": uniform_interval(MaseGraph.from_checkpoint(out / "model.mz")),
        "soft": f"{sum(soft > 0 for _, soft in counts)} of {sum(map(any, counts))}",
        "samples": samples,
        "profiles": len(found["verification"]),
        **{f"{each['resource']} estimated": round(each["estimated"]) for each in found["device"]},
        **{f"{name} used": cells.get(cell, {}).get("used", 0) for name, cell in USED.items()},
        "clock": " ".join(f"{seed['mhz']:.1f}" for seed in placed["seeds"]),
        "slowest path": f"{path['from']} to {path['to']}",
        "ns in cells, in wires": f"{path['logic_ns']}, {path['wire_ns']}",
    }


def uniform_interval(mg: MaseGraph) -> int:
    """The smallest interval of one fold for all nodes that fits the device, by the estimate."""
    device = parse_device(DEVICE)
    graph = Foldable(mg, device)
    fold = graph.fastest
    while excess((found := graph.measured({}, fold)).usage, device):
        fold = math.ceil(1.02 * fold)
    return found.interval


def encoder_workload() -> Workload:
    """The layer with drawn weights, and drawn rows."""
    torch.manual_seed(0)
    model, rows = EncoderLayer().eval(), torch.randn(64, TOKENS, FEATURES)
    labels = torch.arange(64)
    return Workload.of(model, (rows, labels), (rows, labels), name="encoder", device="cpu")


if __name__ == "__main__":
    main()
