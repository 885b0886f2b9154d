"""Models: built-in ones, Hugging Face models by folder or name, timm models and your own code.

`load_model(name_or_path, *, num_labels=None, task=None, pretrained=True, seed=0)` -> nn.Module;
`get_model(name, pretrained=False, task="cls", dataset_info=None)`: the same with MASE's names;
`register_mase_model(name)` adds your own class to these names;
`BUILTIN_MODELS[name]` has the data set and the training recipe of each built-in model.
"""

from chop.models.builtin import BUILTIN_MODELS, BuiltinModel, Recipe, builtin_model
from chop.models.catalogue import MODELS, ModelInfo, find_model_info, get_model_info
from chop.models.load import AUTO_CLASSES, load_model, read_config
from chop.models.named import get_model, get_tokenizer
from chop.models.own import (
    check_is_in_file,
    check_own,
    function_of_file,
    is_own,
    reason_of_user_code,
)
from chop.models.plain import VGG7, ToyConvNet, ToyCustomFnNet, ToyNet
from chop.models.registry import ModelFactory, register_mase_checkpoint, register_mase_model

__all__ = [
    "AUTO_CLASSES",
    "BUILTIN_MODELS",
    "MODELS",
    "VGG7",
    "BuiltinModel",
    "ModelFactory",
    "ModelInfo",
    "Recipe",
    "ToyConvNet",
    "ToyCustomFnNet",
    "ToyNet",
    "builtin_model",
    "check_is_in_file",
    "check_own",
    "find_model_info",
    "function_of_file",
    "get_model",
    "get_model_info",
    "get_tokenizer",
    "is_own",
    "load_model",
    "read_config",
    "reason_of_user_code",
    "register_mase_checkpoint",
    "register_mase_model",
]
