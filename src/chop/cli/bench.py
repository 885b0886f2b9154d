"""`chop bench`: paired measurements of latency, memory and error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chop.cli.adapter import command_group
from chop.cli.command import Command, deferred, load

OUTPUT = """[bold]Output[/] in --out: tables.md, and per case a .json file with every block and an
.svg plot."""

MODEL_HELP = """Measure a compressed model against its float model.

[bold]Examples[/]

  chop bench model    # compresses the built-in demo model first

  chop bench model runs/compress

  chop bench model --model bert-tiny --format mxint --batch 1 --batch 64

  chop bench model --model ./my-bert --dataset ./imdb --max-length 128 --device cuda

[bold]Columns[/] per batch size: latency, speed-up over float, rows per second, bytes of the weights
in memory and on disk, peak memory of a call, and the largest difference of the outputs. The row
"float graph" is the captured model before compression: its speed-up comes from the capture.

[bold]Output[/] in --out: table.md, and per batch size times-batch-N.json (every block of every
variant, threads, instruction set, load, versions) and times-batch-N.svg.
"""

ATTENTION_HELP = f"""Measure naive attention against fused scaled-dot-product attention.

[bold]Examples[/]

  chop bench attention    # BERT-base's heads, three dtypes, three masks

  chop bench attention --shape 4x12x1024x64 --shape 1x12x2048x64 --dtype float32 --mask none

  chop bench attention --device cuda --shape 16x16x4096x128 --dtype bfloat16

[bold]Variants[/] per shape (batch x heads x tokens x head size), dtype and mask: "naive", one
operation at a time; "three kernels", with scaling and mask in the kernel of the first product;
"fused", with the kernel that torch chooses. [bold]Columns[/]: speed-up over naive, bytes moved,
share of this device's roofline (copy bandwidth and matrix-product throughput, both measured first),
and the largest error against float64.

{OUTPUT}
"""

COMPILE_HELP = f"""Measure torch.compile against eager execution.

[bold]Examples[/]

  chop bench compile    # bert-tiny and resnet18, batches of 1 and 16

  chop bench compile --model cnn --model prajjwal1/bert-tiny --batch 4 --mode default

  chop bench compile --model ./my-bert --length 256 --device cuda

  chop bench compile --model mlp --method time    # sequential runs, as in courses

[bold]Columns[/] per model, batch size and mode: speed-up over eager, compile time, and break-even
point (the number of calls that repay the compile time). Weights are random: built-in names and
those of chop.models.MODELS (resnet50, bert-base-uncased ...) need no network. A second table shows
the speed-ups that runs of 5, 50 and 200 iterations would report, by `time` and by
torch.utils.benchmark, with and without a warm-up. A third table lists graph breaks, and
recompilations for another batch size or length.

[bold]Modes[/]: default; reduce-overhead (CUDA graphs); max-autotune (tries kernels); freezing
(weights become constants). Compile caches are off, so compile times are cold.

{OUTPUT}
"""

SOFTMAX_HELP = f"""Measure naive softmax against fused softmax.

[bold]Examples[/]

  chop bench softmax    # 16.8 million numbers in short and in long rows

  chop bench softmax --shape 4096x4096 --dtype bfloat16

  chop bench softmax --device cuda --shape 65536x2048 --shape 1024x131072

[bold]Variants[/] per shape (rows x columns) and dtype: "naive", five operations that move 8MN + 4M
numbers; torch; torch.compile of naive; on a GPU chop's Triton kernel, which reads and writes every
number once; and a copy as the lower bound. [bold]Columns[/]: speed-up over naive, bytes moved,
bandwidth, share of the copy's bandwidth, and the largest error against float64. Without a GPU the
Triton kernel runs in Triton's interpreter, which measures its error but not its time.

{OUTPUT}
"""

LINEAR_HELP = f"""Measure separate Linear and ReLU calls against one fused call.

[bold]Examples[/]

  chop bench linear    # three sizes, one row to 2,048

  chop bench linear --shape 512x1024x4096 --iteration 5 --iteration 50 --iteration 200

  chop bench linear --device cuda --shape 4096x4096x4096

