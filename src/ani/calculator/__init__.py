"""The calculator: a frozen language model writes the exact values that a text asks for.

A reader (`ani.calculator.reader`) finds which exact value is pending at each token. A gate, fitted on the model's
states, decides whether the next token writes it. A writer leaves only the tokens that do.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
