"""`ani compare`: `plan` reads a comparison, `runs` carries it out, `tables` writes the results."""
