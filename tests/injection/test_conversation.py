import json
from pathlib import Path
from typing import Any

import pytest

import ani
from ani.injection.inspection import conversation_text, inspect_pending
from ani.models import load_model, load_tokenizer
from tests import test_cli
from tests.refusals import refused
from tests.tiny import attached

run = test_cli.run

CHAT = [{"role": "user", "content": "What is 12 + 30?"}, {"role": "assistant", "content": "It is 42."}]


@pytest.mark.parametrize("values", ["pending", "both"])
def test_each_token_says_what_is_due_behind_it(values: str) -> None:
    model, tokenizer = attached("qwen3", values=values, policy="after", gate="open")
    text = conversation_text(tokenizer, json.dumps(CHAT))
    found = inspect_pending(model, tokenizer, text, special=True)
    assert all(text[each.start : each.start + len(each.text)] == each.text for each in found if "\0" not in each.text)
    assert {(each.kind, each.asked) for each in found} == {("arithmetic", "12 + 30")}
    due = {text[: each.start + len(each.text)]: each.due for each in found}
    assert due[text[: text.index("It is") + 5]] == "42" and due[text[: text.index("2.") + 1]] == ""
    assert all(each.injected == (each.alpha > 0.5) for each in found)
    assert inspect_pending(model, tokenizer, "No sum at all") == []


def test_the_command_shows_a_conversation(run: test_cli.Run, tiny_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(tiny_model), dtype="float32"), load_tokenizer(str(tiny_model))
    ani.attach(model, tokenizer, ani.AniConfig(layer=1, values="pending"))
    ani.save_adapter(model, tmp_path / "adapter")
    options = ["--model", tiny_model, "--adapter", tmp_path / "adapter"]
    shown: dict[str, Any] = json.loads(run("inspect", json.dumps(CHAT), "--chat", "--json", *options).out)
    assert [each["due"] for each in shown["tokens"]] == [
        each.due for each in inspect_pending(model, tokenizer, shown["text"], special=True)
    ]
    assert "12 + 30" in run("inspect", "12 + 30 =", *options).out
    both = load_model(str(tiny_model), dtype="float32")
    ani.save_adapter(ani.attach(both, tokenizer, ani.AniConfig(layer=1, values="both")), tmp_path / "both")
    options[-1] = tmp_path / "both"
    found = json.loads(run("inspect", "12 + 30 =", "--json", *options).out)
    assert [each["text"] for each in found["numbers"]] == ["12", "30"] and found["tokens"][-1]["due"] == "42"
    printed = run("inspect", "12 + 30 =", *options).out
    assert "12 + 30" in printed and "number" in printed
    refused(lambda: conversation_text(tokenizer, '[{"role": "user"}]'), "each with 'role' and 'content'")
