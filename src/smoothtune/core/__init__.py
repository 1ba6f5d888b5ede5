"""One update: forward passes, loss terms of methods and their sum; no Trainer, no tasks."""
