"""OpenVINO models of decoders that keep their key-value cache as state, as openvino-genai expects.

Each call appends keys and values of its tokens to the states, which no input or output shows. The
additional input `beam_idx` lists the rows of the past that continue, for beam search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chop.export.graphs.cache import IDS, PAST, present_name

BEAMS = "beam_idx"
BATCH_AXIS, LENGTH_AXIS = 0, 2
"""Axes of keys and values."""


def keep_cache_as_state(model: Any) -> None:
    """Replaces inputs and outputs of a decoder's cache by states that begin with length 0.

    A state has the name of its input, such as `past_key_values.0.key`.

    Args:
        model: `openvino.Model`; it is changed if it has such inputs.
    """
    from openvino import Type, opset13
    from openvino.op.util import Variable, VariableInfo

    ports = {port.any_name: port for port in model.inputs}
    pasts = {name: port.node for name, port in ports.items() if name.startswith(f"{PAST}.")}
    if not pasts:
        return
    beams = opset13.parameter([-1], Type.i32, BEAMS)
    beams.output(0).set_names({BEAMS})
    axis = opset13.constant(BATCH_AXIS, Type.i64)
    rows = opset13.gather(opset13.shape_of(ports[IDS], Type.i64), axis, axis)
    for name, past in pasts.items():
        info = VariableInfo()
        info.variable_id, info.data_type = name, past.element_type
        info.data_shape = past.partial_shape
        state = Variable(info)
        sizes = [opset13.constant(x.get_min_length(), Type.i64) for x in past.partial_shape]
        sizes[BATCH_AXIS], sizes[LENGTH_AXIS] = rows, opset13.constant(0, Type.i64)
        shape = opset13.concat([opset13.unsqueeze(x, axis) for x in sizes], 0)
        empty = opset13.broadcast(opset13.constant(0.0, past.element_type), shape)
        taken = opset13.gather(opset13.read_value(empty, state), beams, axis)
        for reader in past.output(0).get_target_inputs():
            reader.replace_source_output(taken.output(0))
        result = model.output(present_name(name)).node
        model.add_variables([state])
        model.add_sinks([opset13.assign(result.input_value(0).get_node(), state)])
        model.remove_result(result)
        model.remove_parameter(past)
    model.add_parameters([beams])
    model.validate_nodes_and_infer_types()


def with_beams(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds the input that continues every row with its own past."""
    return {**inputs, BEAMS: torch.arange(len(inputs[IDS]), dtype=torch.int32)}
