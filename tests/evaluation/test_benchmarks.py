import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani import InputError
from ani.evaluation.benchmarks import BenchmarkRecord, evaluate_benchmark, load_benchmark
from ani.injection.methods import METHODS
from tests.tiny import attached, pair

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
    pair: tuple[PreTrainedModel, PreTrainedTokenizerBase], template: str | None = TEMPLATE
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = pair
    model.config.max_position_embeddings = 4096  # rotary: nothing else knows the length
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    return model, tokenizer


def load(name: str, folder: Path, **settings: Any) -> Any:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    return load_benchmark(name, data=str(file), **{"max_new_tokens": 6, **settings})


def outputs(records: Sequence[BenchmarkRecord]) -> list[Any]:
    return [record["output"] for record in records]


def test_written_answers_are_those_of_generate(tmp_path: Path) -> None:
    model, tokenizer = with_template(attached("qwen3"))
    counted: list[int] = []
    benchmark = load("gsm8k", tmp_path)
    records = list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=3, on_question=counted.append))
    assert sum(counted) == len(records) == 5 and len(set(outputs(records))) > 1
    texts = [message["content"] for message in _messages(benchmark, records[0])]
    assert texts[1].endswith(f"\nQ: {records[0]['question']}\nA:")
    for record in records:
        prompt = (
            f"<system>{texts[0]}\n<user>{texts[1].replace(records[0]['question'], record['question'])}\n<assistant>"
        )
        encoded = tokenizer(prompt, return_tensors="pt")
        generated = model.generate(**encoded, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(generated[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        assert record["output"] == text.split("\nQ:")[0]
    without = outputs(list(evaluate_benchmark(*with_template(pair("qwen3")), benchmark)))
    assert without != outputs(records)
    assert {record["truncated"] for record in records} == {False}
    assert [set(record) for record in records] == [
        {"task", "id", "question", "answer", "output", "prediction", "marker", "correct", "prompt_hash", "truncated"}
    ] * 5
    assert len({record["prompt_hash"] for record in records}) == 5


def _messages(benchmark: Any, record: BenchmarkRecord) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []

    def template(chat: list[dict[str, str]], add_generation_prompt: bool) -> str:
        found.extend(chat)
        return ""

    doc = next(doc for doc in benchmark.task.eval_docs if doc["id"] == record["id"])
    benchmark.task.fewshot_context(doc, 0, apply_chat_template=True, fewshot_as_multiturn=True, chat_template=template)
    return found


@pytest.mark.parametrize("config", [{}, {"layer": 0, "gate": "open", "combine": "substitute"}], ids=["ani", "fone"])
def test_log_probabilities_of_the_letters(config: dict[str, Any], tmp_path: Path) -> None:
    model, tokenizer = with_template(attached("qwen3", **config))
    benchmark = load("mmlu", tmp_path)
    counted: list[int] = []
    records = list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=4, on_question=counted.append))
    assert sum(counted) == len(records) == 16 - 2 * 5
    for record in records:
        system, user = _messages(benchmark, record)
        prompt = f"<system>{system['content']}\n<user>{user['content']}\n<assistant>"
        with torch.inference_mode():
            logits = model(tokenizer(prompt, return_tensors="pt")["input_ids"]).logits[0, -1].double().log_softmax(0)
        letters = [logits[tokenizer.encode(letter)[0]].item() for letter in "ABCD"]
        assert record["output"] == pytest.approx(letters, abs=1e-4)
        assert record["prediction"] == "ABCD"[letters.index(max(letters))]
        assert record["answer"] == "ABCD"[(record["id"] % 8 + 1) % 4]
        assert record["correct"] == (record["prediction"] == record["answer"])
        assert record["shots_from"] == "test, held out" and len(record["choices"]) == 4
    assert {record["group"] for record in records} == {"STEM", "other"}


@pytest.mark.parametrize("policy", ["terminal", "running"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_shared_prefix_changes_nothing(
    family: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = with_template(attached(family, policy=policy))
    benchmark = load("gsm8k", tmp_path, limit=4)
    alone = list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=1, share_prefix=False))
    lengths: list[int] = []
    prepare = type(model).prepare_inputs_for_generation

    def preparing(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        inputs = prepare(self, input_ids, *args, **kwargs)
        lengths.append(inputs["input_ids"].shape[1])
        return inputs

    monkeypatch.setattr(type(model), "prepare_inputs_for_generation", preparing)
    assert list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=4)) == alone
    assert 1 < max(lengths) < 200  # of a thousand


def test_a_prefix_is_not_shared_with_sliding_windows(tmp_path: Path) -> None:
    model, tokenizer = with_template(attached("gemma"))
    benchmark = load("math", tmp_path)
    records, plain = (
        list(evaluate_benchmark(model, tokenizer, benchmark, share_prefix=share)) for share in (True, False)
    )
    assert records == plain


def test_letters_are_compared_in_float32(tmp_path: Path) -> None:
    model, tokenizer = with_template(attached("qwen3"))
    model.to(torch.bfloat16)
    benchmark = load("mmlu", tmp_path, limit=2)
    for record in evaluate_benchmark(model, tokenizer, benchmark, batch_size=1):
        system, user = _messages(benchmark, record)
        prompt = f"<system>{system['content']}\n<user>{user['content']}\n<assistant>"
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            hidden = model(ids, output_hidden_states=True).hidden_states[-1][0, -1].float()
            logits = (model.lm_head.weight.float() @ hidden).log_softmax(0)
        letters = [logits[tokenizer.encode(letter)[0]].item() for letter in "ABCD"]
        assert record["output"] == pytest.approx(letters, abs=1e-4)
        assert len(set(record["output"])) == 4
    assert model(ids).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["gsm8k", "mmlu"])
