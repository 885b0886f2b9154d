"""How a quantised graph is written as ONNX: codes, scales and the operators that join them."""

from chop.passes.onnx.grids import Grid, grid_of
from chop.passes.onnx.twin import exported_twin
from chop.passes.onnx.write import write