[bold]Variants[/] per shape (rows x inputs x outputs): "naive", with separate product, bias and
ReLU; "linear, relu", with two calls of torch; "fused", one call, by oneDNN on a CPU and by
torch.compile on a GPU. [bold]Columns[/]: speed-up over naive, bytes moved, and the largest error
against float64. A second table shows the speed-ups that runs of 5, 50 or 200 iterations would
report, with and without a warm-up.

{OUTPUT}
"""

DEQUANTIZE_HELP = f"""Measure packed weights: dequantization, matrix product and memory.

[bold]Examples[/]

  chop bench dequantize    # a weight of 4096 x 4096 in four formats

  chop bench dequantize --format mxint8 --rows 1 --rows 64 --model bert-tiny

  chop bench dequantize --device cuda --dtype bfloat16 --outputs 8192 --inputs 8192

[bold]Dequantization[/]: a loop over blocks (timed on a part and scaled up), torch, C++ on a CPU,
Triton and, for mxint8, CUDA C++ on a GPU; bandwidth as a share of a copy's, and a bitwise check.
[bold]Product[/]: "fused" dequantizes inside the kernel, "decoded first" stores the decoded weight.
[bold]Memory[/] of a model with packed linear layers: in theory, predicted from its layers, of its
file, and measured in a new process or by the GPU's allocator.

{OUTPUT}
"""


GENERATE_HELP = f"""Measure the text generation speed of a decoder, packed and in float.

[bold]Examples[/]

  chop bench generate    # the built-in decoder

  chop bench generate --model ./my-llama --format mxint8 --prompt 256 --threads 4

  chop bench generate --model ./my-llama --no-peers --batch 8

  chop bench generate --model ./my-llama --format group_integer4 --compile

  chop bench generate --model ./my-llama --prompt 512 --cache mxint8 --cache group_affine4/mxint4

[bold]Columns[/] per model: tokens per second of the prompt (prefill) and of generated tokens
(decode), each with its ratio to float32, bytes of the weights as saved, peak memory of a prompt,
and the largest difference of a token's logits. [bold]Peers[/] on the same prompts: bfloat16,
torch's quantize_dynamic, torchao's 8-bit and 4-bit weights if it is installed, and llama.cpp on
files with the same codes if cyllama is. [bold]Key-value caches[/] of the float32 model: memory
relative to the float cache, KL divergence of the next token's probabilities, and time per token.

{OUTPUT}
"""


def _study(name: str) -> Callable[[Any], Any]:
    """Returns a function that runs the study at `module:name` and writes its results."""

    def run(config: Any) -> Any:
        from chop.actions.bench.report import measure_and_write

        return measure_and_write(load(f"chop.studies.{name}:bench_{name}"), config)

    return run


bench_app = command_group(
    {
        "model": Command(
            deferred("chop.actions.bench.job:bench_model"),
            "chop.actions.bench.settings:BenchModelConfig",
            MODEL_HELP,
            run_field="compressed",
            run_help="Output folder of chop compress.",
        ),
        "attention": Command(
            _study("attention"), "chop.studies.settings:BenchAttentionConfig", ATTENTION_HELP
        ),
        "compile": Command(
            _study("compile"), "chop.studies.settings:BenchCompileConfig", COMPILE_HELP
        ),
        "softmax": Command(
            _study("softmax"), "chop.studies.settings:BenchSoftmaxConfig", SOFTMAX_HELP
        ),
        "linear": Command(_study("linear"), "chop.studies.settings:BenchLinearConfig", LINEAR_HELP),
        "dequantize": Command(
            _study("dequantize"), "chop.studies.settings:BenchDequantizeConfig", DEQUANTIZE_HELP
        ),
        "generate": Command(
            _study("generate"), "chop.studies.settings:BenchGenerateConfig", GENERATE_HELP
        ),
    },
    """Measure latency, memory and error, in pairs and with confidence intervals.

Variants run interleaved in blocks of 20 ms, A B ... B A, and are compared block by block, so that
other load on the machine slows all of them equally. Each ratio has a 95 % confidence interval; if
it spans 1, [bold]no difference is shown[/]. Compile time and first call are measured separately.

One thread is timed by processor time, which other programs hardly disturb. Several threads are
timed by wall-clock time: keep the machine idle.""",
)
