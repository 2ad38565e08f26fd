"""From an adapter to what serves it: one checkpoint directory."""
