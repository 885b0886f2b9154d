"""Example inputs and patches for captures of transformers' models."""
