"""Loading models, and low-rank adapters."""
