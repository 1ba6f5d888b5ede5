"""Regularizers in the Trainers of transformers, TRL and sentence-transformers; cost of a step."""
