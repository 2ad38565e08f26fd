"""Which layer knows a number's role: linear probes of every layer, and the choice of one."""
