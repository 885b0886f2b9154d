"""`nn.Softsign` bound to each number format."""

from chop.nn.quantized import QuantSoftsign
from chop.nn.quantized.derived import bind

bind(QuantSoftsign, globals())
