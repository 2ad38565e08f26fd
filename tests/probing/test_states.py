import copy
from decimal import Decimal
from functools import partial
from unittest.mock import MagicMock

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ani import AniConfig, attach
from ani.chat import rendered
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.injection.model_parts import decoder_layers
from ani.numbers import NumberScanner
from ani.probing import states as states_module
from ani.probing.states import NumberStates
from tests.probing.planted import sentence
from tests.refusals import refused
from tests.tiny import LAYERS, pair, tiny, tokenizer_of
from tests.tokenizers import QWEN3, gemma_like

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


@pytest.mark.parametrize("family", ["gemma", "qwen3"])  # layers of two kinds
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


@pytest.mark.parametrize("family", ["gemma", "qwen3"])
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
    tokenizer = copy.copy(gemma_like())
    tokenizer.chat_template = template and "{{ '3 messages:' }}" + template  # a number of the template's own
    model, _ = pair("gemma", tokenizer)
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


def test_roles_are_balanced_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = pair("gemma")
    many = [sentence(f"Room {i}", "nominal") for i in range(30)]
    many += [sentence(f"{i} m", "quantitative") for i in range(9)]

    def kept(**settings: int) -> list[int]:
        return [number.sentence for number in number_states(model, tokenizer, many, layers=[0], **settings).numbers]

    assert len(kept()) == 18 and kept()[9:] == list(range(30, 39))
    assert kept() == kept(seed=0) == sorted(kept()) != kept(seed=1)
    monkeypatch.setattr(states_module, "MAX_NUMBERS", 7)
    assert [index < 30 for index in kept()] == [True] * 3 + [False] * 3


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny("gemma", attention_dropout=0.5).train(), tokenizer_of("gemma")
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def as_it_was() -> bool:
        hooks = any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
        return not hooks and all(module.training for module in model.modules())

    found = number_states(model, tokenizer, MIXED)
    assert as_it_was() and all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(decoder_layers(model)[2], "forward", MagicMock(side_effect=RuntimeError))
        number_states(model, tokenizer, MIXED)
    assert as_it_was()
    expected = one_by_one(model.eval(), tokenizer, MIXED, found)  # without dropout
    torch.testing.assert_close(found.states, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("sentences", "layers", "word"),
    [
        (MIXED, [0, 5], "layer 5"),
        (MIXED, [1, 2, 1], "[1, 1, 2]"),
        ([], None, "sentences"),
        ([sentence("None at all")], None, "no number"),
        (MIXED[:1] * 3, None, "nominal"),
    ],
)
def test_bad_layers_and_sentences(sentences: list[DiagnosticSentence], layers: list[int] | None, word: str) -> None:
    refused(lambda: number_states(*pair("gemma"), sentences, layers=layers), word)


def test_an_attached_model_is_refused() -> None:
    model, tokenizer = pair("gemma")
    attach(model, tokenizer, AniConfig(layer=1, gate_hidden_size=8))
    refused(lambda: number_states(model, tokenizer, MIXED), "detach")
