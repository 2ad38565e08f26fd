"""`ani compare`: `plan` says which runs, `run` starts them, `one_run` carries out one, `tables` writes the results."""
