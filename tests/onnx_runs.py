"""Exported files as onnxruntime runs them, for every test that exports."""

import functools

import onnxruntime
import pytest
import torch

from chop import MaseGraph, passes
from chop.passes.interface.export_onnx import SESSION_CONFIG
from tests.passes.conftest import with_metadata


@pytest.fixture(scope="session", autouse=True)
def translations_once():
    """The exporter reads the sources of 500 translations at each export, most of its time."""
    from torch._export import utils
    from torch.onnx._internal._lazy_import import onnxscript_apis
    from torch.onnx._internal.exporter import _schemas

    slow = [
        (onnxscript_apis, "get_torchlib_ops"),
        (_schemas, "op_signature_from_function"),
        (utils, "_collect_all_valid_cia_ops_for_namespace"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in slow:
            patch.setattr(module, name, functools.cache(getattr(module, name)))
        yield


def session(path, optimized=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    for name, value in SESSION_CONFIG.items():
        options.add_session_config_entry(name, value)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def run(path, **inputs):
    loaded = session(path)
    known = {each.name for each in loaded.get_inputs()}
    given = {name: x.numpy() for name, x in inputs.items() if name in known}
    return torch.from_numpy(loaded.run(None, given)[0])


def raised(model, **inputs):
    return with_metadata(MaseGraph(model.eval(), dummy_in=inputs or None))


def quantized(mg, rules, by="type"):
    given = {key: {"config": spec} for key, spec in rules.items()}
    return passes.quantize_transform_pass(mg, {"by": by, **given})[0]
