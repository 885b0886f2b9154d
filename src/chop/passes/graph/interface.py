"""The passes by MASE's path `chop.passes.graph.interface`, and by the files that it has there."""

from chop.aliases import alias_modules
from chop.passes.graph import __dir__ as __dir__
from chop.passes.graph import __getattr__ as __getattr__

alias_modules(__name__, "onnxrt.onnx_runtime save_and_load tensorrt.quantize")
