"""Where does it run: one decoder for vLLM, llama.cpp, onnxruntime and C++, from the same codes.

python examples/export.py                              (built-in decoder, 4 bits in groups of 32)
python examples/export.py --model ./my-llama --format mxint:width=8

Targets whose library is missing are left out, with the command that installs it. As commands:

    chop export gpt-tiny --format group_integer:width=4 --to compressed-tensors,gguf,onnx,pt2 \
        --nearest --limit 16 --batch 1
"""

import argparse
from pathlib import Path

from chop.actions.export.job import export
from chop.actions.export.settings import ExportConfig
from chop.errors import UnavailableError
from chop.export.targets import TARGETS, target

FOR_DECODERS = tuple(name for name in TARGETS if name != "qonnx")
"""Those with scales of groups of weights; circuits have one for a row."""


def available(names):
    """The targets whose libraries are installed; says of others what installs them."""
    found = []
    for name in names:
        try:
            target(name).require()
            found.append(name)
        except UnavailableError as error:
            print(error)
    return tuple(found)


def main():
    """Writes and reads back every target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt-tiny", help="built-in, local folder or hub name")
    parser.add_argument("--format", default="group_integer:width=4", help="of the weights")
    parser.add_argument("--to", nargs="+", default=FOR_DECODERS, choices=TARGETS)
    parser.add_argument("--limit", type=int, default=16, help="test rows to compare")
    parser.add_argument("--out", type=Path, default=Path("runs/export-example"))
    args = parser.parse_args()
    how = {"nearest": True, "limit": args.limit, "out": args.out, "batch_sizes": (1,)}
    rows = export(ExportConfig(args.model, available(args.to), args.format, **how))
    for row in rows:
        print(
            f"{row.target}: {row.size_bytes / 1000:,.0f} kB, weights equal: {row.weights}, outputs "
            f"differ by {row.difference:.1e}"
        )


if __name__ == "__main__":
    main()
