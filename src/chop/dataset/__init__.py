"""Data by MASE's names: `MaseDataModule(name, batch_size, ...)` and `get_dataset_info(name)`."""

from chop.data import DatasetInfo, get_dataset_info
from chop.dataset.data_module import MaseDataModule
