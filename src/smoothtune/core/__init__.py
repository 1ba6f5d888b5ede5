"""One update: passes, terms and their sum. Knows no Trainer, no files and no tasks."""
