"""Private API of other libraries is used in `chop.private` alone."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

from torch import nn

import chop
from tests.private.scan import defined_names, private_api, protected
from tests.sources import parse_file
from tests.subcases import subcases

ROOT = Path(chop.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    files = sorted(ROOT.rglob("*.py"))
    names = (".".join(("chop", *x.relative_to(ROOT).with_suffix("").parts)) for x in files)
    return {name: parse_file(x) for name, x in zip(names, files, strict=True)}


@cache
def defined() -> set[str]:
    return defined_names(trees().values())


def test_private_api_is_used_by_the_fences_alone():
    used = [
        f"{name}:{line}: {what}"
        for name, tree in trees().items()
        if not name.startswith("chop.private.")
        for line, what in private_api(tree, defined())
    ]
    assert used == [], "move what needs private API to src/chop/private, or take public API"


def test_what_subclasses_read_of_their_bases_is_there():
    fields, missing = set(vars(nn.Module())), []
    for name, tree in trees().items():
        for scope, attribute in sorted(set(protected(tree, defined()))):
            owner = getattr(importlib.import_module(name.removesuffix(".__init__")), scope, None)
            if attribute not in fields and not hasattr(owner, attribute):
                missing.append(f"{name}.{scope}.{attribute}")
    assert missing == []


@subcases(
    "code, found",
    [
        ("import torch._dynamo", ["torch._dynamo"]),
        ("from torch._C import _nn as n", ["torch._C._nn"]),
        ("import torch.fx.experimental.proxy", ["torch.fx.experimental.proxy"]),
        ("import torch as t\nt._C", ["t._C"]),
        ("x._version", ["x._version"]),
        ("x._foreign", ["x._foreign"]),
        ("getattr(x, '_foreign')", ["_foreign"]),
        ("vars(x)['_buffers']", ["_buffers"]),
        ("f(_modules={})", ["_modules"]),
        ("x._ours, self._buffers, super()._apply(f), row._replace(a=1), f'{x}_apply'", []),
        ("import torch\ntorch.nn.Module, torch.ops.aten.add.Tensor", []),
        ("import os, sys\nsys._getframe(1), os._exit(0)", []),
        ("from chop.rooms import _ours", []),
    ],
)
def test_private_api_is_found(code, found):
    assert [what for _, what in private_api(ast.parse(code), {"_ours", "_apply"})] == found
