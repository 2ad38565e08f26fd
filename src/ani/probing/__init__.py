"""Linear probes of every layer for the roles of numbers, and the choice of the layer to inject at."""
