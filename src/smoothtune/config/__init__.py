"""Settings of runs and evaluations: read from files and options, and validated."""
