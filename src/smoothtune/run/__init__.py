"""One run: from a RunConfig to a fine-tuned model folder."""
