"""Attributes by dotted path, by MASE's import path."""

from chop.dotted import deepgetattr as deepgetattr
from chop.dotted import deepsetattr as deepsetattr
