"""State of a model and its surroundings: read, kept and put back."""
