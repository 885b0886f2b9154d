"""The helpers that users import by MASE's names; each is defined elsewhere."""

from typing import Any

from chop.aliases import alias_modules
from chop.capture.inputs import dummy_inputs as get_hf_dummy_in
from chop.data import get_tokenized_dataset
from chop.tools import logger
from chop.tools.checkpoint_load import load_model
from chop.tools.config_load import load_config
from chop.tools.get_input import get_cf_args, get_dummy_input
from chop.tools.logger import get_logger, set_logging_verbosity
from chop.tools.utils import (
    copy_weights,
    deepgetattr,
    deepsetattr,
    is_tensor,
    to_numpy,
    to_numpy_if_tensor,
    to_tensor,
    to_tensor_if_numpy,
)
from chop.train import get_trainer

alias_modules(__name__, "huggingface")


def __getattr__(name: str) -> Any:
    if name == "root_logger":
        return logger.root_logger
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
