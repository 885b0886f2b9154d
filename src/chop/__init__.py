"""Makes a PyTorch or Hugging Face model small, fast and deployable."""
