"""Extensions of chop: a number format, a pass, a sampler, an operator and its circuit."""
