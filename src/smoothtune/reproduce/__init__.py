"""A paper's tables and figures, drawn from the records of a study in the paper's own form."""
