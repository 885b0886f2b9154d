"""Patched classes of peft.

Tested with peft 0.21; `tests/private/test_fences.py` fails first if a name is missing.
"""

from typing import Any


def saved_layer_class() -> Any:
    """Returns the class that trains copies of layers, which `update` creates.

    Its `unload_and_optionally_merge_module` returns the active copy.
    """
    from peft.utils.other import ModulesToSaveWrapper

    return ModulesToSaveWrapper


def convolution_class() -> Any:
    """Returns the class whose `update_layer` creates convolution adapters by the layer's class."""
    from peft.tuners.lora.layer import _ConvNd

    return _ConvNd
