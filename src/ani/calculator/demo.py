"""Twelve chats, answered by the embedded model alone and with its calculator: the last part of `ani demo`."""

from typing import Any, cast

from rich.console import Console
from rich.table import Table

from ani.calculator.asked import asked, shown
from ani.calculator.calculator import Calculator
from ani.evaluation.engines import TransformersEngine
from ani.models import EMBEDDED, load_model, load_tokenizer
from ani.terminal import counting

CHATS = (
    "What is 4738 + 9265?",
    "How much is 87 times 46?",
    "What is 1000 - 387.5?",
    "What is 7 divided by 8?",
    "What is 15% of 240?",
    "What is 12.5 + 7.25 + 100?",
    "What is the square root of 1764?",
    "What is 2 to the power of 20?",
    "What is (17 + 25) * 3?",
    "What is the capital of France?",
    "On which floor is room 505?",
    "Name a bird.",
)
NEW_TOKENS = 16
"""Maximum number of tokens of an answer."""


def show_chats(console: Console) -> None:
    """Answer `CHATS` with the embedded model alone and with its calculator, without training, and print a table of the
    answers and the exact values."""
    model, tokenizer = cast(Any, load_model(EMBEDDED)), load_tokenizer(EMBEDDED)
    calculator = Calculator.load("smollm2-calculator", model, tokenizer)
    prompts = [[{"role": "user", "content": text}] for text in CHATS]
    columns: list[list[str]] = []
    with counting(console, "chats, twice", 2 * len(CHATS)) as count:
        for processors in ([], [calculator]):
            texts = TransformersEngine(model, tokenizer, processors=processors).texts(prompts, NEW_TOKENS)
            columns.append([_excerpt(text) for text in texts])
            count(len(texts))
    table = Table("chat", "exact value", "the model", "with the calculator", title="The calculator, without training")
    for place, text in enumerate(CHATS):
        value = asked(text)
        table.add_row(text, shown(value, 10) if value else "", columns[0][place], columns[1][place])
    console.print(table, markup=False)


def _excerpt(answer: str) -> str:
    line = " ".join(answer.split())
    return line if line.endswith((".", "!", "?")) else f"{line} […]"  # `NEW_TOKENS` cut it off
