"""Curves, plots and pages, as evaluations and studies show them."""
