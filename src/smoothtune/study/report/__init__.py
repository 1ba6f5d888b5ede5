"""What a finished study says: tables, statistics, plots, findings."""
