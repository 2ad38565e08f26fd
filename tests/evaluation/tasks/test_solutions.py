from functools import partial
from pathlib import Path

import pytest
import torch

from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.solutions import Solutions, token_kinds
from ani.injection.attach import last_decision, number_locator
from tests.answers import answers_of
from tests.json_lines import write_lines
from tests.refusals import refused
from tests.tiny import attached, logits_of, pair


def test_losses_are_the_models_and_the_base_models_by_kind(tmp_path: Path) -> None:
    model, tokenizer = attached("llama", values="pending", policy="after", gate="open")
    data = write_lines(
        tmp_path / "solved.jsonl",
        {"question": "How many?", "answer": "There are 12 + 30 = <<12+30=42>>42 of them. 5 * 5 = 24 is wrong."},
        {"problem": "What is $x$?", "solution": "It is $3 \\times 4 = 12$."},
    )
    task = Solutions.asked(limit=5, data=str(data))
    questions = task.questions(seed=0)
    assert sorted(question.text for question in questions) == [
        "Q: How many?\nA: There are 12 + 30 = 42 of them. 5 * 5 = 24 is wrong.",
        "Q: What is $x$?\nA: It is $3 \\times 4 = 12$.",
    ]
    backend = TransformersEngine(model, tokenizer)
    records = answers_of(task, backend, questions)
    base, _ = pair("llama")
    for question in questions:
        row = backend.ids(question.text)
        kinds = token_kinds(number_locator(model), row)
        written = [row[token] for token, kind in enumerate(kinds) if kind == "result"]
        assert tokenizer.decode(written).split() == ["42" if "How" in question.text else "12"]
        found = {each.kind: each for each in records if each.solution == question.place}
        assert {kind: kinds.count(kind) for kind in found} | {"other": kinds.count("other") - 1} == {
            kind: each.tokens for kind, each in found.items()
        }
        for one, key in ((model, "loss"), (base, "base_loss")):
            ids = torch.tensor([row])
            losses = -logits_of(one, ids)[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            for kind, each in found.items():
                wanted = sum(float(loss) for loss, of in zip(losses, kinds[1:], strict=True) if of == kind)
                assert getattr(each, key) == pytest.approx(wanted, rel=1e-4)
        for one, key in ((model, "end"), (base, "base_end")):
            probable = logits_of(one, torch.tensor([row]))[0].softmax(-1)[:, tokenizer.eos_token_id].tolist()
            wanted = sum(probable[token - 1] for token, kind in enumerate(kinds) if kind == "behind")
            assert getattr(found["behind"], key) == pytest.approx(wanted, rel=1e-4)
    assert sum(each.tokens for each in records if each.kind == "behind") >= 2
    summary = task.summary(records)
    assert summary["all"]["tokens"] == sum(each.tokens for each in records)
    table, ends = task.tables(records)
    assert next(row[0].text for row in table.rows) == "all" and len(ends.rows[0]) == 2
    assert summary["end"] == pytest.approx([sum(getattr(r, key) for r in records if r.end is not None) /
        sum(r.tokens for r in records if r.kind == "behind") for key in ("base_end", "end")])  # fmt: skip
    for record in ({"question": "How many?"}, 5):
        bad = Solutions(data=str(write_lines(tmp_path / "bad.jsonl", record)))
        refused(partial(bad.questions, 0), "bad.jsonl", "'problem' and 'solution'")


def test_a_value_ends_behind_it_and_behind_a_full_stop_or_comma() -> None:
    model, tokenizer = attached("llama", values="pending", policy="after")
    for text, behind in (("3 + 4 = 7. A", ". A"), ("3 + 4 = 7, A", ", A"), ("3 + 4 = 7.", "."), ("3 + 4 = 7 A", " A")):
        row = tokenizer(text)["input_ids"]
        kinds = token_kinds(number_locator(model), row)
        assert tokenizer.decode([token for token, kind in zip(row, kinds, strict=True) if kind == "behind"]) == behind


def test_gates_are_read_before_the_tokens(tmp_path: Path) -> None:
    model, tokenizer = attached("llama", values="pending", policy="after")
    answer = "There are 12 + 30 = 42 of them. 5 * 5 = 24 is wrong."
    data = write_lines(tmp_path / "solved.jsonl", *({"question": f"Q{i}", "answer": answer} for i in range(3)))
    backend, task = TransformersEngine(model, tokenizer), Solutions(data=str(data))
    questions = task.questions(seed=0)
    records = answers_of(task, backend, questions)
    assert all(bool(each.gates) == (each.kind != "other") for each in records)
    for question in questions:
        row = backend.ids(question.text)
        model(input_ids=torch.tensor([row]))
        numbers, injection = last_decision(model)
        kinds = token_kinds(number_locator(model), row)
        wanted = {kind: [] for kind in ("result", "behind", "instead")}
        for token, z in zip(numbers.positions.tolist(), injection.logits.tolist(), strict=True):
            if token + 1 < len(row):
                wanted[kinds[token + 1]].append(z)
        for each in records:
            if each.solution == question.place and each.kind != "other":
                assert each.gates == pytest.approx(wanted[each.kind])
    given = [each.model_copy(update={"gates": [-1.0 if each.kind == "instead" else 2.0]}) for each in records]
    found = task.summary([each for each in given if each.kind != "other"])["gates"]
    assert (found["open"]["share"], found["shut"]["share"], found["auc"]) == (1, 1, 1)
    assert len(task.tables(records)) == 3
