"""Every name that users of MASE import, each by the paths by which it is reached."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

import chop
from chop import MaseGraph, passes
from chop.paths.aliases import HOMES, MODULES
from chop.paths.not_built import NOT_BUILT
from tests.fresh import printed_by
from tests.subcases import subcases

PASSES = """
    init_metadata_analysis_pass add_common_metadata_analysis_pass
    add_software_metadata_analysis_pass add_hardware_metadata_analysis_pass
    profile_statistics_analysis_pass report_graph_analysis_pass report_node_type_analysis_pass
    report_node_shape_analysis_pass report_node_meta_param_analysis_pass
    verify_common_metadata_analysis_pass calculate_avg_bits_mg_analysis_pass
    summarize_quantization_analysis_pass add_pruning_metadata_analysis_pass
    add_natural_sparsity_metadata_analysis_pass verify_metadata_analysis_pass
    verify_software_metadata_analysis_pass verify_hardware_metadata_analysis_pass
    hook_inspection_analysis_pass report_node_hardware_type_analysis_pass run_cosim_analysis_pass
    runtime_analysis_pass autosharding_analysis_pass raise_granularity_transform_pass
    logicnets_fusion_transform_pass onnx_annotate_transform_pass
    partition_to_multi_device_transform_pass patch_metadata_transform_pass ann2snn_transform_pass
    tensorrt_calibrate_transform_pass tensorrt_fake_quantize_transform_pass
    tensorrt_fine_tune_transform_pass emit_vivado_project_transform_pass
    quantize_transform_pass prune_transform_pass
    prune_detach_hook_transform_pass conv_bn_fusion_transform_pass
    insert_lora_adapter_transform_pass fuse_lora_weights_transform_pass resharding_transform_pass
    emit_verilog_top_transform_pass emit_internal_rtl_transform_pass emit_bram_transform_pass
    emit_cocotb_transform_pass save_mase_graph_interface_pass load_mase_graph_interface_pass
    save_node_meta_param_interface_pass load_node_meta_param_interface_pass
    onnx_runtime_interface_pass tensorrt_engine_interface_pass
"""
QUANTIZERS = """
    integer_quantizer integer_floor_quantizer scale_integer_quantizer minifloat_denorm_quantizer
    minifloat_ieee_quantizer log_quantizer block_fp_quantizer block_minifloat_quantizer
    block_log_quantizer binary_quantizer residual_sign_quantizer ternary_quantizer
    mxint_quantizer mxfp_quantizer mxint_hardware quantizer_map
"""
LINEARS = """
    LinearInteger LinearMinifloatDenorm LinearMinifloatIEEE LinearLog LinearBlockFP
    LinearBlockMinifloat LinearBlockLog LinearBinary LinearBinaryScaling LinearBinaryResidualSign
"""
MODULE_PASSES = """
    report_trainable_parameters_analysis_pass quantize_module_transform_pass
    calculate_avg_bits_module_analysis_pass
"""
NODE_HELPERS = """
    get_mase_op get_mase_type get_node_actual_target get_parent_name deepcopy_mase_graph
    deepgetattr deepsetattr get_module_by_name get_module_by_target get_node_by_name
    get_input_index
"""
TOOLS = """
    get_tokenized_dataset get_trainer get_hf_dummy_in get_logger root_logger set_logging_verbosity
    load_model load_config get_cf_args get_dummy_input copy_weights to_numpy to_numpy_if_tensor
    to_tensor to_tensor_if_numpy is_tensor deepsetattr deepgetattr
