"""Training data: generators, readers and the sources that a recipe can name (`ani.data.sources`)."""

# The paper's sources on the hub, here because the command line names them and imports nothing heavy.
OPENMATH = "nvidia/OpenMathInstruct-2"
MAGPIE = "Magpie-Align/Magpie-Pro-MT-300K-v0.1"
