"""The registry of evaluation tasks. A new one is a subclass of `Task` and a line of `TASKS`.

`ani eval`, `ani compare`, `ani diff` and `ani report` know a task by its line here; `ani eval` offers
those whose settings all have defaults.
"""

from ani.evaluation.task import Task
from ani.evaluation.tasks.arithmetic import Arithmetic, ArithmeticInChat
from ani.evaluation.tasks.benchmarks import Gsm8k, Math, Mmlu
from ani.evaluation.tasks.calculations import Calculations
from ani.evaluation.tasks.gates import Gates
from ani.evaluation.tasks.language import Language
from ani.evaluation.tasks.meant import Meant
from ani.evaluation.tasks.reading import Reading
from ani.evaluation.tasks.rivals import Rivals
from ani.evaluation.tasks.routing import Routing
from ani.evaluation.tasks.solutions import Solutions

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Arithmetic,
        ArithmeticInChat,
        Reading,
        Calculations,
        Meant,
        Rivals,
        Gsm8k,
        Math,
        Mmlu,
        Gates,
        Routing,
        Language,
        Solutions,
    )
}
"""Every task by its name, in the order of tables and of the report."""
