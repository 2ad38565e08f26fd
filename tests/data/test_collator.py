import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase

from ani import AniConfig
from ani.data.collator import IGNORED, NumberCollator, TokenizedExample, tokenize
from ani.data.records import Example, Message
from ani.encoders import FourierNumberEncoder
from ani.injection.locate import NumberLocator
from ani.roles import Role, RoleName
from tests.properties import examples
from tests.tokenizers import ALL, gemma_like

LOCATORS: dict[tuple[str, str], NumberLocator] = {}
LONG = 4096


def locator(name: str, policy: str = "terminal") -> NumberLocator:
    key = (name, policy)
    if key not in LOCATORS:
        LOCATORS[key] = NumberLocator(ALL[name](), AniConfig.model_validate({"layer": 1, "policy": policy}))
    return LOCATORS[key]


def roles_by_number(name: str, example: Example, tokenizer: PreTrainedTokenizerBase | None = None) -> list[tuple]:
    """(text, role) of every number of the prompt, where all its tokens agree."""
    tokenizer = tokenizer or ALL[name]()
    tokenized = tokenize(example, tokenizer, locator(name), LONG)
    found = []
    covered: set[int] = set()
    for number in locator(name).scanner.scan(tokenized.input_ids[: tokenized.prompt_length]):
        tokens = range(number.first_token, number.last_token + 1)
        covered.update(tokens)
        (role,) = {tokenized.roles[token] for token in tokens}
        found.append((number.text, role))
    outside = [role for token, role in enumerate(tokenized.roles) if token not in covered]
    assert set(outside) <= {Role.UNKNOWN}
    return found


@pytest.mark.parametrize("name", ["qwen", "gemma_like"])
def test_prompt_then_completion_then_eos(name: str) -> None:
    tokenizer = ALL[name]()
    tokenized = tokenize(Example("Room 505 holds", " 10 people."), tokenizer, locator(name), LONG)
    prompt = tokenizer("Room 505 holds")["input_ids"]
    completion = tokenizer(" 10 people.", add_special_tokens=False)["input_ids"]
    assert tokenized.input_ids == [*prompt, *completion, tokenizer.eos_token_id]
    assert tokenized.prompt_length == len(prompt)
    assert tokenized.roles == [Role.UNKNOWN] * len(tokenized.input_ids)


def test_an_eos_that_the_tokenizer_adds_is_at_the_end_only() -> None:
    tokenizer = copy.deepcopy(gemma_like())
    special = [("<bos>", tokenizer.bos_token_id), ("<eos>", tokenizer.eos_token_id)]
    added = TemplateProcessing(single="<bos> $A <eos>", special_tokens=special)
    tokenizer.backend_tokenizer.post_processor = added
    assert tokenizer("12")["input_ids"][-1] == tokenizer.eos_token_id
    tokenized = tokenize(Example("12 +", " 3"), tokenizer, locator("gemma_like"), LONG)
    assert tokenized.input_ids[0] == tokenizer.bos_token_id
    assert tokenized.input_ids.count(tokenizer.eos_token_id) == 1
    assert tokenized.input_ids[-1] == tokenizer.eos_token_id
    tokenizer = copy.deepcopy(gemma_like())
    tokenizer.eos_token = None  # without one, nothing is appended
    tokenized = tokenize(Example("12 +", " 3"), tokenizer, locator("gemma_like"), LONG)
    assert tokenizer.decode(tokenized.input_ids) == "12 + 3"


# --- chat ---

CHAT: list[Message] = [
    {"role": "system", "content": "Answer in 2 words."},
    {"role": "user", "content": "Room 505 holds 10"},
    {"role": "assistant", "content": "Room 505 holds 10"},
    {"role": "user", "content": "Room 505 holds 10"},
]
WITH_DIGITS = (
    "Cutoff 2024-10, user 505.\n{% for m in messages %}[{{ loop.index }}:{{ m['role'] }}] {{ m['content'] }} (505)\n"
    "{% endfor %}{% if add_generation_prompt %}[99] Room 505 holds 10\n{% endif %}"
)


def chat_tokenizer(name: str, template: str) -> PreTrainedTokenizerBase:
    tokenizer = copy.copy(ALL[name]())
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("strip", [False, True])
def test_roles_are_on_the_last_message_whatever_the_template_says(strip: bool) -> None:
    template = WITH_DIGITS.replace("m['content']", "m['content'] | trim") if strip else WITH_DIGITS
    messages = [*CHAT[:-1], {"role": "user", "content": "  Room 505 holds 10\n"}] if strip else CHAT
    example = Example(messages, "Yes.", ("nominal", "quantitative"))
    found = roles_by_number("gemma_like", example, chat_tokenizer("gemma_like", template))
    known = [i for i, (_, role) in enumerate(found) if role != Role.UNKNOWN]
    assert [found[i] for i in known] == [("505", Role.NOMINAL), ("10", Role.QUANTITATIVE)]
    # After them: the template's (505), [99] and its own sentence.
    assert [text for text, _ in found[known[-1] + 1 :]] == ["505", "99", "505", "10"]
    assert known[1] == known[0] + 1


# --- roles ---


