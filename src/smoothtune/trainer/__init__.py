"""Trainers of other libraries: how one of their batches becomes a batch and a task of ours."""
