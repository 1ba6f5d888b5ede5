"""Rows and tokens: what is the same for every task."""
