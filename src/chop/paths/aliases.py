"""Aliases for MASE's import paths and names.

These modules have no files (see `chop.paths.virtual`). Names are resolved on access, so that unused
paths cost nothing.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # `typing` is not imported with `chop`
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

_ARRAYS = "copy_weights is_tensor to_numpy to_numpy_if_tensor to_tensor to_tensor_if_numpy"
_DOTTED = "deepgetattr deepsetattr"
_LOGS = "get_logger root_logger=root_logger() set_logging_verbosity"
_INPUTS = "InputGenerator get_cf_args get_dummy_input"

HOMES: dict[str, dict[str, str]] = {
    "chop.dataset": {
        "chop.data": "DatasetInfo get_dataset_info",
        "chop.mase.data_module": "MaseDataModule",
    },
    "chop.ir.graph.mase_metadata": {"chop.ir.metadata": "*"},
    "chop.models.toy": {"chop.models.plain": "*"},
    "chop.models.utils": {
        "chop.models.catalogue": "ModelInfo get_model_info",
        "chop.models.named": "get_model get_tokenizer",
        "chop.models.registry": "ModelFactory register_mase_checkpoint register_mase_model",
    },
    "chop.models.vgg_cifar": {"chop.models.plain": "VGG7"},
    "chop.nn.quantizers": {"chop.mase.quantizers": "*"},
    "chop.nn.quantizers.utils": {"chop.mase.straight_through": "*"},
    "chop.passes.graph": {
        "chop.passes": "*",
        "chop.ir.ops": "QUANTIZEABLE_OP=quantizable_operators()",
    },
    "chop.passes.graph.utils": {
        "chop.ir.nodes": "* fetch_attr=get_module_by_target",
        "chop.ir.graph": "deepcopy_mase_graph=MaseGraph.copy",
        "chop.ir.dotted": _DOTTED,
    },
    "chop.tools": {
        "chop.mase.arrays": _ARRAYS,
        "chop.ir.graph": "get_hf_dummy_in=dummy_inputs",
        "chop.config": "load_config",
        "chop.data": "get_tokenized_dataset",
        "chop.ir.dotted": _DOTTED,
        "chop.base.notices": _LOGS,
        "chop.models.weights": "load_model=load_checkpoint",
        "chop.train": "get_trainer",
        "chop.mase.input_generator": _INPUTS,
    },
    "chop.tools.checkpoint_load": {"chop.models.weights": "load_model=load_checkpoint"},
    "chop.tools.config_load": {"chop.config": "load_config"},
    "chop.tools.get_input": {"chop.mase.input_generator": _INPUTS},
    "chop.tools.logger": {"chop.base.notices": _LOGS},
    "chop.tools.utils": {"chop.mase.arrays": _ARRAYS, "chop.ir.dotted": _DOTTED},
}
"""MASE module -> modules that define its names -> these names.

