"""The helpers that users import by MASE's names; each is defined elsewhere."""

from chop.data import get_tokenized_dataset
from chop.ir.capture.inputs import dummy_inputs as get_hf_dummy_in
from chop.tools.logger import get_logger, set_logging_verbosity
from chop.tools.utils import deepgetattr, deepsetattr
from chop.train import get_trainer
