"""`simulate` by MASE's import path."""

from chop.not_built import simulate as simulate
