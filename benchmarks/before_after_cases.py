"""What `before_after.py` measures, and the process that measures it on one source tree.

Run by `before_after.py` with `PYTHONPATH` at the tree's `src`: reads one JSON request a line, and
answers each with a line. Only what both trees have is used: public names of `chop`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import training
from cases import FORMATS, SPECS
from torch import Tensor, nn

import chop
from chop import MaseGraph, passes
from chop.formats import (
    Integer,
    MXInt,
    NumberFormat,
    QuantSpec,
    ScaleInteger,
    lsq_fake_quantize,
)
from chop.kernels import KERNELS, fake_quantize
from chop.kernels.cpu.build import library
from chop.models import get_model
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear

Call = Callable[[], Any]
LARGE, SMALL = (1024, 1024), (48, 48)
ROWS = (1, 16, 256)
PAGE, HUGE_PAGE, ARENA_BYTES = 2**12, 2**21, 2**24
INTEGER = QuantSpec(FORMATS[0], FORMATS[0], FORMATS[0])
TOKENS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        name: group and what it is.
        ready: a context that gives the call.
    """

    name: str
    ready: Callable[[], contextlib.AbstractContextManager[Call]]


def simply(make: Callable[[], Call]) -> Callable[[], contextlib.AbstractContextManager[Call]]:
    """A call that has nothing to clean up."""

    @contextlib.contextmanager
    def ready() -> Iterator[Call]:
        yield make()

    return ready


def values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values, the same in both processes."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@cache
def arena() -> Tensor:
    """Bytes on huge pages, from the beginning of one.

    How two tensors lie to one another decides up to a tenth of the time of a loop over them.
    """
    memory = mmap.mmap(-1, ARENA_BYTES + HUGE_PAGE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % HUGE_PAGE :].fill_(0)


def placed(x: Tensor, offset: int) -> Tensor:
    """A copy at that place of the arena."""
    count = x.numel() * x.element_size()
    return arena()[offset : offset + count].view(x.dtype).view(x.shape).copy_(x)


