"""The calculator's evaluation tasks; the entry point group `ani.tasks` registers them."""

from ani.calculator.tasks.calculations import Calculations
from ani.calculator.tasks.meant import Meant
from ani.calculator.tasks.rivals import Rivals
from ani.evaluation.task import Task

TASKS: list[type[Task]] = [Calculations, Meant, Rivals]
