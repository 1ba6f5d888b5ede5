"""Trainers of other libraries: their batches as model inputs, and their loss functions."""
