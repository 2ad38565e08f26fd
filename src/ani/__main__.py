"""`python -m ani`, and `torchrun -m ani train …`: the command line."""

from ani.cli import main

main()