def test_a_killed_run_goes_on(name: str, tmp_path: Path) -> None:
    model, tokenizer = with_template(attached("qwen3"))
    benchmark = load(name, tmp_path)
    whole = list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=2))
    file = tmp_path / "out" / "answers"
    done: list[int] = []

    def stop(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=2, answers=file, on_question=stop))
    with file.open("a") as torn:
        torn.write('["half a li')
    rest: list[int] = []
    resumed = list(evaluate_benchmark(model, tokenizer, benchmark, batch_size=2, answers=file, on_question=rest.append))
    assert resumed == whole
    assert rest[0] == 2 and sum(rest) == len(whole)  # two were there already


def test_answers_of_another_model_or_method_are_not_taken(tmp_path: Path) -> None:
    model, tokenizer = with_template(attached("qwen3"))
    benchmark = load("gsm8k", tmp_path)
    file = tmp_path / "answers"

    def begun(**settings: Any) -> int:
        """How many questions were answered when this run began."""
        counted: list[int] = []
        records = evaluate_benchmark(model, tokenizer, benchmark, answers=file, on_question=counted.append, **settings)
        next(records)
        records.close()
        return counted[0] if len(counted) < 5 else 0

    assert begun(batch_size=8) == 0
    assert begun(batch_size=3) == 5
    assert begun(method=METHODS["numerologic"]) == 0
    assert begun(method=METHODS["numerologic"]) == 5
    with torch.no_grad():
        weights = next(iter(model.parameters()))
        weights[:2] = weights[:2].flip(0)
    assert begun(method=METHODS["numerologic"]) == 0


def test_methods_that_rewrite_texts(tmp_path: Path) -> None:
    model, tokenizer = with_template(pair("qwen3"))
    seen: list[str] = []
    method = METHODS["numerologic"]._replace(read=lambda text: seen.append(text) or "The answer is 3.")  # type: ignore[func-returns-value]
    benchmark = load("gsm8k", tmp_path)
    records = list(evaluate_benchmark(model, tokenizer, benchmark, method=method))
    plain = list(evaluate_benchmark(model, tokenizer, benchmark))
    assert len(seen) == 5 and {record["output"] for record in records} == {"The answer is 3."}
    assert [record["correct"] for record in records] == [record["answer"] == "3" for record in records]
    assert {record["marker"] for record in records} == {"The answer is"}
    assert [record["prompt_hash"] for record in records] == [record["prompt_hash"] for record in plain]
    assert sorted(seen) != sorted(record["output"] for record in plain)


def test_without_a_system_role_the_text_stands_before_the_users(tmp_path: Path) -> None:
    model, tokenizer = with_template(pair("qwen3"), NO_SYSTEM)
    benchmark = load("math", tmp_path, limit=1)
    (record,) = evaluate_benchmark(model, tokenizer, benchmark)
    system, user = _messages(benchmark, record)
    encoded = tokenizer(f"<user>{system['content']}\n\n{user['content']}\n<assistant>", return_tensors="pt")
    generated = model.generate(**encoded, max_new_tokens=6, do_sample=False)
    assert record["output"] == tokenizer.decode(generated[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    assert (record["level"], record["subject"], record["prediction"]) == (record["id"] + 1, "Algebra", None)


def test_a_prompt_that_is_too_long_is_told(tmp_path: Path) -> None:
    model, tokenizer = with_template(pair("qwen3"))
    model.config.max_position_embeddings = 500
    (record,) = evaluate_benchmark(model, tokenizer, load("gsm8k", tmp_path, limit=1))
    assert record["truncated"]


def test_answers_that_leave_no_room_for_a_prompt(tmp_path: Path) -> None:
    model, tokenizer = with_template(pair("qwen3"))
    model.config.max_position_embeddings = 6
    with pytest.raises(InputError, match="up to 6 tokens to gsm8k leave no room"):
        list(evaluate_benchmark(model, tokenizer, load("gsm8k", tmp_path, limit=1)))
    with pytest.raises(InputError, match="up to 5,000 tokens to math leave no room"):
        list(evaluate_benchmark(model, tokenizer, load("math", tmp_path, max_new_tokens=5000)))


def test_no_chat_template(tmp_path: Path) -> None:
    model, tokenizer = with_template(pair("qwen3"), None)
    with pytest.raises(InputError, match="a chat template is needed for math"):
        list(evaluate_benchmark(model, tokenizer, load("math", tmp_path)))


def test_settings(tmp_path: Path) -> None:
    settings = load("gsm8k", tmp_path, limit=3).settings
    assert (settings["questions"], settings["of"], settings["generation"]["max_gen_toks"]) == (3, 5, 6)
    assert load("gsm8k", tmp_path, max_new_tokens=None, limit=100).settings["generation"]["max_gen_toks"] == 512
    assert load("mmlu", tmp_path).settings["shots_from"] == "test, held out"
