"""What may be injected: exact values that a text makes known."""
