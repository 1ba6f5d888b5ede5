"""Mechanics of models: PyTorch and Hugging Face, no method."""