"""
ARRAYS = "copy_weights to_numpy to_numpy_if_tensor to_tensor to_tensor_if_numpy is_tensor"
NAMES = {
    "chop": "MaseGraph passes tools",
    "chop.ir": "MaseGraph",
    "chop.ir.graph": "MaseGraph",
    "chop.ir.graph.mase_graph": "MaseGraph",
    "chop.passes": f"{PASSES} graph module",
    "chop.passes.graph": PASSES,
    "chop.passes.graph.analysis": " ".join(n for n in PASSES.split() if "_analysis_" in n),
    # quantization is summarized beside the pass that quantizes
    "chop.passes.graph.transforms": "summarize_quantization_analysis_pass "
    + " ".join(n for n in PASSES.split() if "_transform_" in n),
    "chop.passes.graph.interface": " ".join(n for n in PASSES.split() if "_interface_" in n),
    "chop.passes.graph.utils": NODE_HELPERS,
    "chop.passes.module": f"{MODULE_PASSES} attention_transform_pass ann2snn_module_transform_pass",
    "chop.tools": TOOLS,
    "chop.tools.utils": f"deepsetattr deepgetattr {ARRAYS}",
    "chop.tools.logger": "set_logging_verbosity get_logger root_logger",
    "chop.tools.get_input": "InputGenerator get_dummy_input get_cf_args",
    "chop.tools.checkpoint_load": "load_model",
    "chop.tools.config_load": "load_config",
    "chop.models": "get_model get_model_info get_tokenizer ModelFactory register_mase_model "
    "register_mase_checkpoint ToyNet ToyConvNet VGG7",
    "chop.dataset": "MaseDataModule get_dataset_info",
    "chop.pipelines": "CompressionPipeline AutoPipeline AutoPipelineForDistributedInference",
    "chop.nn.modules": "Identity",
    "chop.nn.quantizers": QUANTIZERS,
    "chop.nn.quantized.modules.linear": LINEARS,
    "chop.nn.quantized.modules.conv1d": "Conv1dInteger Conv1dBlockFP",
    "chop.nn.quantized.modules.conv2d": "Conv2dInteger Conv2dBlockFP Conv2dBinary",
    "chop.nn.quantized.modules.relu": "ReLUInteger",
    "chop.actions": "simulate train test transform",
}
# By the files that MASE has them in.
DEEP = {
    "chop.ir.graph.mase_metadata": "MaseMetadata",
    "chop.nn.quantizers.utils": "BinaryZeroScaled BinaryBipolar my_clamp my_floor my_round",
    "chop.passes.graph.transforms.quantize.quantized_modules": "LinearInteger Conv2dInteger",
    "chop.passes.graph.transforms.quantize.quantized_modules.linear": "_LinearBase LinearInteger",
    "chop.passes.graph.transforms.quantize.quantized_modules.conv2d": "_Conv2dBase Conv2dInteger",
    "chop.passes.graph.transforms.quantize.quantizers": "integer_quantizer",
    "chop.passes.graph.transforms.quantize.quantizers.integer": "integer_quantizer",
    "chop.passes.graph.transforms.quantize.quantizers.utils": "my_clamp my_round",
    "chop.passes.graph": "get_synthesis_results training_base_pass",
    "chop.passes.graph.analysis.add_metadata": "add_common_metadata_analysis_pass",
    "chop.passes.graph.analysis.add_metadata.add_common_metadata": (
        "add_common_metadata_analysis_pass"
    ),
    "chop.passes.graph.analysis.add_metadata.add_hardware_metadata": (
        "add_hardware_metadata_analysis_pass"
    ),
    "chop.passes.graph.analysis.add_metadata.add_software_metadata": (
        "add_software_metadata_analysis_pass"
    ),
    "chop.passes.graph.analysis.autosharding": "autosharding_analysis_pass",
    "chop.passes.graph.analysis.hardware.run_cosim": "run_cosim_analysis_pass",
    "chop.passes.graph.analysis.init_metadata": "init_metadata_analysis_pass",
    "chop.passes.graph.analysis.pruning": "add_pruning_metadata_analysis_pass",
    "chop.passes.graph.analysis.pruning.calculate_natural_sparsity": (
        "add_natural_sparsity_metadata_analysis_pass"
    ),
    "chop.passes.graph.analysis.pruning.calculate_sparsity": "add_pruning_metadata_analysis_pass",
    "chop.passes.graph.analysis.pruning.hook_inspector": "hook_inspection_analysis_pass",
    "chop.passes.graph.analysis.quantization": "calculate_avg_bits_mg_analysis_pass",
    "chop.passes.graph.analysis.quantization.calculate_avg_bits": (
        "calculate_avg_bits_mg_analysis_pass"
    ),
    "chop.passes.graph.analysis.report": "report_graph_analysis_pass",
    "chop.passes.graph.analysis.report.report_graph": "report_graph_analysis_pass",
    "chop.passes.graph.analysis.report.report_node": (
        "report_node_type_analysis_pass report_node_shape_analysis_pass "
        "report_node_meta_param_analysis_pass report_node_hardware_type_analysis_pass"
    ),
    "chop.passes.graph.analysis.runtime.runtime_analysis": "runtime_analysis_pass",
    "chop.passes.graph.analysis.statistical_profiler": "profile_statistics_analysis_pass",
    "chop.passes.graph.analysis.statistical_profiler.profile_statistics": (
        "profile_statistics_analysis_pass"
    ),
    "chop.passes.graph.analysis.utils": "fetch_attr load_arg",
    "chop.passes.graph.analysis.verify": "verify_metadata_analysis_pass",
    "chop.passes.graph.analysis.verify.verify": (
        "verify_common_metadata_analysis_pass verify_metadata_analysis_pass"
    ),
    "chop.passes.graph.interface.onnxrt": "onnx_runtime_interface_pass",
    "chop.passes.graph.interface.save_and_load": (
        "save_mase_graph_interface_pass load_mase_graph_interface_pass "
        "save_node_meta_param_interface_pass load_node_meta_param_interface_pass"
    ),
    "chop.passes.graph.interface.tensorrt": "tensorrt_engine_interface_pass",
    "chop.passes.graph.transforms.granularity": "raise_granularity_transform_pass",
    "chop.passes.graph.transforms.lora": (
        "insert_lora_adapter_transform_pass fuse_lora_weights_transform_pass"
    ),
    "chop.passes.graph.transforms.patching": "patch_metadata_transform_pass",
    "chop.passes.graph.transforms.pruning": "prune_transform_pass prune_detach_hook_transform_pass",
    "chop.passes.graph.transforms.pruning.prune": "prune_transform_pass",
    "chop.passes.graph.transforms.pruning.prune_detach_hook": "prune_detach_hook_transform_pass",
    "chop.passes.graph.transforms.quantize": (
        "quantize_transform_pass summarize_quantization_analysis_pass QUANTIZEABLE_OP"
    ),
    "chop.passes.graph.transforms.quantize.quantize": "quantize_transform_pass QUANTIZEABLE_OP",
    "chop.passes.graph.transforms.quantize.summary": "summarize_quantization_analysis_pass",
    "chop.passes.graph.transforms.resharding": "resharding_transform_pass",
    "chop.passes.graph.transforms.snn.ann2snn": "ann2snn_transform_pass",
    "chop.passes.graph.transforms.tensorrt": "tensorrt_calibrate_transform_pass",
    "chop.passes.graph.transforms.training": "training_base_pass",
    "chop.passes.graph.transforms.utils": "conv_bn_fusion_transform_pass",
    "chop.passes.graph.transforms.utils.conv_bn_fusion": "conv_bn_fusion_transform_pass",
    "chop.passes.graph.transforms.utils.logicnets_fusion": "logicnets_fusion_transform_pass",
    "chop.passes.graph.transforms.verilog": "emit_verilog_top_transform_pass",
    "chop.passes.graph.transforms.verilog.emit_top": "emit_verilog_top_transform_pass",
    "chop.passes.module.analysis": "calculate_avg_bits_module_analysis_pass",
    "chop.passes.module.analysis.report": "report_trainable_parameters_analysis_pass",
    "chop.passes.module.transforms": "quantize_module_transform_pass resharding_transform_pass",
    "chop.passes.module.transforms.quantize": "quantize_module_transform_pass",
    "chop.passes.module.transforms.quantize.quantize": "quantize_module_transform_pass",
    "chop.nn.quantizers.integer": "integer_quantizer integer_floor_quantizer",
    "chop.nn.quantizers.binary": "binary_quantizer residual_sign_quantizer",
    "chop.nn.quantizers.ternary": "ternary_quantizer",
    "chop.nn.quantizers.log": "log_quantizer",
    "chop.nn.quantizers.minifloat": "minifloat_denorm_quantizer minifloat_ieee_quantizer",
    "chop.nn.quantizers.block_fp": "block_fp_quantizer",
    "chop.nn.quantizers.block_log": "block_log_quantizer",
    "chop.nn.quantizers.block_minifloat": "block_minifloat_quantizer",
    "chop.nn.quantizers.scale_integer": "scale_integer_quantizer",
    "chop.nn.quantizers.mxint": "mxint_quantizer",
    "chop.nn.quantizers.mxfp": "mxfp_quantizer",
    "chop.models.utils": "ModelFactory register_mase_model register_mase_checkpoint",
    "chop.models.toy": "ToyNet ToyConvNet ToyCustomFnNet",
    "chop.models.toy.toy": "ToyNet ToyConvNet",
    "chop.models.toy.toy_custom_fn": "ToyCustomFnNet",
    "chop.models.toys.toy_custom_fn": "ToyCustomFnNet",
    "chop.models.vgg_cifar": "VGG7",
    "chop.models.vgg_cifar.vgg_cifar": "VGG7",
    "chop.tools.huggingface": "get_trainer get_tokenized_dataset get_hf_dummy_in",
}
TABLES = (*NAMES.items(), *DEEP.items())
PAIRS = [(home, name) for home, names in TABLES for name in names.split()]


@subcases("home, name", PAIRS, ids=lambda text: text)
def test_the_name_is_there(home, name):
    scope = {}
    exec(f"from {home} import {name}", scope)  # as users write it
    assert scope[name] == getattr(importlib.import_module(home), name)
    first = next(other for other, known in PAIRS if known == name)
    if inspect.isroutine(scope[name]) or inspect.isclass(scope[name]):
        assert scope[name] is getattr(importlib.import_module(first), name)


# What follows the leading parameters is ours to add.
SIGNATURES = {
    "chop.MaseGraph": "model cf_args custom_ops hf_input_names",
    "chop.MaseGraph.from_module": "model cf_args custom_ops hf_input_names",
    "chop.MaseGraph.from_checkpoint": "checkpoint propagate_missing_metadata",
    "chop.MaseGraph.export": "self fname save_format",
    "chop.MaseGraph.draw": "self file",
    "chop.passes.module.quantize_module_transform_pass": "network pass_args",
    "chop.passes.module.report_trainable_parameters_analysis_pass": "module pass_args",
    "chop.passes.module.calculate_avg_bits_module_analysis_pass": "module pass_args",
    "chop.tools.get_tokenized_dataset": "dataset checkpoint return_tokenizer",
    "chop.tools.get_trainer": "model tokenized_dataset tokenizer evaluate_metric output_dir "
    "use_mps_device report_to num_train_epochs",
    "chop.tools.get_hf_dummy_in": "model",
    "chop.tools.get_logger": "name",
    "chop.tools.utils.deepsetattr": "obj attr value",
    "chop.tools.utils.deepgetattr": "obj attr default",
    "chop.tools.logger.set_logging_verbosity": "level",
    "chop.tools.get_input.InputGenerator": "model_info data_module task which_dataloader "
    "max_batches",
    "chop.tools.get_input.get_dummy_input": "model_info data_module task device",
    "chop.tools.checkpoint_load.load_model": "load_name load_type model",
    "chop.tools.get_input.get_cf_args": "model_info task model",
    "chop.tools.load_config": "config_path",
    "chop.tools.utils.copy_weights": "src_weight tgt_weight",
    "chop.passes.graph.utils.get_node_by_name": "graph request_name",
    "chop.passes.graph.utils.get_module_by_name": "model request_name",
    "chop.passes.graph.utils.get_module_by_target": "model target",
    "chop.passes.graph.utils.get_input_index": "node next_node",
    "chop.models.get_model": "name pretrained task dataset_info checkpoint",
    "chop.models.get_model_info": "name",
    "chop.models.get_tokenizer": "name checkpoint",
    "chop.dataset.get_dataset_info": "name",
    "chop.dataset.MaseDataModule": "name batch_size num_workers max_token_len tokenizer "
    "model_name load_from_cache_file",
    "chop.pipelines.AutoPipeline": "pass_groups",
    "chop.pipelines.CompressionPipeline.__call__": "self mg pass_args skip_passes",
    "chop.nn.quantizers.integer_quantizer": "x width frac_width is_signed",
    "chop.nn.quantizers.scale_integer_quantizer": "x width is_signed quantile",
    "chop.nn.quantizers.minifloat_denorm_quantizer": "x width exponent_width exponent_bias",
    "chop.nn.quantizers.minifloat_ieee_quantizer": "x width exponent_width exponent_bias",
    "chop.nn.quantizers.log_quantizer": "x width exponent_bias",
    "chop.nn.quantizers.block_fp_quantizer": "x width exponent_width exponent_bias block_size "
    "skip_first_dim",
    "chop.nn.quantizers.block_minifloat_quantizer": "x width exponent_width "
    "exponent_bias_width block_size skip_first_dim",
    "chop.nn.quantizers.block_log_quantizer": "x width exponent_bias_width block_size "
    "skip_first_dim",
    "chop.nn.quantizers.binary_quantizer": "x stochastic bipolar",
    "chop.nn.quantizers.residual_sign_quantizer": "levels x_quantizer means x",
    "chop.nn.quantizers.ternary_quantizer": "x threshold maximum median mean scaling_factor",
    "chop.nn.quantizers.mxint_quantizer": "x block_size element_bits block_dim scale_bits "
    "quantile_search",
    "chop.nn.quantizers.mxfp_quantizer": "x block_size element_exp_bits element_frac_bits "
    "block_dim scale_exp_bits quantile_search",
    "chop.nn.quantized.modules.linear.LinearInteger": "in_features out_features bias device "
    "dtype config",
} | {f"chop.passes.{name}": "mg pass_args" for name in passes.PASSES}


@subcases("path, expected", SIGNATURES.items(), ids=lambda text: text)
def test_the_parameters_have_their_names_and_order(path, expected):
    first, *rest = path.split(".")
    found = importlib.import_module(first)
    for name in rest:
        if not hasattr(found, name):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(expected.split())] == expected.split()


@pytest.fixture
def mg():
    return MaseGraph(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))


QUANTIZE = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}


def test_passes_take_their_settings_by_position_and_by_keyword(mg):
    for call in (
        lambda run, settings: run(mg, settings),
        lambda run, settings: run(mg, pass_args=settings),
        lambda run, settings: run(mg=mg, pass_args=settings),
        lambda run, settings: run(graph=mg, pass_args=settings),
    ):
        _, info = call(passes.init_metadata_analysis_pass, None)
        assert info == {}
        call(passes.add_common_metadata_analysis_pass, {"dummy_in": None, "add_value": False})
        small, info = call(passes.graph.quantize_transform_pass, QUANTIZE)
        assert info == {"quantized": 2} and small is not mg
    assert QUANTIZE["by"] == "type" and len(QUANTIZE["linear"]["config"]) == 3


def test_model_and_graph_can_be_assigned(mg):
    x = torch.randn(3, 4)
    before = mg.model(x)
    mg.model = mg.model.cpu()
    mg.fx_graph = mg.fx_graph
    assert torch.equal(mg.model(x), before)
    assert len(mg.nodes) == 5 and "0" in mg.modules


@subcases("name", NOT_BUILT)
def test_what_is_missing_says_so_in_one_sentence(name):
    home = next(home for home, known in PAIRS if known == name)
    found = getattr(importlib.import_module(home), name)
    with pytest.raises(NotImplementedError, match=f"^{name}: .+; [^.]+") as caught:
        found(None, pass_args={})
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_an_unknown_pass_is_named_with_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'quantize_transform_pass'"):
        passes.graph.quantze_transform_pass  # noqa: B018
    assert "prune_transform_pass" in dir(passes.graph)
    with pytest.raises(ImportError):
        exec("from chop.passes.graph.transforms import no_such_thing")


def test_deep_paths_are_other_names_of_one_module():
    import chop.passes.graph.transforms.quantize.quantize as deep

    assert deep.quantize_transform_pass is passes.quantize_transform_pass
    assert "prune_transform_pass" in dir(deep) and deep.QUANTIZEABLE_OP[0] == "linear"
    scope = {}
    exec("from chop.nn.quantizers.integer import *", scope)
    assert "integer_quantizer" in scope and "torch" not in scope
    with pytest.raises(AttributeError, match="did you mean 'prune_transform_pass'"):
        deep.prun_transform_pass  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("chop.passes.graph.transforms.quantize.no_such_file")
    with pytest.raises(AttributeError, match="has no attribute '__file__'"):
        deep.__file__  # noqa: B018


def test_importing_a_deep_path_first():
    name = "report_node_type_analysis_pass"
    path = "chop.passes.graph.analysis.report.report_node"
    assert printed_by(f"from {path} import {name}; print({name}.__name__)") == f"{name}\n"


SOURCE = Path(chop.__file__).parent
STUBS = [SOURCE / "nn/modules/__init__.py", *SOURCE.glob("nn/quantized/modules/*.py")]


def test_paths_of_mase_have_no_file():
    folders = [SOURCE.parent.joinpath(*path.split(".")) for path in MODULES]
    files = [file for at in folders for file in (at.with_suffix(".py"), at / "__init__.py")]
    assert len(files) > 100 and not [file for file in files if file.exists()]


@pytest.mark.parametrize("file", STUBS, ids=lambda file: file.parent.name)
def test_what_has_a_file_is_a_stub(file):
    statements = ast.parse(file.read_text()).body[1:]  # after the docstring
    lines = sum(node.end_lineno - node.lineno + 1 for node in statements)
    assert lines <= 5 and all(isinstance(node, ast.ImportFrom | ast.Assign) for node in statements)


@subcases("path", HOMES)
def test_every_name_of_the_table_is_defined(path):
    module = importlib.import_module(path)
    names = module.__all__
    assert names and len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names) and set(names) <= set(dir(module))
