"""Extractive question answering: windows, spans, SQuAD metrics."""
