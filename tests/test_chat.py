"""One rendering: what a model reads before an answer is the same in training and in evaluation."""

import copy
import json
from itertools import cycle
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from ani.chat import around_message, message_ends, rendered
from ani.data.collator import tokenize
from ani.data.records import Example, Message
from ani.errors import InputError
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks import benchmarks
from tests.tiny import pair
from tests.tokenizers import QWEN3, llama3, mistral, qwen

DATED = """\
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ bos_token }}
{%- for message in messages %}{{ '[' + message.role + ' ' + date_string + ']' + message.content + '<|eot_id|>' }}
{%- endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""
"""Llama 3's templates write the date."""

ALTERNATING = """\
{{- bos_token }}{% for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"""
"""Mistral's knows no system."""

TEMPLATES = {
    "thinking": (qwen, QWEN3),
    "dated": (llama3, DATED),
    "alternating": (mistral, ALTERNATING),
    "none": (llama3, None),
    "none, sentencepiece": (mistral, None),
}
CHATS: dict[str, list[Message]] = {
    "question": [{"role": "user", "content": "What is 12 + 30?"}],
    "shots": [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "What is 12 + 30?"},
    ],
}


def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    make, template = TEMPLATES[name]
    tokenizer = copy.copy(make())
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(("name", "chat"), [*zip(TEMPLATES, cycle(CHATS), strict=False), ("none", "question")])
def test_training_and_evaluation_read_the_same_tokens(name: str, chat: str) -> None:
    tokenizer = tokenizer_of(name)
    example = tokenize(Example(CHATS[chat], "42"), tokenizer, None, 4096)
    model, _ = pair("llama", tokenizer)
    backend = TransformersEngine(model, tokenizer)
    asked = backend.ids(CHATS[chat])
    assert example.input_ids[: example.prompt_length] == asked
    assert asked == tokenizer(rendered(tokenizer, CHATS[chat]), add_special_tokens=False)["input_ids"]
    seen: list[list[int]] = []
    model.generate = lambda input_ids, **_: seen.extend(input_ids.tolist()) or input_ids  # type: ignore[assignment,func-returns-value]
    backend.texts([CHATS[chat]], 1)
    assert seen == [asked]
    before, after = around_message(tokenizer, CHATS[chat][:-1])
    assert tokenizer("What is 12 + 30?".join((before, after)), add_special_tokens=False)["input_ids"] == asked
    text = tokenizer.decode(asked)
    assert "12 + 30" in text and (chat == "question" or "Answer with a number" in text)


def test_thinking_is_off_and_the_day_does_not_matter() -> None:
    assert rendered(tokenizer_of("thinking"), CHATS["question"]).endswith("<think>\n\n</think>\n\n")
    assert "[user 26 Jul 2024]" in rendered(tokenizer_of("dated"), CHATS["question"])


def test_the_plain_form() -> None:
    tokenizer = tokenizer_of("none")
    assert rendered(tokenizer, CHATS["shots"]) == (
        f"{tokenizer.bos_token}System:\nAnswer with a number.\n\nUser:\n1 + 1?\n\n"
        f"Assistant:\n2{tokenizer.eos_token}\n\nUser:\nWhat is 12 + 30?\n\nAssistant:\n"
    )


def test_an_answer_in_the_plain_form_ends_where_the_next_question_would_begin() -> None:
    tokenizer = tokenizer_of("none")
    asked, answered = CHATS["question"], {"role": "assistant", "content": "It is 42."}
    both = rendered(tokenizer, [*asked, answered, *asked])
    goes_on = both.removeprefix(rendered(tokenizer, asked)).replace(str(tokenizer.eos_token), "")
    for name in ("gsm8k", "math"):
        text = (Path(benchmarks.__file__).parent / "prompts" / f"{name}.yaml").read_text(encoding="utf-8")
        stops = json.loads(text.partition("  until: ")[2].partition("  #")[0])
        assert min(goes_on.split(stop)[0] for stop in stops) == "It is 42."


def test_a_system_that_the_template_refuses_goes_to_the_user() -> None:
    text = rendered(tokenizer_of("alternating"), CHATS["shots"])
    assert "[INST] Answer with a number.\n\n1 + 1? [/INST]2" in text
    with pytest.raises(InputError, match="the model's chat template refuses the messages"):
        rendered(tokenizer_of("alternating"), CHATS["shots"][2:])


def test_what_ends_a_message_where_no_special_token_does() -> None:
    for name in ("thinking", "dated", "alternating"):
        assert message_ends(tokenizer_of(name)) == []
    assert message_ends(tokenizer_of("none")) == ["\n\nAssistant:"]
    (tokenizer := tokenizer_of("none")).chat_template = ALTERNATING
    assert message_ends(tokenizer) == [" [/INST]"]
