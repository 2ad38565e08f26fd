import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from ani.evaluation.engines import Engine, TransformersEngine
from ani.evaluation.tasks import TASKS
from ani.evaluation.tasks.benchmarks import Benchmark, BenchmarkAnswer, BenchmarkQuestion, equivalent
from ani.injection.methods import METHODS
from tests.answers import answers_of
from tests.json_lines import write_lines
from tests.tiny import attached, encode, logits_of, pair

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
GSM8K = [{"question": f"Ann has {i} and {i * i} figs. " * i + "How many?", "answer": f"#### {i}"} for i in range(1, 6)]
MATH = [
    {"problem": f"Find {i}.", "level": f"Level {i}", "type": "Algebra", "solution": rf"\boxed{{{i}}}"} for i in (1, 2)
]
MMLU = [
    {"subject": subject, "question": f"{i}?" * i, "choices": ["1", "12", "a", "b"], "answer": i % 4}
    for subject in ("anatomy", "marketing")
    for i in range(1, 9)
]
ROWS = {"gsm8k": GSM8K, "math": MATH, "mmlu": MMLU}


def with_template(
    pair: tuple[PreTrainedModel, PreTrainedTokenizerBase], template: str | None = TEMPLATE, **settings: Any
) -> TransformersEngine:
    model, tokenizer = pair
    model.config.max_position_embeddings = 4096  # rotary: nothing else knows the length
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = template
    return TransformersEngine(model, tokenizer, **settings)


class Loaded(NamedTuple):
    """A benchmark and its questions."""

    task: Benchmark
    questions: list[BenchmarkQuestion]

    def answers(self, engine: Engine) -> list[BenchmarkAnswer]:
        return answers_of(self.task, engine, self.questions)

    def messages(self, record: BenchmarkAnswer) -> tuple[str, str]:
        """The system's and the user's message of a question."""
        system, user = next(each.messages for each in self.questions if each.doc["id"] == record.id)
        assert (system["role"], user["role"]) == ("system", "user")
        return system["content"], user["content"]


def load(name: str, folder: Path, **settings: Any) -> Loaded:
    file = write_lines(folder / f"{name}.jsonl", *ROWS[name])
    task: Any = TASKS[name](data=str(file), **{"max_new_tokens": 6, **settings})
    return Loaded(task, task.questions(seed=0))


def outputs(records: Sequence[BenchmarkAnswer]) -> list[Any]:
    return [record.output for record in records]


