"""Names of other libraries that the fences need: the first test of a new version of one.

Everything is read from the sources of the fences, so that a new fence needs no line here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import operator
import re
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import torch
import transformers
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

import chop.private
from chop.private import modules, symbolic_shapes, transformers_api
from tests.private.scan import dotted, is_private, private_names_of
from tests.subcases import subcases

FOLDER = Path(chop.private.__file__).parent
FENCES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
VERSION = re.compile(r"Tested with (\w+)\s+([\d.]*\d)")
SHAPE_NAMES = {
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


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x


@cache
def known_names() -> set[str]:
    """Attributes of the classes of libraries whose instances the fences read."""
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=1, intermediate_size=8, vocab_size=9
    )
    experts = transformers.MixtralConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=1, intermediate_size=8, vocab_size=9
    )
    linear = prune.identity(nn.Linear(1, 1), "weight")
    (pruned,) = modules.forward_pre_hooks(linear).values()
    ignoring = nn.Module()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignoring, [])
    holders: list[Any] = [
        *(nn.Module(), nn.LSTM(1, 1), nn.MultiheadAttention(1, 1), nn.Conv2d(1, 1, 1)),
        *(nn.ConvTranspose2d(1, 1, 1), nn.BatchNorm1d(1), torch.distributed.tensor),
        *(fx.Graph(), fx.Node, fx.graph.CodeGen, torch.Tensor, torch.UntypedStorage),
        *(torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.autocast("cpu")),
        *(torch.compile(nn.Identity()), pruned, nn.modules.module),
        torch.jit.script(scripted),
        *(torch.distributed.distributed_c10d, DTensor, DTensor._op_dispatcher, DeviceMesh),
        *(config, transformers.BertModel(config), transformers.AttentionInterface),
        *transformers.MixtralModel(experts).modules(),
        *(importlib.import_module(transformers_api.MASKING), optuna.Study),
        *(torch.compiler.assume_constant_result(lambda: None), DistributedDataParallel, ignoring),
        *(FSDPState, FSDPState()),
        symbolic_shapes.ShapeEnv().create_unbacked_symint().node,
    ]
    return {name for holder in holders for name in dir(holder)} | {"_thread_id"}


@subcases("name", FENCES)
def test_a_fence_is_known_for_the_installed_version(name):
    text = importlib.import_module(f"chop.private.{name}").__doc__
    stated = VERSION.search(text)
    assert stated is not None, "the docstring has no `Tested with LIBRARY VERSION`"
    library, version = stated.groups()
    installed = importlib.metadata.version(library)
    assert f"{installed}.".startswith(f"{version}."), f"{library} {installed}"
    said = re.search(r"`(tests/private/test_\w+\.py)`\s+fails\s+first", text)
    assert said and (Path(__file__).parents[2] / said[1]).exists()


@subcases("name", FENCES)
def test_the_names_that_a_fence_needs_are_there(name):
    fence = importlib.import_module(f"chop.private.{name}")
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    own, homes = set(vars(fence)), dict(vars(fence))
    for node in ast.walk(tree):
        own |= {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("chop"):
            home = importlib.import_module(str(node.module))
            for each in node.names:  # those inside functions and for type checkers too
                homes[each.asname or each.name] = found(home, each.name)
    for chain in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        root, _, rest = dotted(chain).partition(".")
        if root in homes and getattr(homes[root], "__name__", "").startswith("torch"):
            operator.attrgetter(rest)(homes[root])
            own.update(rest.split("."))
    missing = private_names_of(tree) - own - known_names() - get_fields(tree)
    assert not {x for x in missing if not resolves(x, homes)}


def found(home: Any, name: str) -> Any:
    """What `from home import name` gives."""
    if not hasattr(home, name):
        return importlib.import_module(f"{home.__name__}.{name}")
    return getattr(home, name)


def resolves(name: str, homes: dict[str, Any]) -> bool:
    return any(hasattr(home, name) for home in homes.values())


def get_fields(tree: ast.AST) -> set[str]:
    """Attributes that classes of a fence give themselves."""
    stores = [x for x in ast.walk(tree) if isinstance(x, ast.Attribute | ast.AnnAssign)]
    attributes = [x for x in stores if isinstance(x, ast.Attribute)]
    declared = [x.target for x in stores if isinstance(x, ast.AnnAssign)]
    own = [x.attr for x in attributes if dotted(x.value) == "self"]
    return {*own, *(x.id for x in declared if isinstance(x, ast.Name))}


@subcases("home", SHAPE_NAMES)
def test_torch_has_the_names_of_symbolic_shapes(home):
    missing = [
        name for name in SHAPE_NAMES[home] if not hasattr(getattr(symbolic_shapes, home), name)
    ]
    assert not missing, f"{home} of torch {torch.__version__} has no {missing}"


def test_instances_have_the_fields_that_are_read():
    env = symbolic_shapes.ShapeEnv()
    mode = symbolic_shapes.FakeTensorMode(shape_env=env)
    fake = mode.from_tensor(torch.ones(2))
    assert fake.fake_mode is mode and fake.constant is None
    assert mode.cache_enabled is True
    assert {"replacements", "deferred_runtime_asserts", "backed_var_to_val"} <= set(dir(env))
    size = env.create_unbacked_symint()
    assert symbolic_shapes.get_expression(size).is_Symbol
    assert size.node.shape_env is env and size.node.pytype is int


def test_a_module_keeps_its_members_and_hooks_in_these_fields():
    fields = {*modules.MEMBERS, modules.NOT_PERSISTENT, *modules.HOOKS}
    assert fields | {*modules.STATE_DICT_HOOKS} <= vars(nn.Module()).keys()
    assert set(modules.HOOKS_BY_KIND.values()) == set(modules.HOOKS)
    assert hasattr(nn.Module, modules.COMPILED)


def test_transformers_has_the_names_that_are_patched():
    for home, names in (
        (transformers_api.MASKING, transformers_api.MASKING_NAMES),
        (transformers_api.GENERIC, (transformers_api.MAYBE_AUTOCAST,)),
        (transformers_api.MODELING, ("AttentionInterface", "PreTrainedModel")),
    ):
        module = importlib.import_module(home)
        assert [name for name in names if not hasattr(module, name)] == []
    config = transformers.BertConfig()
    assert transformers_api.EXPERTS in vars(config)
    assert is_private(transformers_api.EXPERTS)


def test_experts_say_how_they_lie():
    sizes = {"hidden_size": 8, "intermediate_size": 4, "num_local_experts": 2}
    found = {}
    for name in ("mixtral.MixtralExperts", "gpt_oss.GptOssExperts"):
        model, _, cls = name.partition(".")
        home = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        config = getattr(transformers, f"{cls.removesuffix('Experts')}Config")(**sizes)
        found[cls] = transformers_api.expert_traits(getattr(home, cls)(config))
    traits = transformers_api.ExpertTraits
    assert found == {
        "MixtralExperts": traits(True, False, False),
        "GptOssExperts": traits(True, True, True),
    }
    assert transformers_api.expert_traits(nn.Linear(1, 1)) is None


def test_transformers_splits_experts_for_files():
    config = transformers.MixtralConfig(
        head_dim=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_local_experts=2
    )
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    rows = torch.arange(16).view(2, 8, 1)
    parts = transformers_api.tensors_in_files(model, {"model.layers.0.mlp.experts.down_proj": rows})
    stem = "model.layers.0.block_sparse_moe.experts"
    assert [*parts] == [f"{stem}.{n}.w2.weight" for n in range(2)]
    assert torch.equal(parts[f"{stem}.1.w2.weight"], rows[1])
