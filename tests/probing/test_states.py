import copy
from decimal import Decimal
from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani import AniConfig, attach
from ani.chat import rendered
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.injection.methods import Policy
from ani.injection.model_parts import decoder_layers
from ani.numbers import NumberScanner
from ani.probing import states as states_module
from ani.probing.states import NumberStates
from tests.probing.planted import sentence
from tests.refusals import refused
from tests.tiny import FAMILIES, LAYERS, pair, tiny
from tests.tokenizers import QWEN3, llama3

number_states = partial(states_module.number_states, policy="terminal")  # unless a test says otherwise

MIXED = [
    sentence("12 passed the ball", "nominal"),
    sentence(
        "Room 505 holds 10 people, and the 3.5 kg of bus 66 cost 1,234", *["nominal", "quantitative"] * 2, "nominal"
    ),
    sentence("It fell by -7.25 to 40", "quantitative", "quantitative"),
    sentence("In room 12 they sold 12 of it", "nominal", "quantitative"),
    sentence("No number, no state"),
]


def one_by_one(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[DiagnosticSentence],
    found: NumberStates,
    after: tuple[int, ...] = (),
) -> torch.Tensor:
    """The same states from transformers' `output_hidden_states`, sentence by sentence, with the tokens `after` it."""
    expected = torch.empty(found.states.shape)
    for column, number in enumerate(found.numbers):
        ids = torch.tensor([[*tokenizer(sentences[number.sentence].text)["input_ids"], *after]])
        with torch.inference_mode():
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
        for row, layer in enumerate(found.layers):
            expected[row, column] = hidden[layer][0, number.position]
    return expected


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_is_transformers_own(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "BATCH_TOKENS", 96)  # several batches, with padding in them
    model, tokenizer = pair(family)
    sentences = [*MIXED, *diagnostic_sentences(12, split="train")]
    seen: list[int] = []
    found = number_states(model, tokenizer, sentences, on_sentence=seen.append)
    assert sum(seen) == len({number.sentence for number in found.numbers}) and len(seen) > 1
    assert found.layers == tuple(range(LAYERS + 1))
    assert found.states.dtype == torch.float32
    assert found.states.shape == (LAYERS + 1, len(found.numbers), 32)
    torch.testing.assert_close(found.states, one_by_one(model, tokenizer, sentences, found), atol=1e-4, rtol=1e-4)
    some = number_states(model, tokenizer, sentences, layers=[LAYERS, 1])
    assert some.layers == (1, LAYERS)
    assert torch.equal(some.states, found.states[[1, LAYERS]])


def test_the_numbers_are_those_of_the_labels() -> None:
    model, tokenizer = pair("gemma")
    found = number_states(model, tokenizer, MIXED, layers=[0])
    assert {number.sentence for number in found.numbers} <= set(range(4))
    scanner = NumberScanner(tokenizer)
    for number in found.numbers:
        labelled = MIXED[number.sentence]
        scanned = scanner.scan(tokenizer(labelled.text)["input_ids"])
        index = [other.last_token for other in scanned].index(number.position)
        start, end = labelled.spans[index]
        assert number.value == abs(Decimal(labelled.text[start:end].replace(",", "")))
        assert (number.role, number.domain, number.template) == (labelled.roles[index], "rooms", labelled.text)


@pytest.mark.parametrize("policy", sorted({*get_args(Policy)} - {"after"}))
def test_most_policies_read_a_number_at_its_last_token(policy: Policy) -> None:
    model, tokenizer = pair("gemma")
    found, terminal = (number_states(model, tokenizer, MIXED, policy=each) for each in (policy, "terminal"))
    assert found.numbers == terminal.numbers and torch.equal(found.states, terminal.states)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_reads_the_token_after_a_number(family: str) -> None:
    model, tokenizer = pair(family)
    found = number_states(model, tokenizer, MIXED, policy="after")
    end = tokenizer.eos_token_id
    ids = [[*tokenizer(each.text)["input_ids"], end] for each in MIXED]
    read = [tokenizer.decode(ids[number.sentence][number.position :]).strip() for number in found.numbers]
    words = "passed holds people, kg cost <end> to <end> they of".replace("<end>", tokenizer.decode(end))
    assert [text.split()[0] for text in read] == words.split()
    expected = one_by_one(model, tokenizer, MIXED, found, after=(end,))
    torch.testing.assert_close(found.states, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("template", [QWEN3, None])
def test_a_sentence_may_be_a_users_message(template: str | None) -> None:
    tokenizer = copy.copy(llama3())
    tokenizer.chat_template = template and "{{ '3 messages:' }}" + template  # a number of the template's own
    model, _ = pair("llama", tokenizer)
    found = number_states(model, tokenizer, MIXED, chat=True)
    assert {number.sentence for number in found.numbers} == {0, 1, 2, 3}
    chats = [rendered(tokenizer, [{"role": "user", "content": each.text}]) for each in MIXED]
    ids = [tokenizer(chat, add_special_tokens=False)["input_ids"] for chat in chats]
    for column, number in enumerate(found.numbers):
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([ids[number.sentence]]), output_hidden_states=True).hidden_states
        expected = torch.stack([each[0, number.position] for each in hidden])
        torch.testing.assert_close(found.states[:, column], expected, atol=1e-4, rtol=1e-4)
        read = tokenizer.decode(ids[number.sentence][: number.position + 1])
        assert read.replace(",", "").endswith(str(number.value))