def test_written_answers_are_those_of_generate(tmp_path: Path) -> None:
    engine = with_template(attached("qwen3"), batch_size=3)
    model, tokenizer = engine.model, engine.tokenizer
    benchmark = load("gsm8k", tmp_path)
    records = benchmark.answers(engine)
    assert len(records) == 5 and len(set(outputs(records))) > 1
    for record in records:
        system, user = benchmark.messages(record)
        assert user.endswith(f"\nQ: {record.question}\nA:")
        encoded = tokenizer(f"<system>{system}\n<user>{user}\n<assistant>", return_tensors="pt")
        generated = model.generate(**encoded, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(generated[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        assert record.output == text.split("\nQ:")[0]
    assert outputs(benchmark.answers(with_template(pair("qwen3")))) != outputs(records)
    assert {record.truncated for record in records} == {False}
    written = {"task", "id", "question", "answer", "output", "prediction", "marker", "correct", "prompt_hash"}
    assert [record.model_fields_set for record in records] == [written | {"run", "truncated"}] * 5
    assert len({record.prompt_hash for record in records}) == 5


def test_a_batch_that_does_not_fit_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_template(attached("qwen3"), batch_size=5)
    expected, tried = {name: outputs(load(name, tmp_path).answers(engine)) for name in ("gsm8k", "mmlu")}, []
    model: Any = engine.model

    def crowded(compute: Any, **inputs: Any) -> Any:
        tried.append(len(inputs["input_ids"]))
        if tried[-1] > 1:
            raise torch.cuda.OutOfMemoryError
        return compute(**inputs)

    monkeypatch.setattr(model, "generate", partial(crowded, model.generate))
    assert outputs(load("gsm8k", tmp_path).answers(engine)) == expected["gsm8k"]
    assert tried == [5, 2, 1, 1, 1, 1, 1]
    monkeypatch.setattr(model, "forward", partial(crowded, model.forward))
    for found, others in zip(outputs(load("mmlu", tmp_path).answers(engine)), expected["mmlu"], strict=True):
        assert found == pytest.approx(others, abs=1e-4)


@pytest.mark.parametrize("config", [{}, {"layer": 0, "gate": "open", "combine": "substitute"}], ids=["ani", "fone"])
def test_log_probabilities_of_the_letters(config: dict[str, Any], tmp_path: Path) -> None:
    engine = with_template(attached("qwen3", **config), batch_size=4)
    model, tokenizer = engine.model, engine.tokenizer
    benchmark = load("mmlu", tmp_path)
    computed: list[int] = []
    head: Any = model.get_output_embeddings()
    with head.register_forward_pre_hook(lambda _, given: computed.append(given[0].shape[1])):
        records = benchmark.answers(engine)
    assert len(records) == 16 - 2 * 5
    assert 1 < max(computed) <= 4  # of a thousand; rows of a batch end at different tokens
    for record in records:
        system, user = benchmark.messages(record)
        prompt = f"<system>{system}\n<user>{user}\n<assistant>"
        logits = logits_of(model, encode(tokenizer, prompt))[0, -1].double().log_softmax(0)
        letters = [logits[tokenizer.encode(letter)[0]].item() for letter in "ABCD"]
        assert record.output == pytest.approx(letters, abs=1e-4)
        assert record.prediction == "ABCD"[letters.index(max(letters))]
        assert record.answer == "ABCD"[(record.id % 8 + 1) % 4]
        assert record.correct == (record.prediction == record.answer)
        assert record.shots_from == "test, held out" and len(record.choices) == 4
    assert {record.group for record in records} == {"STEM", "other"}


def test_letters_are_compared_in_float32(tmp_path: Path) -> None:
    engine = with_template(attached("qwen3"), batch_size=1)
    model, tokenizer = engine.model.to(torch.bfloat16), engine.tokenizer
    benchmark = load("mmlu", tmp_path, limit=2)
    for record in benchmark.answers(engine):
        system, user = benchmark.messages(record)
        ids = encode(tokenizer, f"<system>{system}\n<user>{user}\n<assistant>")
        with torch.inference_mode():
            hidden = model(ids, output_hidden_states=True).hidden_states[-1][0, -1].float()
            logits = (model.lm_head.weight.float() @ hidden).log_softmax(0)
        assert record.output == pytest.approx(
            [logits[tokenizer.encode(letter)[0]].item() for letter in "ABCD"], abs=1e-4
        )
    assert model(ids).logits.dtype == torch.bfloat16


def test_without_a_system_role_the_text_stands_before_the_users(tmp_path: Path) -> None:
    engine, benchmark = with_template(pair("qwen3"), NO_SYSTEM), load("math", tmp_path, limit=1)
    model, tokenizer = engine.model, engine.tokenizer
    (record,) = benchmark.answers(engine)
    system, user = benchmark.messages(record)
    encoded = tokenizer(f"<user>{system}\n\n{user}\n<assistant>", return_tensors="pt")
    generated = model.generate(**encoded, max_new_tokens=6, do_sample=False)
    assert record.output == tokenizer.decode(generated[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    assert (record.level, record.subject, record.prediction) == (record.id + 1, "Algebra", None)


EQUAL = [
    ("18", "18.00"), ("0.75", "3/4"), (r"\frac{1}{2}", r"\dfrac12"), ("1234", "1,234"), ("x^2+2x+1", "(x+1)^2"),
    (r"\text{(C)}", "C"), ("1,2", "2,1"), ("5", "x = 5"), (r"90^\circ", "90"),
    (r"\frac{7}{5} + \frac{1}{5}i.", r"\frac{7+i}{5}"),
]  # fmt: skip
DIFFERENT = [
    ("18", "-18"), (r"\frac{1}{2}", "0.49"), ("(1,2)", "(2,1)"), ("3", "3,5"), ("506_7", "506_8"),
    (r"\text{odd}", r"\text{even}"), ("1", r"\frac{"), ("1" * 600, "1" * 599 + "2"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL + DIFFERENT)
def test_equivalent_answers(one: str, other: str) -> None:
    assert equivalent(one, other) == equivalent(other, one) == ((one, other) in EQUAL)


def test_equivalent_answers_off_the_main_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.map(equivalent, ["1/2"] * 2, ["0.5", "0.6"])) == [True, False]


def test_methods_that_rewrite_texts(tmp_path: Path) -> None:
    engine, benchmark = with_template(pair("qwen3")), load("gsm8k", tmp_path)
    seen: list[str] = []
    method = METHODS["numerologic"]._replace(read=lambda text: seen.append(text) or "The answer is 3.")  # type: ignore[func-returns-value]
    records = benchmark.answers(TransformersEngine(engine.model, engine.tokenizer, method))
    plain = benchmark.answers(engine)
    assert [record.correct for record in records] == [record.answer == "3" for record in records]
    assert [record.prompt_hash for record in records] == [record.prompt_hash for record in plain]
    assert sorted(seen) != sorted(outputs(plain)) and len(seen) == 5


def test_processors_take_part_in_generation(tmp_path: Path) -> None:
    class Sevens(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([seven]), 0)

    engine, benchmark = with_template(attached("qwen3"), batch_size=3), load("gsm8k", tmp_path)
    seven = engine.tokenizer.encode("7")[0]
    sevens = TransformersEngine(engine.model, engine.tokenizer, batch_size=3, processors=[Sevens()])
    assert outputs(benchmark.answers(sevens)) == ["777777"] * 5
    with sevens.base():  # the base model answers alone
        assert outputs(benchmark.answers(sevens)) != ["777777"] * 5