def rounding(number_format: NumberFormat, shape: tuple[int, ...], dtype: torch.dtype) -> Call:
    """Into memory that is there: a new tensor costs more than rounding does."""
    x = values(shape, dtype)
    # Half a page apart, loads do not wait for stores to an address of the same low bits.
    out = placed(x, ARENA_BYTES // 2 + PAGE // 2)
    return partial(fake_quantize, placed(x, 0), number_format, out)


@contextlib.contextmanager
def without_loops(number_format: NumberFormat) -> Iterator[Call]:
    """As on a machine without a compiler."""
    kernel = KERNELS.pop("cpu")
    try:
        yield rounding(number_format, LARGE, torch.float32)
    finally:
        KERNELS["cpu"] = kernel


def decoding(number_format: NumberFormat) -> Call:
    """The readable one."""
    return partial(number_format.decode, number_format.encode(values(LARGE)))


def decoding_half(number_format: NumberFormat) -> Call:
    """The kernel, which decodes to bfloat16."""
    parts = number_format.encode(values(LARGE))
    key = number_format.key
    stored = parts.codes, parts.scales, parts.tensor_scale, list(LARGE), key, torch.bfloat16
    return partial(torch.ops.chop.decode, *stored)


def product(spec: QuantSpec, rows: int, dtype: torch.dtype = torch.float32) -> Call:
    """Of a packed layer and so many rows."""
    layer = nn.Linear(*LARGE, dtype=dtype).eval()
    layer.weight.data = values(LARGE, dtype) / 32
    x = values((rows, LARGE[1]), dtype)
    return partial(pack(QuantLinear.from_float(layer, spec)).eval(), x)


def of_formats() -> Iterator[Case]:
    """Every number format."""
    for fmt in FORMATS:
        for shape, dtype in (
            (LARGE, torch.float32),
            (SMALL, torch.float32),
            (LARGE, torch.bfloat16),
        ):
            size = f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
            ready = simply(partial(rounding, fmt, shape, dtype))
            yield Case(f"fake-quantize {size}: {fmt.label}", ready)
        yield Case(f"fake-quantize without loops: {fmt.label}", partial(without_loops, fmt))
        ready = simply(lambda fmt=fmt: partial(fmt.round, values(LARGE)))
        yield Case(f"reference: {fmt.label}", ready)
        ready = simply(lambda fmt=fmt: partial(fmt.encode, values(LARGE)))
        yield Case(f"encode: {fmt.label}", ready)
        yield Case(f"decode: {fmt.label}", simply(partial(decoding, fmt)))


def of_packed_linear() -> Iterator[Case]:
    """Weights of every format, and inputs of some."""
    specs = {fmt.label: QuantSpec(weight=fmt) for fmt in FORMATS}
    known = list(specs.values())
    specs |= {name: spec for name, spec in SPECS.items() if spec not in known}
    for name, spec in specs.items():
        for rows in ROWS:
            yield Case(f"packed linear {rows} rows: {name}", simply(partial(product, spec, rows)))
    fmt = MXInt(8)
    yield Case(f"decode to bfloat16: {fmt.label}", simply(partial(decoding_half, fmt)))
    for rows in ROWS:
        ready = simply(partial(product, QuantSpec(weight=fmt), rows, torch.bfloat16))
        yield Case(f"packed linear {rows} rows, bfloat16: {fmt.label}", ready)


def model(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A built-in model with example inputs."""
    torch.manual_seed(0)
    built = get_model(name).eval()
    if name == "cnn":
        return built, {"pixel_values": values((16, 1, 8, 8))}
    ids = torch.arange(64).view(2, 32) + 5
    return built, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def graph(name: str) -> tuple[MaseGraph, dict[str, Tensor]]:
    """The model as a graph with metadata, and its inputs."""
    built, inputs = model(name)
    mg = MaseGraph(built, hf_input_names=list(inputs))
    mg, _ = passes.init_metadata_analysis_pass(mg)
    return passes.add_common_metadata_analysis_pass(mg)[0], inputs


def quantized(name: str) -> tuple[MaseGraph, dict[str, Tensor]]:
    """The graph in 8-bit integers, and its inputs."""
    mg, inputs = graph(name)
    return passes.quantize_transform_pass(mg, rules_of(mg))[0], inputs


def rules_of(mg: MaseGraph) -> dict[str, Any]:
    """Settings of `quantize_transform_pass`, for the operators that the graph has."""
    known = {mg.operator(node).name for node in mg.nodes} & {"linear", "conv2d", "layer_norm"}
    return {"by": "type", **{name: {"config": INTEGER} for name in sorted(known)}}


def capturing(name: str) -> Call:
    """Raises a model to a graph."""
    built, inputs = model(name)
    return lambda: MaseGraph(built, hf_input_names=list(inputs))


def quantizing(name: str) -> Call:
    """Copies the graph and replaces its operators."""
    mg, _ = graph(name)
    return partial(passes.quantize_transform_pass, mg, rules_of(mg))


def running(name: str, is_packed: bool) -> Call:
    """The forward of a quantized model."""
    mg, inputs = quantized(name)
    if is_packed:
        mg, _ = passes.pack_transform_pass(mg, {"silent": True})
    return partial(mg.model, **inputs)


@contextlib.contextmanager
def exporting() -> Iterator[Call]:
    """Into a folder that is removed afterwards."""
    mg, _ = quantized("cnn")
    with tempfile.TemporaryDirectory() as folder:
        settings = {"path": Path(folder) / "cnn.onnx"}
        yield partial(passes.export_onnx_interface_pass, mg, settings)


def of_models() -> Iterator[Case]:
    """Graphs, passes and models as a whole."""
    for name in ("cnn", "bert-tiny"):
        yield Case(f"model: capture {name}", simply(partial(capturing, name)))
        yield Case(f"model: quantize {name}", simply(partial(quantizing, name)))
        yield Case(f"model: forward {name}, quantized", simply(partial(running, name, False)))
        yield Case(f"model: forward {name}, packed", simply(partial(running, name, True)))
    yield Case("model: ONNX export cnn", exporting)


def of_training() -> Iterator[Case]:
    """Training steps of large layers."""
    for name, spec in training.CASES.items():
        yield Case(f"train: {name}", simply(partial(training_step, spec)))


def training_step(spec: QuantSpec) -> Call:
    """A step of quantized layers."""
    with torch.enable_grad():
        step = training.steps(spec, ROWS[-1], (768, 3072))["quantized"]
    return torch.enable_grad()(step)


def of_ranges() -> Iterator[Case]:
    """Learned scales and clipping: passes over a large weight, and calls on a small one."""
    yield Case("range: round a weight by scales", simply(partial(scaled, False)))
    yield Case("range: gradients of a weight", simply(partial(scaled, True)))
    for name in ("learned scales", "clip"):
        for part in ("forward", "forward and backward"):
            yield Case(f"range: small, {name}, {part}", simply(partial(ranged, name, part)))


def scaled(is_backward: bool) -> Call:
    """One pass over a weight with a scale for each channel."""
    number_format = ScaleInteger(8, granularity="channel")
    x, scales = placed(values((768, 3072)), 0), torch.full((768,), 0.05)
    if not is_backward:
        return partial(fake_quantize, x, number_format, torch.empty_like(x), scales)
    gradients = torch.ops.chop.lsq_changed_gradients
    return partial(gradients, values((768, 3072)), x, scales, number_format.key, False)


def ranged(name: str, part: str) -> Call:
    """A call whose processor time is mostly that of Python and of the dispatcher."""
    x, grad = values((4, 16)).requires_grad_(), torch.ones(4, 16)
    scales = torch.full((1,), 0.03, requires_grad=True)
    fixed, learned = Integer(8, 4), ScaleInteger(8)

    def call() -> None:
        y = fixed(x, "clip") if name == "clip" else lsq_fake_quantize(x, scales, learned, True)
        if part != "forward":
            y.backward(grad)

    return torch.enable_grad()(call)


def all_cases() -> dict[str, Case]:
    """By name, in the order of the table."""
    cases = (*of_models(), *of_formats(), *of_packed_linear(), *of_training(), *of_ranges())
    return {case.name: case for case in cases}


def timed(call: Call, calls: int) -> dict[str, float]:
    """Seconds of so many calls, by the processor and by the wall."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    busy = time.process_time() - processor
    return {"processor": busy, "wall": time.perf_counter() - wall}


class Worker:
    """Answers requests; one case is ready at a time."""

    def __init__(self) -> None:
        self.cases = all_cases()
        self.resources = contextlib.ExitStack()
        self.call: Call = lambda: None
        gc.freeze()  # collecting the modules again and again would take longer than most cases

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the request asks for, or `{"error": text}`."""
        try:
            return getattr(self, f"do_{request.pop('do')}")(**request)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def do_list(self) -> dict[str, Any]:
        """The cases, and which tree this is."""
        return {"cases": list(self.cases), "chop": chop.__file__, "loops": library().detail}

    def do_prepare(self, case: str) -> dict[str, Any]:
        """Makes a case ready, calls it twice, and says what a call takes."""
        self.resources.close()
        self.call = self.resources.enter_context(self.cases[case].ready())
        timed(self.call, 1)
        gc.collect()
        return timed(self.call, 1)

    def do_time(self, calls: int) -> dict[str, Any]:
        """Calls what is ready; the other process had the caches meanwhile, so once more before."""
        if calls > 1:
            self.call()
        return timed(self.call, calls)


def main() -> None:
    """Until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # passes print
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    worker = Worker()
    with torch.no_grad():
        for line in sys.stdin:
            answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
