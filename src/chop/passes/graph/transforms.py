"""The passes by MASE's path `chop.passes.graph.transforms`, and by the files that it has there."""

from chop.aliases import alias_modules
from chop.passes.graph import __dir__ as __dir__
from chop.passes.graph import __getattr__ as __getattr__

alias_modules(
    __name__,
    """
    granularity lora onnxrt patching.patch_metadata pruning.prune pruning.prune_detach_hook
    quantize.quant_parsers quantize.quantize quantize.summary resharding snn.ann2snn
    tensorrt.quantize.calibrate tensorrt.quantize.fine_tune training.training_base
    utils.conv_bn_fusion utils.logicnets_fusion utils.onnx_annotator verilog.emit_bram
    verilog.emit_internal verilog.emit_tb verilog.emit_top verilog.emit_vivado_project
    """,
)
