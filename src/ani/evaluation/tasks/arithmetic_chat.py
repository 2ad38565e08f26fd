"""The problems of `arithmetic`, asked as one asks a chat model; knows nothing about training.

Completing `Calculate 12 + 34 =` is what our recipes teach, so it says little of a model that was not taught it.
"""

from collections.abc import Sequence
from decimal import Decimal

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, arithmetic_problems
from ani.evaluation.backend import Backend
from ani.evaluation.tasks.arithmetic import Arithmetic
from ani.numbers import find_numbers

SHOTS = 2
ROOM = 128
"""New tokens: a model may write down its steps."""


class ArithmeticInChat(Arithmetic):
    """N-digit arithmetic in the model's chat template, with worked problems of the same kind and room to write."""

    name = "arithmetic-chat"
    title = "Arithmetic in chat"
    note = (
        f"The same problems, in the model's chat template behind {SHOTS} worked ones of the same operation and length, "
        f"with room for {ROOM} tokens: an answer is exact if its last number is. Wilson 95% intervals."
    )
    what = "Exact answers in chat"

    def written(self, backend: Backend, problems: Sequence[ArithmeticProblem]) -> list[str]:
        """What the model writes in answer to each problem."""
        prompts = []
        for problem in problems:
            operation = next(name for name, symbol in SYMBOLS.items() if symbol == problem.operation)
            shots = arithmetic_problems(SHOTS, digits=[problem.digits], operations=[operation], split="train")
            turns = [text for shot in shots for text in (_question(shot), f"{_task(shot)} = {shot.answer}")]
            turns.append(_question(problem))
            roles = ("user", "assistant")
            prompts.append([{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)])
        return backend.texts(prompts, ROOM)

    def judged(self, output: str) -> Decimal | None:
        """The last number."""
        found = find_numbers(output)
        return found[-1].value if found else None


def _task(problem: ArithmeticProblem) -> str:
    return f"{problem.left} {problem.operation} {problem.right}"


def _question(problem: ArithmeticProblem) -> str:
    return f"Calculate {_task(problem)}."
