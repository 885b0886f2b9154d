"""Private names of torch and transformers that the tracer needs: the first test of a new version.

Each group of names is used in one file: `symbolic_shapes`, `torch_api` and `patches`.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

import chop.capture
from chop.private import symbolic_shapes, torch_api
from tests.subcases import subcases

NAMES = {
    "ShapeEnv": (
        *("evaluate_expr", "simplify", "create_unbacked_symint", "create_symfloatnode"),
        *("_set_replacement", "_get_stack_summary", "_log_guard"),
    ),
    "SymNode": (
        *("expr", "has_hint", "guard_float", "wrap_float", "_add", "_sub", "_mul", "_mod"),
    ),
    "size_functions": ("FloorDiv", "ModularIndexing", "OpaqueUnaryFn_sqrt", "ToFloat"),
    "DimDynamic": ("DYNAMIC", "STATIC"),
    "PythonPrinter": ("doprint", "_print_ToFloat", "_helper_sqrt"),
}
TRANSFORMERS = {
    "masking_utils": (
        *("_vmap_expansion_sdpa", "_non_vmap_expansion_sdpa", "TransformGetItemToIndex"),
    ),
    "utils.generic": ("maybe_autocast",),
}
FENCED_MODULES = ("torch._", "torch.fx.experimental", "torch.utils._")
FENCED_NAMES = ("torch._C.", "torch._ops.", "torch.amp.autocast_mode.")
FENCES = {"symbolic_shapes.py": symbolic_shapes, "torch_api.py": torch_api}
SOURCES = sorted(Path(chop.capture.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("fence", FENCES)
def test_a_fence_is_known_for_this_version_of_torch(fence):
    version = ".".join(torch.__version__.split(".")[:2])
    assert f"Known for torch {version}" in FENCES[fence].__doc__


@pytest.mark.parametrize("home", NAMES)
def test_torch_has_the_names_of_symbolic_shapes(home):
    missing = [name for name in NAMES[home] if not hasattr(getattr(symbolic_shapes, home), name)]
    assert not missing, f"{home} of torch {torch.__version__} has no {missing}"


def test_instances_have_the_fields_that_are_read():
    env = symbolic_shapes.ShapeEnv()
    mode = symbolic_shapes.FakeTensorMode(shape_env=env)
    fake = mode.from_tensor(torch.ones(2))
    assert fake.fake_mode is mode and fake.constant is None
    assert mode.cache_enabled is True
    assert {"replacements", "deferred_runtime_asserts", "backed_var_to_val"} <= set(dir(env))
    size = env.create_unbacked_symint()
    assert size.node._expr.is_Symbol and size.node.shape_env is env and size.node.pytype is int


def test_a_module_keeps_its_members_and_hooks_in_these_fields():
    fields = {"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"}
    assert fields | {"_backward_hooks", "_backward_pre_hooks"} <= vars(nn.Module()).keys()
    assert "_non_persistent_buffers_set" in vars(nn.Module())


@pytest.mark.parametrize("home", TRANSFORMERS)
def test_transformers_has_the_names_that_are_patched(home):
    module = importlib.import_module(f"transformers.{home}")
    assert [name for name in TRANSFORMERS[home] if not hasattr(module, name)] == []


@subcases("source", SOURCES, ids=lambda path: path.name)
def test_private_names_are_used_by_the_fences_alone(source):
    nodes = list(ast.walk(ast.parse(source.read_text())))
    imports = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imports += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    attributes = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
    private = [name for name in imports if name.startswith(FENCED_MODULES)]
    private += [name for name in attributes if name.startswith(FENCED_NAMES)]
    assert (source.name in FENCES) == bool(private), private
