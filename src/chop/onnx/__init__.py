"""How a quantised graph is written as ONNX: codes, scales and the operators that join them."""

from chop.onnx.grids import Grid, grid_of
from chop.onnx.twin import exported_twin
from chop.onnx.write import write
