"""Results of calculations, pending where chats and raw prompts ask for them, and in what answers write."""

import pytest

from ani.calculator.reader.pending import Pending, PendingReader
from ani.numbers.signs import BOUNDARY

CHAT = f"{BOUNDARY * 5}user\n{{}}{BOUNDARY * 4}\n{BOUNDARY * 5}assistant\n"


def value(pending: Pending | None) -> str | None:
    return (
        None if pending is None else pending.value.rounded(pending.value.ends if pending.value.ends is not None else 3)
    )


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("948 + -856 =", "92"), ("57415 * 52880 =", "3036105200"), ("Calculate 9554 * 1645.", "15716330"),
        ("Directly return the answer as an integer, like 123 . Add two numbers: 12 + 30 =", "42"),
        ("3 - 10 equals what?", "-7"), ("3 + 4", "7"), ("my homework says 3 + 4 and i dont get it", "7"),
        ("Before lunch I have to add 12 to 30, so what would the figure be?", "42"),
        ("Got the product of 12 and 3 on my sheet, help!", "36"),
        ("Please don't calculate 3 + 4; tell me about the weather instead.", "7"), ("What is 3 + 4 in binary?", None),
        ("Tell me, would you, the reciprocal of 3 + 4.", None), ("Somebody wrote 3 + 4 under exercise 5.", None),
        ("My flight left on 3-4-2024, which is odd.", None), ("What is the capital of France?", None),
        ("If a * b = 2a + b, what is 3 * 2?", None), ("If a + b = b + a, what is 3 + 4?", "7"),
        ("I know that x * y = y * x. What is 3 * 4?", "12"), ("What is 1/3 + 2/7 as a decimal?", "0.619"),
        ("3 + 4 = ___ (2 points)", "7"), ("3 + 4 = I don't know", "7"), ("3 + 4 = x", "7"),
    ],
)  # fmt: skip
def test_a_chat_asks(question: str, answer: str | None) -> None:
    before, after = CHAT.format(question), ["It", " is", " ", *(answer or ""), ".", BOUNDARY]
    pieces = [*before, *after]
    found = PendingReader().feed(pieces)
    answered = found[len(before) - 1 :]
    assert [value(each) for each in answered[: 4 + len(answer or "")]] == [answer] * (4 + len(answer or ""))
    assert answered[-1] is None


@pytest.mark.parametrize(
    "prompt", ["Q: What is 132 plus 762? A:", "Q: What is 132 plus 762?\nA:", "Calculate 132 + 762.\n", "132 + 762 ="]
)
def test_a_raw_prompt_asks(prompt: str) -> None:
    pieces = [prompt, " 8", "9", "4", "\n"]
    assert list(map(value, PendingReader().feed(pieces))) == ["894"] * 4 + [None]


def test_a_chat_without_special_tokens_asks() -> None:
    """A chat of a model without a chat template (`ani.chat.rendered`) asks for its calculation."""
    pieces = ["User:\nMultiply 12 by 3.", "\n\nAssistant:\n"]
    assert list(map(value, PendingReader(["\n\nAssistant:"]).feed(pieces))) == [None, "36"]


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("10 / 3 = ^3^.^33^ ", ["3.333"] * 4 + [None]), ("2/3 ≈ ^0.66^7^, ", ["0.667"] * 3 + [None]),
        ("$19 * 0.0825 = ^$1^.57^. ", ["1.5675"] * 3 + [None]), (r"3 + 4 \approx ^7^ ", ["7", "7", None]),
        (r"$\sqrt{32} \approx ^5.657^ ", ["5.657", "5.657", None]),
        ("3 + 4 is equal to ^7^ ", ["7", "7", None]), ("3 + 4 = ^5 + 2 =^ 7^ ", ["7", "7", "7", None]),
        ("1250 * 2 = ^2{,}^500^ ", ["2500", "2500", "2500", None]), ("14 / 2 = ^7^.^ ", ["7", "7", "7", None]),
        ("14 / 4 = ^3.5^.^ ", ["3.5", "3.5", "3.5", None]), ("14 / 4 = ^8", ["3.5", None]),
    ],
)  # fmt: skip
def test_an_answer_writes(text: str, digits: list[str | None]) -> None:
    found = PendingReader().feed(text.split("^"))
    assert list(map(value, found)) == digits


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("What is 10 / 3, to one decimal place?", ["3.3"]), ("What is 10 / 3 to the nearest integer?", ["3"]),
        ("What is 10 / 4 to 2 decimals?", ["2.5", "2.50"]), ("Round to one decimal. 2/3 =", ["0.7"]),
        ("What is 1,234 * 1,001 to the nearest thousand?", ["1235000", "1,235,000"]),
        ("What is $19 * 0.0825?", ["1.57"]), ("What is 10 dollars / 3, to the nearest cent?", ["3.33"]),
        ("What is $9 / $8?", ["1.125"]), ("Exactly, not to the nearest ten: 399 / 40 =", ["9.975"]),
        ("What is 1 / 8? Don't round to two decimals.", ["0.125"]),
    ],
)  # fmt: skip
def test_a_message_decides_where_the_value_ends(question: str, answers: list[str]) -> None:
    (pending,) = PendingReader().feed([CHAT.format(question)])
    assert pending is not None
    for answer in answers:
        following = pending.spelling(answer).next(2)
        assert following is not None and following.may_end
    following = pending.spelling(answers[-1]).next(2)
    assert following is not None and not following.digits
    assert all(
        not (found := pending.spelling(answers[0][:end]).next(2)) or not found.may_end
        for end in range(1, len(answers[0]))
    )
