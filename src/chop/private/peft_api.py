"""Fence around the classes of peft that are patched.

Known for peft 0.21; `tests/private/test_fences.py` fails first where a name is gone.
"""

from typing import Any


def saved_layer_class() -> Any:
    """The class that trains copies of layers: `update` makes one.

    Its `unload_and_optionally_merge_module` gives the one that is active.
    """
    from peft.utils.other import ModulesToSaveWrapper

    return ModulesToSaveWrapper


def convolution_class() -> Any:
    """The class whose `update_layer` makes the adapter of a convolution, by the layer's class."""
    from peft.tuners.lora.layer import _ConvNd

    return _ConvNd
