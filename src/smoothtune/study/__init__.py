"""Studies: methods x tasks x seeds, run to the end and judged by named tests."""
