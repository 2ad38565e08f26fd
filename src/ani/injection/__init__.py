"""The ANI module and its life inside a Hugging Face model; knows nothing about data, training or tasks."""
