"""Data independent of the task: sources, columns, tokenizing, batches, sampling."""
