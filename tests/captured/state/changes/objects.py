"""Changes to functions, modules, objects and classes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.captured.state.changes.model import (
    Base,
    Case,
    Frozen,
    Level,
    Meta,
    Mode,
    Options,
    Root,
    Shared,
    WithMeta,
    setter,
)


def in_loop(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x)
    return x


CASES: dict[str, Case] = {
    # functions and modules
    "another function": Case(lambda self, x: self.act(x), setter("act", torch.sigmoid)),
    "a module for a function": Case(lambda self, x: self.act(x), setter("act", nn.Sigmoid())),
    "another module": Case(lambda self, x: self.module_act(x), setter("module_act", nn.Sigmoid())),
    "another partial": Case(
        lambda self, x: self.part(-x),
        setter("part", functools.partial(F.leaky_relu, negative_slope=0.1)),
    ),
    "keywords of a partial": Case(
        lambda self, x: self.part(-x), lambda m: m.part.keywords.update(negative_slope=0.1)
    ),
    "weight of a layer that is read": Case(
        lambda self, x: F.linear(x, self.linear.weight),
        lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 4))),
    ),
    "weight of a module in a plain list": Case(
        lambda self, x: F.linear(x, self.hidden[0].weight),
        lambda m: setattr(m.hidden[0], "weight", nn.Parameter(torch.ones(4, 4))),
    ),
    "module in a list": Case(in_loop, lambda m: m.layers.__setitem__(0, nn.Sigmoid())),
    "one module more": Case(in_loop, lambda m: m.layers.append(nn.Sigmoid())),
    "module by name": Case(
        lambda self, x: self.by_name["a"](x), lambda m: m.by_name.update({"a": nn.Sigmoid()})
    ),
    "setting of a layer": Case(
        lambda self, x: F.softshrink(x, self.drop.p), lambda m: setattr(m.drop, "p", 0.5)
    ),
    "setting of a called layer": Case(
        lambda self, x: self.drop(x), setter("drop", nn.Dropout(0.5))
    ),
    # objects
    "enum's value": Case(lambda self, x: x * self.mode.value, setter("mode", Mode.TRIPLE)),
    "a number for an enum": Case(
        lambda self, x: x if isinstance(self.level, Level) else x * 3, setter("level", 2)
    ),
    "enum's list": Case(
        lambda self, x: x * self.short.value[0], lambda m: m.short.value.__setitem__(0, 5.0)
    ),
    "weak reference": Case(
        lambda self, x: x * self.reference().scale, lambda m: setattr(m.options, "scale", 5.0)
    ),
    "weak dictionary": Case(
        lambda self, x: x * self.weakly[self.computed],
        lambda m: m.weakly.update({m.computed: 5.0}),
    ),
    "dataclass": Case(
        lambda self, x: x * self.options.scale, lambda m: setattr(m.options, "scale", 5.0)
    ),
    "list of a dataclass": Case(
        lambda self, x: x * self.options.rows[0], lambda m: m.options.rows.insert(0, 5.0)
    ),
    "object in an object": Case(
        lambda self, x: x * 2 if self.options.inner is None else x,
        lambda m: setattr(m.options, "inner", Options()),
    ),
    "frozen dataclass": Case(lambda self, x: x * self.frozen.scale, setter("frozen", Frozen(5.0))),
    "slots": Case(lambda self, x: x * self.slots.scale, lambda m: setattr(m.slots, "scale", 5.0)),
    "slot that is empty": Case(
        lambda self, x: x * getattr(self.slots, "scale", 1.0), lambda m: delattr(m.slots, "scale")
    ),
    "__getattr__": Case(
        lambda self, x: x * self.forwarding.scale,
        lambda m: m.forwarding._values.update(scale=5.0),
    ),
    "__getattr__, later": Case(
        lambda self, x: x * getattr(self.forwarding, "later", 1.0),
        lambda m: m.forwarding._values.update(later=5.0),
    ),
    "keys as attributes": Case(
        lambda self, x: x * self.attributes.inner.scale,
        lambda m: m.attributes.inner.update(scale=5.0),
    ),
    "property of an object": Case(
        lambda self, x: x * self.computed.scale, lambda m: setattr(m.computed, "_scale", 5.0)
    ),
    "object that is called": Case(
        lambda self, x: self.called(x), lambda m: setattr(m.called, "scale", 5.0)
    ),
    "operator of an object": Case(
        lambda self, x: self.amount.__rmul__(x), lambda m: setattr(m.amount, "scale", 5.0)
    ),
    "descriptor": Case(
        lambda self, x: x * self.described, lambda m: setattr(vars(Base)["described"], "scale", 5.0)
    ),
    "partial method": Case(
        lambda self, x: self.thrice(x), lambda m: setattr(Base, "thrice", lambda self, x: x * 5)
    ),
    # classes
    "class of a class": Case(
        lambda self, x: x * WithMeta.margin, lambda m: setattr(Meta, "margin", 5.0)
    ),
    "later, of a base class": Case(
        lambda self, x: x * getattr(self, "later", 1.0), lambda m: setattr(Root, "later", 5.0)
    ),
    "class of the model": Case(
        lambda self, x: x * self.factor, lambda m: setattr(type(m), "factor", 5.0)
    ),
    "method of a base class": Case(
        lambda self, x: self.twice(x), lambda m: setattr(Base, "twice", lambda self, x: x * 3)
    ),
    "static method by another": Case(
        lambda self, x: Shared.apply(x),
        lambda m: setattr(Shared, "apply", staticmethod(lambda x: x * 5)),
    ),
    "forward of the class": Case(
        lambda self, x: self.twice(x), lambda m: setattr(type(m), "forward", lambda self, x: x * 3)
    ),
    "forward of the model": Case(lambda self, x: self.twice(x), setter("forward", lambda x: x * 3)),
    "class method": Case(
        lambda self, x: x * Shared.factor(), lambda m: setattr(Shared, "scale", 5.0)
    ),
    "table of a class": Case(
        lambda self, x: x * Shared.table["a"], lambda m: Shared.table.update(a=5.0)
    ),
}
