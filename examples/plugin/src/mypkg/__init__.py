"""Extensions of chop: a number format, a pass and a sampler."""
