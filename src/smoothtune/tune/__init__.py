"""`smoothtune tune`: which method, how strong, how trained; from the training rows alone."""
