"""Serving: merges adapter and base model into one checkpoint, and runs it in vLLM."""
