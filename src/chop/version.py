"""The version of `chop`."""

__version__ = "0.1.0"
