"""The ANI module, and how it is attached to a Hugging Face model."""
