"""One update: the passes, the methods' terms and their sum. Knows no Trainer, no files, no tasks."""
