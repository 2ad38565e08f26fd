"""From an adapter to what serves it: one checkpoint directory; knows nothing about training or evaluation."""
