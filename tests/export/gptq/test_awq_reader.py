"""Folders of AWQ become packed layers with the values that their definition gives."""

import numpy as np
import pytest

from chop.errors import ConfigError
from chop.export.foreign.readers import load
from tests.export.gptq.test_reader import check
from tests.export.tools import awq_parts, awq_settings, write_folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("parts", "name", "width"),
    [
        (awq_parts(32), "scale_integer", 5),  # what k - z takes, where scales need float16
        (awq_parts(16, coarse=True), "group_affine", 4),
        (awq_parts(32, symmetric=True, coarse=True), "group_integer", 4),
        (awq_parts(32, symmetric=True, scale_dtype=np.float32), "scale_integer", 4),
    ],
)
def test_folders_keep_every_code(parts, name, width, tmp_path):
    group = 16 if name == "group_affine" else 32
    check(tmp_path, write_folder(tmp_path, awq_settings(group), parts), name, width)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"version": "gemv_fast"}, "expected version 'gemm' of awq, got 'gemv_fast'"),
        ({"format": "gemv"}, "expected format 'gemm' of awq, got 'gemv'"),
        ({"checkpoint_format": "gemv"}, "expected checkpoint_format 'gemm' of awq, got 'gemv'"),
        ({"bits": 3}, "expected bits of 4, got 3"),
        ({"group_size": -2}, "expected a group_size of at least 1, or -1, got -2"),
    ],
)
def test_what_has_no_format_here_is_refused(settings, reason, tmp_path):
    write_folder(tmp_path, awq_settings(32) | settings, awq_parts(32))
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path)
