"""The calculator: exact values that a text asks for, written into the text by a frozen language model."""