`*` stands for all public names, see `_all`; `old=new` for one that is called `new` here;
`old=new()` for the result of a function.
"""
DEEP: dict[tuple[str, str], str] = {
    ("chop.dataset", "chop.dataset"): "data_module",
    ("chop.models", "chop.models.toy"): "toy.toy toy.toy_custom_fn toys.toy toys.toy_custom_fn",
    ("chop.models.vgg_cifar", "chop.models.vgg_cifar"): "vgg_cifar",
    ("chop.nn.quantizers", "chop.nn.quantizers"): """
        binary block_fp block_log block_minifloat integer log minifloat mxfp mxint scale_integer
        ternary
    """,
    ("chop.passes.graph.analysis", "chop.passes.graph"): """
        add_metadata.add_common_metadata add_metadata.add_hardware_metadata
        add_metadata.add_software_metadata autosharding.autosharding hardware.parse_synth_rpt
        hardware.run_cosim init_metadata pruning.calculate_natural_sparsity
        pruning.calculate_sparsity pruning.hook_inspector quantization.calculate_avg_bits
        report.report_graph report.report_node runtime.runtime_analysis
        statistical_profiler.profile_statistics verify.verify
    """,
    ("chop.passes.graph.analysis", "chop.passes.graph.utils"): "utils",
    ("chop.passes.graph", "chop.passes.graph"): """
        analysis interface.onnxrt.onnx_runtime interface.save_and_load interface.tensorrt.quantize
        transforms
    """,
    ("chop.passes.graph.transforms", "chop.passes.graph"): """
        granularity lora onnxrt patching.patch_metadata pruning.prune pruning.prune_detach_hook
        quantize.quant_parsers quantize.quantize quantize.summary resharding snn.ann2snn
        tensorrt.quantize.calibrate tensorrt.quantize.fine_tune training.training_base
        utils.conv_bn_fusion utils.logicnets_fusion utils.onnx_annotator verilog.emit_bram
        verilog.emit_internal verilog.emit_tb verilog.emit_top verilog.emit_vivado_project
    """,
    ("chop.passes.module", "chop.passes.module"): """
        analysis.quantize.calculate_avg_bits_module analysis.report transforms.attention
        transforms.autosharding transforms.quantize.quantize transforms.snn.ann2snn
    """,
    ("chop.passes.graph.transforms.quantize", "chop.nn.quantized.modules"): """
        quantized_modules.batch_norm1d quantized_modules.batch_norm2d quantized_modules.conv1d
        quantized_modules.conv2d quantized_modules.linear quantized_modules.relu
    """,
    ("chop.passes.graph.transforms.quantize", "chop.nn.quantizers"): """
        quantizers.binary quantizers.integer quantizers.quantizers quantizers.ternary
    """,
    ("chop.passes.graph.transforms.quantize", "chop.nn.quantizers.utils"): "quantizers.utils",
    ("chop.tools", "chop.tools"): "huggingface",
}
"""(package of MASE, module) -> paths below the package that are other names of the module.

The packages along a path are other names of it as well.
"""


def _modules() -> dict[str, str]:
    """Returns every path of the tables -> the row of `HOMES` or the module that it names."""
    modules = {path: path for path in HOMES}
    for (package, home), paths in DEEP.items():
        for path in paths.split():
            parts = path.split(".")
            for depth in range(len(parts)):
                modules.setdefault(".".join([package, *parts[: depth + 1]]), home)
    return modules


MODULES = _modules()


def fill(module: ModuleType) -> None:
    """Gives a new MASE module its docstring, `__getattr__` and `__dir__`."""
    path = module.__name__
    homes = HOMES.get(MODULES[path], {MODULES[path]: "*"})
    module.__doc__ = f"MASE's path for names from {', '.join(homes)}."
    vars(module)["__getattr__"] = lambda name: _find(path, homes, name)
    vars(module)["__dir__"] = lambda: _public(homes)


def _find(path: str, homes: Mapping[str, str], name: str) -> Any:
    """Returns the attribute `name` of the module `path`."""
    if f"{path}.{name}" in MODULES:
        return importlib.import_module(f"{path}.{name}")
    if name == "__all__":
        return _public(homes)
    if name.startswith("__"):
        raise AttributeError(f"module '{path}' has no attribute '{name}'")
    for home, names in homes.items():
        target = _targets(home, names).get(name)
        if target is not None:
            member: Any = importlib.import_module(home)
            for step in target.removesuffix("()").split("."):
                member = getattr(member, step)
            return member() if target.endswith("()") else member
        made = vars(importlib.import_module(home)).get("__getattr__")
        if made is not None and "*" in names.split():
            try:
                return made(name)
            except AttributeError:
                continue  # another home may have it
    from chop.errors import did_you_mean  # not needed by `import chop`

    hint = did_you_mean(name, _public(homes))
    raise AttributeError(f"module '{path}' has no attribute '{name}': {hint}")


def _public(homes: Mapping[str, str]) -> list[str]:
    return [name for home, names in homes.items() for name in _targets(home, names)]


def _targets(home: str, names: str) -> dict[str, str]:
    """Returns the names of a row of `HOMES` -> their names in `home`."""
    targets: dict[str, str] = {}
    for entry in names.split():
        if entry == "*":
            targets |= {name: name for name in _all(importlib.import_module(home))}
        else:
            old, _, new = entry.partition("=")
            targets[old] = new or old
    return targets


def _all(module: ModuleType) -> list[str]:
    """Returns `__all__` of a module, by default its own public functions and classes."""
    if hasattr(module, "__all__"):
        names: list[str] = module.__all__
        return names
    public = ((name, value) for name, value in vars(module).items() if not name.startswith("_"))
    return [name for name, x in public if getattr(x, "__module__", None) == module.__name__]
