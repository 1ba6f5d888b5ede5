"""Mathematics that methods and evaluation share."""
