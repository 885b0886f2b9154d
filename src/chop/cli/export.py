"""`chop export`."""

from __future__ import annotations

from chop.cli.command import Command, deferred

HELP = """Write a compressed model for other engines, and read the files back.

[bold]Examples[/]

  chop export runs/compress --to onnx,openvino,pt2

  chop export ./my-llama --format mxint8 --to gguf,compressed-tensors

  chop export ./my-llama --format fp8 --inputs fp8 --to compressed-tensors

  chop export ./my-llama --format mxint4 --override 're:.*down_proj=mxint8' --to gguf

  chop export runs/compress --to gptq --nearest --batch 1 --batch 32

[bold]Targets[/], their engines, and the formats that they support:

{targets}

If a target does not support the format of a module, chop lists the module with the nearest
supported format and writes no files for any target. --nearest rounds such modules to that format.
onnx and openvino accept every format: a note says which weights became floats and which inputs are
not rounded. The target's own library reads each file back; chop itself reads folders of gptq. vLLM,
SGLang, GPTQModel and FINN were not run. chop doctor names missing libraries.

[bold]Tables[/]: per target the size, the number of packed weights that the library decodes to the
graph's values, and the largest difference of outputs; per model the metric on the test rows, if
they are known; per engine and batch size the speed-up over float and over the graph.

[bold]Output[/] in --out: a file or folder per target, table.md, manifest.json, and per batch
size times-batch-N.svg and times-batch-N.json."""

EXPORT = Command(
    deferred("chop.actions.export.job:export"),
    "chop.actions.export.settings:ExportConfig",
    HELP,
    arguments=("model",),
)
