"""Small networks of tests."""

from torch import nn


class Made(nn.Module):
    """Named parts, and a function of them and of an input."""

    def __init__(self, compute, **parts):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.compute(self, x)


class Square(nn.Module):
    """A parametrization whose values are squares."""

    def forward(self, x):
        return x * x


class Tied(nn.Module):
    """A table that is the weight of the last layer too."""

    def __init__(self, rows, width):
        super().__init__()
        self.table, self.head = nn.Embedding(rows, width), nn.Linear(width, rows, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


def twice():
    """A layer that is called twice."""
    return Made(lambda m, x: m.fc(m.fc(x).relu()), fc=nn.Linear(4, 4))
