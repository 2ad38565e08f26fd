"""The problems of `arithmetic`, asked as one asks a chat model; knows nothing about training.

Completing `Calculate 12 + 34 =` is what our recipes teach, so it says little of a model that was not taught it.
"""

from collections.abc import Sequence
from decimal import Decimal

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, arithmetic_problems
from ani.numbers import find_numbers
from ani.tasks.answering import Answerer
from ani.tasks.arithmetic import Arithmetic

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

    def written(self, answerer: Answerer, problems: Sequence[ArithmeticProblem]) -> list[str]:
        """What the model writes in answer to each problem."""
        from ani.chat import rendered

        method = answerer.method
        prompts = []
        for problem in problems:
            operation = next(name for name, symbol in SYMBOLS.items() if symbol == problem.operation)
            shots = arithmetic_problems(SHOTS, digits=[problem.digits], operations=[operation], split="train")
            turns = [text for shot in shots for text in (_question(shot), f"{_task(shot)} = {shot.answer}")]
            turns.append(_question(problem))
            messages = [
                {"role": "assistant" if place % 2 else "user", "content": method.write(text)}
                for place, text in enumerate(turns)
            ]
            prompts.append(rendered(answerer.tokenizer, messages))
        outputs = answerer.greedy_texts(prompts, ROOM, add_special_tokens=False)
        return [*map(method.read, outputs)]

    def judged(self, output: str) -> Decimal | None:
        """The last number."""
        found = find_numbers(output)
        return found[-1].value if found else None


def _task(problem: ArithmeticProblem) -> str:
    return f"{problem.left} {problem.operation} {problem.right}"


def _question(problem: ArithmeticProblem) -> str:
    return f"Calculate {_task(problem)}."
