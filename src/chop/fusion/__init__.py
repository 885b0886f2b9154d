"""How passes that fuse operators find them: patterns, and what stands in their way."""

from chop.fusion.attention import Attention, Mask, attentions
