from .asked import asked as asked
from .calculator import Calculator as Calculator
from .reader import Exact as Exact
