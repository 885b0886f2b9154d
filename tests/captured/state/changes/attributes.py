"""Changes to attributes: numbers, containers, arrays and tensors."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.captured.state.changes.model import (
    FOLLOWED,
    REFUSED,
    Base,
    Case,
    Fields,
    set_global,
    setter,
)


def with_default(self: Any, x: Tensor) -> Tensor:
    return x * getattr(self, "later", 1.0)


def with_hasattr(self: Any, x: Tensor) -> Tensor:
    return x * 3 if hasattr(self, "later") else x


def with_except(self: Any, x: Tensor) -> Tensor:
    try:
        return x * self.later
    except AttributeError:
        return x


def with_dict(self: Any, x: Tensor) -> Tensor:
    return x * self.__dict__["number"]


def with_getter(self: Any, x: Tensor) -> Tensor:
    return x * operator.attrgetter("number")(self)


def by_grad(self: Any, x: Tensor) -> Tensor:
    return x * 2 if self.linear.weight.requires_grad else x * 3


def by_super(self: Any, x: Tensor) -> Tensor:
    return Base.twice(self, x) * self.number


def freeze(model: Any) -> None:
    model.linear.weight.requires_grad_(False)


def by_order(self: Any, x: Tensor) -> Tensor:
    for name in self.order:
        x = getattr(torch, name)(x)
    return x


CASES: dict[str, Case] = {
    # attributes
    "number": Case(lambda self, x: x * self.number, setter("number", 5.0)),
    "number of another type": Case(
        lambda self, x: x * 2 if isinstance(self.number, float) else x, setter("number", 2)
    ),
    "minus zero": Case(
        lambda self, x: x * 2 if str(self.calls)[0] != "-" else x, setter("calls", -0.0)
    ),
    "flag by a number": Case(lambda self, x: x if self.flag is True else x * 2, setter("flag", 1)),
    "dtype": Case(lambda self, x: x.to(self.dtype), setter("dtype", torch.float64)),
    "deleted": Case(
        lambda self, x: x * getattr(self, "number", 1.0), lambda m: delattr(m, "number")
    ),
    "attribute to None": Case(
        lambda self, x: x if self.options is None else x * 2, setter("options", None)
    ),
    "by a property": Case(lambda self, x: x * self.get_scale, setter("number", 5.0)),
    "by a method": Case(lambda self, x: self.twice(x), setter("twice", lambda x: x * 3)),
    "a method that is an attribute": Case(
        lambda self, x: self.method(x), setter("method", lambda x: x * 3)
    ),
    "by a lambda": Case(lambda self, x: self.local_lambda(x), setter("number", 5.0)),
    "by super": Case(by_super, setter("number", 5.0)),
    "by __dict__": Case(with_dict, setter("number", 5.0)),
    "by attrgetter": Case(with_getter, setter("number", 5.0)),
    # attributes that appear
    "later, with a default": Case(with_default, setter("later", 3.0)),
    "later, with hasattr": Case(with_hasattr, setter("later", 3.0)),
    "later, with except": Case(with_except, setter("later", 3.0)),
    "later, of the class": Case(with_default, lambda m: setattr(type(m), "later", 3.0)),
    "later, a buffer": Case(with_default, lambda m: m.register_buffer("later", torch.tensor(3.0))),
    "later, a child": Case(with_hasattr, setter("later", nn.Tanh())),
    "later, of an object": Case(
        lambda self, x: x * getattr(self.options, "later", 1.0),
        lambda m: setattr(m.options, "later", 3.0),
    ),
    "over a value of the class": Case(lambda self, x: x * self.factor, setter("factor", 5.0)),
    # containers
    "item of a list": Case(lambda self, x: x * self.rows[0], lambda m: m.rows.__setitem__(0, 5.0)),
    "longer list": Case(lambda self, x: x * len(self.rows), lambda m: m.rows.append(1.0)),
    "deep in a table": Case(
        lambda self, x: x * self.table["a"]["b"][0], lambda m: m.table["a"]["b"].insert(0, 5.0)
    ),
    "key of a table": Case(
        lambda self, x: x * 3 if "c" in self.table else x, lambda m: m.table.update(c=1)
    ),
    "list in a tuple": Case(
        lambda self, x: x * self.pair[1][0], lambda m: m.pair[1].__setitem__(0, 5.0)
    ),
    "set": Case(lambda self, x: x * 2 if "c" in self.words else x, lambda m: m.words.add("c")),
    "deque": Case(lambda self, x: x * self.queue[0], lambda m: m.queue.appendleft(5.0)),
    "named tuple": Case(lambda self, x: x * self.fields.scale, setter("fields", Fields(5.0))),
    "order of names": Case(by_order, lambda m: m.order.reverse()),
    "mapping behind a proxy": Case(
        lambda self, x: x * self.proxy["scale"], lambda m: m.proxied.update(scale=5.0)
    ),
    "chain of mappings": Case(
        lambda self, x: x * self.chain_map["scale"], lambda m: m.chain_map.update(scale=5.0)
    ),
    "dictionary of a user": Case(
        lambda self, x: x * self.user_dict["scale"], lambda m: m.user_dict.update(scale=5.0)
    ),
    "view of memory": Case(lambda self, x: x * self.view[0], lambda m: m.view.__setitem__(0, 5)),
    "array of Python": Case(
        lambda self, x: x * self.numbers[0], lambda m: m.numbers.__setitem__(0, 5.0)
    ),
    "key with a default": Case(
        lambda self, x: x * self.counter.get("b", 1), lambda m: m.counter.update("bb")
    ),
    "function by name": Case(
        lambda self, x: self.by_kind["a"](x), lambda m: m.by_kind.update(a=torch.sigmoid)
    ),
    "global of a lambda in a list": Case(lambda self, x: self.ops[0](x), set_global("NUMBER", 5.0)),
    "object in a tuple": Case(
        lambda self, x: x * self.shared_pair[0].scale, lambda m: setattr(m.options, "scale", 5.0)
    ),
    "fraction": Case(lambda self, x: x * float(self.exact), setter("exact", Fraction(5))),
    # numpy
    "element of an array": Case(
        lambda self, x: x * float(self.array[0]), lambda m: m.array.__setitem__(0, 5.0)
    ),
    "number of numpy": Case(
        lambda self, x: x * float(self.np_number), setter("np_number", np.float32(5.0))
    ),
    # tensors
    "another tensor": Case(lambda self, x: x * self.tensor, setter("tensor", torch.ones(4))),
    "tensor in place": Case(lambda self, x: x * self.tensor, lambda m: m.tensor.fill_(5), FOLLOWED),
    "tensor in a list": Case(
        lambda self, x: x * self.tensors[0], lambda m: m.tensors.__setitem__(0, torch.ones(4))
    ),
    "another buffer": Case(lambda self, x: x * self.mask, setter("mask", torch.ones(4))),
    "parameter in place": Case(
        lambda self, x: x * self.weight, lambda m: m.weight.data.fill_(5), FOLLOWED
    ),
    "another parameter": Case(
        lambda self, x: x * self.weight, setter("weight", nn.Parameter(torch.ones(4)))
    ),
    "parameter of a layer": Case(
        lambda self, x: x,
        lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 4))),
        FOLLOWED,
    ),
    "value of a buffer": Case(
        lambda self, x: x * 2 if self.mask.sum() > 1 else x, lambda m: m.mask.fill_(0), REFUSED
    ),
    "value of a tensor": Case(
        lambda self, x: x * 2 if self.tensor.sum() > 1 else x, lambda m: m.tensor.fill_(0), REFUSED
    ),
    "requires_grad": Case(by_grad, freeze),
    "parameter in a list": Case(
        lambda self, x: x * self.weights[0],
        lambda m: m.weights.__setitem__(0, nn.Parameter(torch.ones(4))),
        FOLLOWED,
    ),
}