@pytest.mark.parametrize("name", ["qwen", "llama3", "mistral", "gemma_like"])
def test_every_token_of_a_number_has_its_role(name: str) -> None:
    text = "Employee 2048 earns $5,000.50 and -3 points on 7th; 123456789"
    roles: tuple[RoleName | None, ...] = ("nominal", "quantitative", None, "nominal", "quantitative")
    found = roles_by_number(name, Example(text, " ok.", roles))
    expected = [Role.NOMINAL, Role.QUANTITATIVE, Role.UNKNOWN, Role.NOMINAL, Role.QUANTITATIVE]
    assert found == list(zip(["2048", "5,000.50", "-3", "7", "123456789"], expected, strict=True))


# --- batches ---

EXAMPLES = [
    Example("Room 505 holds 10", " people, not 12.", ("nominal", "quantitative")),
    Example("1,234 + 5 =", " 1239", ("quantitative", "quantitative")),
    Example("No number here:", " none."),
    Example("Bus 7", " is late.", None),
]


@examples(30)
@given(
    examples=st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=5),
    policy=st.sampled_from(["terminal", "running", "after"]),
)
def test_batches_equal_a_plain_reference(examples: list[Example], policy: str) -> None:
    tokenizer, find = gemma_like(), locator("gemma_like", policy)
    rows = [tokenize(example, tokenizer, find, LONG) for example in examples]
    batch = NumberCollator(tokenizer, find)(rows)
    width = max(len(row.input_ids) for row in rows)
    encoder = FourierNumberEncoder(10, 6)
    expected: list[tuple[int, int, int]] = []
    values = []
    for i, row in enumerate(rows):
        length, padding = len(row.input_ids), width - len(row.input_ids)
        assert batch["input_ids"][i].tolist() == row.input_ids + [tokenizer.pad_token_id] * padding
        assert batch["attention_mask"][i].tolist() == [1] * length + [0] * padding
        completion = row.input_ids[row.prompt_length :]
        assert batch["labels"][i].tolist() == [IGNORED] * row.prompt_length + completion + [IGNORED] * padding
        # `terminal`: the prompt alone, as if nothing followed. `running`: every digit token, prompt and response.
        # `after`: where a number is known to be over, in both; the role is that of the number's own tokens.
        scanner = find.scanner
        if policy == "terminal":
            numbers = [(n.last_token, n) for n in scanner.scan(row.input_ids[: row.prompt_length])]
        elif policy == "running":
            numbers = [(n.last_token, n) for n in scanner.scan_running(row.input_ids)]
        else:
            numbers = list(scanner.scan_ended(row.input_ids).items())
        expected += [(i, token, row.roles[number.last_token]) for token, number in numbers]
        values += [number.value for _, number in numbers]
    found = batch["numbers"]
    assert list(zip(found.rows.tolist(), found.positions.tolist(), found.roles.tolist(), strict=True)) == expected
    assert torch.equal(found.features, encoder.encode(values))
    for key in ("input_ids", "attention_mask", "labels"):
        assert batch[key].dtype == torch.int64


def test_padding_that_is_eos_stays_unlearnt() -> None:
    tokenizer = copy.deepcopy(gemma_like())
    tokenizer.pad_token = tokenizer.eos_token
    end = tokenizer.eos_token_id
    rows = [TokenizedExample([5, 6, end], 1, [-1] * 3), TokenizedExample([5, 6, 7, 8, end], 2, [-1] * 5)]
    batch = NumberCollator(tokenizer, None)(rows)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}  # a model without ANI gets no numbers
    assert batch["labels"].tolist() == [[-100, 6, end, -100, -100], [-100, -100, 7, 8, end]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]


def test_padding_does_not_join_numbers_of_a_row() -> None:
    tokenizer = copy.deepcopy(gemma_like())
    tokenizer.pad_token = "7"  # a digit as padding: only the mask shows it
    tokenizer.eos_token = None
    find = locator("gemma_like", "running")
    rows = [tokenize(example, tokenizer, find, LONG) for example in (Example("a 1", " b 2"), EXAMPLES[0])]
    numbers = NumberCollator(tokenizer, find)(rows)["numbers"]
    first = [number.value for number in find.scanner.scan_running(rows[0].input_ids)]
    assert (numbers.rows == 0).sum() == len(first) == 2
    assert torch.equal(numbers.features[:2], FourierNumberEncoder(10, 6).encode(first))


@given(length=st.integers(1, 30))
def test_long_examples_are_cut_at_the_right(length: int) -> None:
    example = Example("Room 505 holds 10", " people at most.", ("nominal", "quantitative"))
    whole = tokenize(example, gemma_like(), locator("gemma_like"), LONG)
    cut = tokenize(example, gemma_like(), locator("gemma_like"), length)
    assert cut.input_ids == whole.input_ids[:length]
    assert cut.roles == whole.roles[:length]
    assert cut.prompt_length == min(whole.prompt_length, length)


def test_roles_stay_unknown_where_the_template_rewrites_the_message() -> None:
    tokenizer = chat_tokenizer("gemma_like", "{{ messages[-1]['content'] | replace('5', '6') }}")
    example = Example(CHAT, "Yes.", ("nominal", "quantitative"))
    assert roles_by_number("gemma_like", example, tokenizer) == [("606", Role.UNKNOWN), ("10", Role.UNKNOWN)]
