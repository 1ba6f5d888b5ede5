"""Run files, and the one run that they describe."""
