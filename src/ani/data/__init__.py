"""Data generators and readers; `kinds` has what a recipe can name."""

# The paper's sources on the hub; they stand here because the command line names them and imports nothing heavy.
OPENMATH = "nvidia/OpenMathInstruct-2"
MAGPIE = "Magpie-Align/Magpie-Pro-MT-300K-v0.1"