def test_numbers_that_after_cannot_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = pair("llama")
    sentences = [sentence("It (10,12) is", "nominal", "nominal"), sentence("4 or 5", "quantitative", "quantitative")]

    def values(policy: Policy) -> set[str]:
        found = number_states(model, tokenizer, sentences, policy=policy, layers=[0])
        return {str(number.value) for number in found.numbers}

    assert values("terminal") == {"10", "12", "4", "5"}
    # Both 10 and 12 end at one token, which reads the later one; so one quantity is kept next to it.
    assert {"12"} < values("after") < {"12", "4", "5"}
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = None
    assert values("after") == {"12", "4"}
    monkeypatch.setattr(states_module, "MAX_TOKENS", len(tokenizer("It (10,12")["input_ids"]))
    assert values("terminal") >= {"10", "12"}
    refused(lambda: values("after"), "quantitative")


def test_roles_are_balanced_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = pair("gemma")
    many = [sentence(f"Room {i}", "nominal") for i in range(30)] + [
        sentence(f"{i} m", "quantitative") for i in range(9)
    ]

    def kept(**settings: int) -> list[tuple[int, str]]:
        found = number_states(model, tokenizer, many, layers=[0], **settings)
        return [(number.sentence, number.role) for number in found.numbers]

    roles = [role for _, role in kept()]
    assert (roles.count("nominal"), roles.count("quantitative")) == (9, 9)
    assert [index for index, role in kept() if role == "quantitative"] == list(range(30, 39))
    assert kept() == kept(seed=0) == sorted(kept())
    assert kept(seed=1) != kept()
    monkeypatch.setattr(states_module, "MAX_NUMBERS", 7)
    fewer = kept()
    assert [role for _, role in fewer] == ["nominal"] * 3 + ["quantitative"] * 3
    assert len(set(fewer)) == 6


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", attention_dropout=0.5).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = number_states(model, llama3(), MIXED)
    assert model.training is training
    assert all(module.training is training for module in model.modules())
    assert_no_hooks(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(decoder_layers(model)[2], "forward", fail)
        with pytest.raises(RuntimeError):
            number_states(model, llama3(), MIXED)
    assert all(module.training is training for module in model.modules())
    assert_no_hooks(model)
    expected = one_by_one(model.eval(), llama3(), MIXED, found)  # without dropout
    torch.testing.assert_close(found.states, expected, atol=1e-4, rtol=1e-4)


def assert_no_hooks(model: nn.Module) -> None:
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_numbers_after_a_cut_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = pair("gemma")
    text = "Room 505 holds 10 of 98765 and 3.25 m"
    cut = [sentence(text, "nominal", "quantitative", "nominal", "quantitative")]
    ids = tokenizer(text)["input_ids"]
    ends = {str(n.value): n.last_token for n in NumberScanner(tokenizer).scan(ids)}

    def values(limit: int) -> list[str]:
        monkeypatch.setattr(states_module, "MAX_TOKENS", limit)
        return [str(number.value) for number in number_states(model, tokenizer, cut, layers=[0]).numbers]

    assert values(ends["3.25"] + 1) == values(len(ids)) == ["505", "10", "98765", "3.25"]
    # Only "3.2" or "3" is left of 3.25, and "98" of 98765: those are other numbers.
    for limit in (ends["3.25"], ends["3.25"] - 1, ends["98765"] + 1):
        assert set(values(limit)) <= {"505", "10", "98765"}
    assert values(ends["98765"] - 2) == ["505", "10"]
    refused(lambda: values(ends["10"]), "nominal")


@pytest.mark.parametrize(
    ("sentences", "layers", "word"),
    [
        (MIXED, [0, 5], "layer 5"),
        (MIXED, [-1], "layer -1"),
        (MIXED, [1, 2, 1], "[1, 1, 2]"),
        (MIXED, [], "[]"),
        ([], None, "sentences"),
        ([sentence("None at all")], None, "no number"),
        (MIXED[:1] * 3, None, "nominal"),
        (MIXED[2:3], None, "quantitative"),
    ],
)
def test_bad_layers_and_sentences(sentences: list[DiagnosticSentence], layers: list[int] | None, word: str) -> None:
    refused(lambda: number_states(*pair("gemma"), sentences, layers=layers), word)


def test_an_attached_model_is_refused() -> None:
    model, tokenizer = pair("gemma")
    attach(model, tokenizer, AniConfig(layer=1, gate_hidden_size=8))
    refused(lambda: number_states(model, tokenizer, MIXED), "detach")
