"""Every module opens files of others through `chop.base.files.reading`."""

import ast
from pathlib import Path

import chop
from chop.base.files.reading import BOUNDS
from tests.sources import parse_file

SRC = Path(chop.__file__).parent
OPENING = {
    *("open", "read_text", "read_bytes", "load_file", "safe_open", "fromfile", "memmap", "loadtxt"),
    *("genfromtxt", "from_pretrained", "load_from_disk", "from_file", "ZipFile", "mmap"),
    *("read_csv", "read_table", "read_excel", "memory_map", "GGUFReader", "iterparse", "loadmat"),
    *("unpack_archive", "run_path", "spec_from_file_location"),
}
"""Last names of calls that open a file."""
LOADING = {"torch.load", "np.load", "numpy.load", "json.load", "pickle.load", "onnx.load"}
LOADING |= {"tomllib.load", "torch.jit.load", "torch.export.load", "yaml.safe_load"}
LOADING |= {"sqlite3.connect", "torch.hub.load", "h5py.File", "ElementTree.parse", "ET.parse"}
DATASETS = "datasets.load_dataset_builder"
READING = {"read_bytes", "read_text", "open_regular", "require_file", "read_json", "read_toml"}
"""Functions of `chop.base.files`, called by these names alone."""

OWN = "a file of this package"
WRITTEN = "a file that this process or its child has just written, in a folder of its own"
SYSTEM = "a file of the operating system's"
CHECKED = "the folder or file was checked before: check_folder_files, require_file"
NO_FILE = "no file is opened"
EXCEPTIONS = {
    "actions/shard/run.py": WRITTEN,
    "bench/peak_memory.py": SYSTEM,
    "cli/docs.py": NO_FILE,
    "cli/names.py": OWN,
    "cli/report.py": NO_FILE,
    "data/confined.py": "YAML of a text that is in memory",
    "data/files.py": "datasets finds the files itself; it takes regular ones alone",
    "data/load.py": "a name on the hub",
    "data/tokenizer.py": CHECKED,
    "data/unpacked.py": CHECKED,
    "export/compressed_tensors/target.py": WRITTEN,
    "export/onnx/module.py": WRITTEN,
    "export/gguf/target.py": WRITTEN,
    "export/gguf/floats.py": CHECKED,
    "export/gguf/header.py": CHECKED,
    "export/gguf/reader.py": CHECKED,
    "export/onnx/decoded_weights.py": WRITTEN,
    "export/onnx/target.py": WRITTEN,
    "export/packed_folder.py": WRITTEN,
    "export/pt2.py": WRITTEN,
    "export/qonnx/reader.py": CHECKED,
    "export/foreign/loading.py": WRITTEN,
    "base/files/atomic.py": SYSTEM,
    "base/files/digests.py": "a folder, which is synced",
    "base/files/locks.py": "a folder, or a lock that is opened for writing",
    "base/files/reading.py": "the function itself",
    "base/files/temporary.py": SYSTEM,
    "base/files/writers.py": "opened for appending, after require_file",
    "hardware/design/axis.py": OWN,
    "hardware/design/plan.py": OWN,
    "hardware/costs/estimate.py": OWN,
    "hardware/harness/build.py": OWN,
    "hardware/harness/run.py": WRITTEN,
    "hardware/harness/worker.py": WRITTEN,
    "hardware/costs/place.py": WRITTEN,
    "hardware/costs/synth.py": WRITTEN,
    "hardware/check/testbench.py": OWN,
    "hardware/design/verilog.py": OWN,
    "base/installed.py": OWN,
    "ir/huggingface/card.py": "YAML of a text that is in memory",
    "ir/huggingface/generation_file.py": CHECKED,
    "ir/storage/tensor_store.py": CHECKED,
    "ir/storage/torch_file.py": CHECKED,
    "kernels/cpu/build.py": SYSTEM,
    "base/memory.py": SYSTEM,
    "models/load.py": CHECKED,
    "models/own.py": "code that the command line names",
    "models/weights.py": CHECKED,
    "base/native.py": OWN,
    "report/figures/style.py": WRITTEN,
    "report/format_page.py": OWN,
    "report/page/page.py": OWN,
    "runs/environment.py": SYSTEM,
    "search/storage.py": "regular files alone, without programs of their own",
    "studies/weight_memory.py": WRITTEN,
    "testing/circuit_bench.py": WRITTEN,
}
"""Modules that open files otherwise, and why they may."""


def _calls(module):
    for node in ast.walk(parse_file(module)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def _opens(call, name):
    """Returns whether a call may open a file for reading without `chop.base.files.reading`."""
    last = name.rpartition(".")[2]
    if name in READING or name == "contextlib.suppress":
        return False
    if last == "open":
        modes = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        modes += [key.value.value for key in call.keywords if isinstance(key.value, ast.Constant)]
        mode = next((mode for mode in modes if isinstance(mode, str) and len(mode) < 4), "r")
        return "r" in mode or "+" in mode
    return last in OPENING or name in LOADING or name == DATASETS


def test_only_named_modules_open_files_for_reading_otherwise():
    found = {
        module.relative_to(SRC).as_posix()
        for module in SRC.rglob("*.py")
        if any(_opens(call, name) for call, name in _calls(module))
    }
    assert sorted(found - EXCEPTIONS.keys()) == [], "use chop.base.files.reading.open_regular"
    assert sorted(EXCEPTIONS.keys() - found) == [], "these open no files any more"


def test_each_kind_of_file_is_one_of_the_table():
    used = set()
    for module in SRC.rglob("*.py"):
        for call, name in _calls(module):
            if name in READING and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
                used.add(call.args[1].value)
    assert used <= BOUNDS.keys()
    assert {"manifest", "settings", "journal", "checkpoint", "weights", "gguf"} <= used
