"""The ANI module and its life inside a Hugging Face model."""
