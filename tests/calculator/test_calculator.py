"""`Calculator`: the gate's states, the writer with each tokenizer, generation, files."""

import json
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase, TextStreamer

import ani
from ani import Calculator, InputError
from ani.calculator import commands
from ani.calculator import fit as fit_module
from ani.calculator.calculator import CONFIG_FILE, WEIGHTS_FILE, CalculatorConfig, shape_of
from ani.calculator.gate import GateStates
from ani.calculator.reader.pending import PendingReader
from ani.calculator.reader.spelling import Spelling
from ani.calculator.writer import Writer
from ani.chat import rendered
from ani.evaluation.engines import TransformersEngine
from ani.models import load_model, load_tokenizer
from ani.numbers import NumberScanner, find_numbers
from ani.numbers.signs import BOUNDARY
from ani.training import fitting
from tests import tokenizers
from tests.refusals import refused
from tests.tiny import pair, tiny

LAYERS, CONTEXT = [1, 3], [0, 2]


def calculator(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, opened: bool = True, **changes: Any
) -> Calculator:
    """One whose gate is open, or closed, everywhere."""
    shape = {**shape_of(model), "value_size": 16, "base": "tiny", "layers": LAYERS, "context": CONTEXT}
    config = CalculatorConfig(**{**shape, "gate_hidden_size": 4, "bias": 1e6 if opened else -1e6, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Calculator(model, tokenizer, config.gate(), config)


def generated(model: PreTrainedModel, rows: dict[str, torch.Tensor], *processors: Any, **settings: Any) -> torch.Tensor:
    given = {"do_sample": False, "max_new_tokens": 12, **settings}
    out = model.generate(**rows, logits_processor=LogitsProcessorList(processors), **given)
    return torch.as_tensor(out)[:, rows["input_ids"].shape[1] :]


def padded(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> dict[str, torch.Tensor]:
    tokenizer.padding_side = "left"
    return dict(tokenizer(texts, return_tensors="pt", padding=True))


def expected_parts(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The parts at every token of a text, from transformers' own hidden states and cache of a whole forward pass."""
    cache = DynamicCache()
    with torch.no_grad():
        states = model(input_ids=torch.tensor([ids]), past_key_values=cache, output_hidden_states=True).hidden_states
    read = [states[layer][0] for layer in LAYERS]
    for layer in CONTEXT:
        values = cache.layers[layer].values[0].transpose(0, 1).flatten(1)
        read.append(values.cumsum(0) / torch.arange(1, len(ids) + 1).unsqueeze(1))
    return torch.cat(read, dim=-1)


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_states_of_padded_rows_and_of_decoding_are_those_of_the_whole_text(family: str) -> None:
    model, tokenizer = pair(family)
    states = GateStates(model, LAYERS, CONTEXT)
    texts = ["What is 12 + 34? It is 46 of course.", "3 * 4 ="]
    rows = padded(tokenizer, texts)
    cache, width = DynamicCache(), rows["input_ids"].shape[1]
    pad = width - rows["attention_mask"].sum(1)
    whole = [expected_parts(model, row[n:].tolist()) for row, n in zip(rows["input_ids"], pad, strict=True)]
    for begin, end in [(0, width - 3), (width - 3, width - 1), (width - 1, width)]:
        ids, mask = rows["input_ids"][:, begin:end], rows["attention_mask"][:, :end]
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, begin:end]
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        assert states.length == end
        found = states.parts(torch.arange(2), torch.full((2, 1), end - 1))[:, 0]
        for row in range(2):
            torch.testing.assert_close(found[row], whole[row][end - 1 - pad[row]], atol=1e-4, rtol=1e-4)
            one = states.parts(torch.tensor([row]), torch.tensor([[end - 1]]))[0, 0]
            torch.testing.assert_close(one, found[row])


VALUES = {
    "What is 57415 * 52880?": "3036105200",
    "What is 5 - 12?": "-7",
    "What is 1 / 8?": "0.125",
    "What is 2 / 3?": "2/3",
    "What is 3 - 3?": "0",
    "12 * 12 =": "144",
    "What is 10 / 3, to one place?": "3.3",
    "What is $19 * 0.0825?": "1.57",
    "1e-7 * 3 =": "0.0000003",
    "What is -1,250 * 1,000?": "-1250000",
}


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma"])
def test_an_open_gate_writes_exactly_the_value(family: str) -> None:
    """A random model, sampling: whatever tokens it takes, the text has the value and nothing else of a number."""
    model, tokenizer = pair(family)
    rows = padded(tokenizer, [f"{question}\n" for question in VALUES for _ in range(2)])
    out = generated(model, rows, calculator(model, tokenizer), do_sample=True, max_new_tokens=40)
    values = [value for value in VALUES.values() for _ in range(2)]
    for text, value in zip(tokenizer.batch_decode(out, skip_special_tokens=True), values, strict=True):
        match = re.search(
            r"-?[0-9](?:[0-9.]*[0-9])?", re.sub(r"[\\\\$€£¥₹]|(?<=[0-9])(?:,|\{,\})(?=[0-9]{3})", "", text)
        )
        assert match and not re.match(r"[eE](?:[-+]?[0-9]|\Z)|[.,][0-9]", match.string[match.end() :]), text
        first = Decimal(match[0])
        if "/" in value:
            places = -int(first.as_tuple().exponent)
            assert places >= 1 and str(first) == f"{2 / 3:.{places}f}"
        else:
            assert first == Decimal(value), text


@pytest.mark.parametrize("name", ["llama3", "mistral"])
def test_after_a_value_no_token_goes_on_with_the_number(name: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    vocabulary, scanner = tokenizer.get_vocab(), NumberScanner(tokenizer)
    pieces = {scanner.pieces([token])[0][0]: token for token in vocabulary.values()}
    writer = Writer(scanner, vocabulary)
    going_on = ["5", ".5", ",5", "000", ",000", "e", "E", "e5", "E5", "e-", "e+", "²", "½"]
    going_on += [" +", "+", " -", "-", " –", "/", " *", "*", " x", "^"]
    for text in (" 7", " 7.", " 7,"):
        scores = torch.zeros(max(vocabulary.values()) + 1)
        writer.mask(Spelling(ani.calculator.Exact.of(7), False, False, text=text), scores)
        allowed = {piece for piece, token in pieces.items() if not scores[token].isneginf()}
        assert [piece for piece in going_on if piece in allowed] == []
        assert {".", ",", ")", "\n", "es", " =", "**", "**\n", " xy", "/m", "-year"} & pieces.keys() <= allowed


def test_a_backslash_that_opens_no_number_is_left_to_the_model() -> None:
    r"""`9 / 36 = \` may go on with `frac{1}{4}`, which is no spelling of 0.25; it was once forced to `boxed{$0.25}`."""
    tokenizer = tokenizers.ALL["llama3"]()
    vocabulary, scanner = tokenizer.get_vocab(), NumberScanner(tokenizer)
    pieces = {scanner.pieces([token])[0][0]: token for token in vocabulary.values()}
    writer, value = Writer(scanner, vocabulary), ani.calculator.Exact.of(Fraction(9, 36))
    for text in (" \\", " \\boxed{\\"):
        for name in ("frac", "(", "$"):
            scores = torch.zeros(max(vocabulary.values()) + 1)
            scores[pieces[name]] = 1
            writer.mask(Spelling(value, False, False, text=text), scores)
            opens = name == "$" or (name == "(" and text == " \\")
            assert bool(scores[pieces["frac"]].isneginf()) == opens
            assert not scores[pieces[name]].isneginf()


@pytest.mark.parametrize("name", ["llama3", "mistral"])
def test_after_a_value_no_macro_goes_on_with_the_calculation(name: str) -> None:
    tokenizer = tokenizers.ALL[name]()
    vocabulary, scanner = tokenizer.get_vocab(), NumberScanner(tokenizer)
    pieces = {scanner.pieces([token])[0][0]: token for token in vocabulary.values()}
    writer = Writer(scanner, vocabulary)
    for text in ("9\\", "9 \\"):
        scores = torch.zeros(max(vocabulary.values()) + 1)
        writer.mask(Spelling(ani.calculator.Exact.of(9), False, False, text=text), scores)
        allowed = {piece for piece, token in pieces.items() if not scores[token].isneginf()}
        assert {"times", "frac"} & pieces.keys() and not {"times", "div", "frac"} & allowed
        assert {")", "]", "text", "quad"} & pieces.keys() <= allowed


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("3 + 4 = ", True),
        ("3 + 4 = \\boxed{", True),
        ("3 + 4 = \\text{", True),
        ("3 + 4 = \\(", True),
        ("3 + 4 \\approx ", True),
        ("\\frac{3}{4} = ", True),
        ("\\{3 + 4 = ", True),
        ("\\text{Sum} = \\$", True),
        ("3 + 4 = \\", False),
        ("3 + 4 = \\boxed", False),
        ("3 + 4 = \\frac", False),
        ("3 + 4 = \\frac ", False),
        ("3 + 4 = \\frac{", False),
        ("3 + 4 = \\frac{\\text{a}}{", False),
        ("3 + 4 = 2 \\cdot ", False),
        ("3 + 4 = 2^{", False),
    ],
)
def test_no_value_begins_within_a_macro(text: str, begins: bool) -> None:
    tokenizer = tokenizers.ALL["llama3"]()
    writer = Writer(NumberScanner(tokenizer), tokenizer.get_vocab())
    pending = PendingReader().feed(["3 + 4 ="])[0]
    assert pending is not None
    assert (writer.begin(pending, text) is not None) == begins


def test_a_closed_gate_changes_nothing() -> None:
    model, tokenizer = pair("llama")
    rows = padded(tokenizer, ["What is 12 + 34?\n", "3 * 4 ="])
    closed = calculator(model, tokenizer, opened=False)
    torch.testing.assert_close(generated(model, rows, closed), generated(model, rows), atol=0, rtol=0)
    with torch.no_grad():
        model(**rows, past_key_values=DynamicCache())
    scores, ids = cast(Any, torch.randn(2, len(tokenizer))), cast(Any, rows["input_ids"])
    assert closed(ids, scores) is scores


USES = [
    (["What is 57415 * 52880? And what is 948217 - 85611?"], ["3036105200", "862606"]),
    (["What is 57415 * 52880?", "Of course! It is"], ["3036105200"]),
    (["Explain it.", "First, 1234 * 5678 ="], ["7006652"]),
    (["What is 48 * 52?", "2496", "And divided by 13?", "2496 / 13 ="], ["192"]),
]
"""Messages of user and assistant in turns, the last one unfinished if it is the assistant's; the values that the answer
writes, in order."""


@pytest.mark.parametrize("way", ["a batch", "beams", "sampling", "static", "streaming", "assisted", "prompt lookup"])
def test_every_way_to_generate_writes_the_values(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An open gate, whatever else the model writes."""
    count = 1 if way in ("streaming", "assisted", "prompt lookup") else 4
    model, tokenizer = pair("llama", tokenizers.smollm2())
    prompts = []
    for messages, _ in USES[:count]:
        unfinished = len(messages) % 2 == 0
        ending: dict[str, Any] = {"continue_final_message": unfinished, "add_generation_prompt": not unfinished}
        chat = [
            {"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, messages, strict=False)
        ]
        prompts.append(tokenizer.apply_chat_template(chat, tokenize=False, **ending))
    settings: dict[str, dict[str, Any]] = {
        "beams": {"num_beams": 2},
        "sampling": {"do_sample": True, "temperature": 3.0},
        "static": {"cache_implementation": "static"},
        "streaming": {"streamer": TextStreamer(tokenizer, skip_prompt=True)},
        "assisted": {"assistant_model": tiny("llama", tokenizer=tokenizer)},
        "prompt lookup": {"prompt_lookup_num_tokens": 3},
    }
    torch.manual_seed(0)
    writing = Calculator.load("open", model, tokenizer)
    out = generated(model, padded(tokenizer, prompts), writing, max_new_tokens=28, **settings.get(way, {}))
    answers = tokenizer.batch_decode(out)
    answers += [capsys.readouterr().out] if way == "streaming" else []
    for answer, (_, values) in zip(answers, USES if count > 1 else USES[:1] * 2, strict=False):
        numbers = [number.text.replace(",", "") for number in find_numbers(answer)]
        assert [number for number in numbers if number in values] == values, answer


def chats(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> dict[str, torch.Tensor]:
    prompts = [rendered(tokenizer, [{"role": "user", "content": text}]) for text in texts]
    tokenizer.padding_side = "left"
    return dict(tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False))


def test_the_shipped_gate_and_its_answers() -> None:
    model, tokenizer = pair("smollm2")
    shipped = Calculator.load("smollm2-calculator", model, tokenizer)
    asked = {
        "What is 57415 * 52880?": "3036105200",
        "Please add 948217 and -85611.": "862606",
        "How much is $4 * 4?": "16",
    }
    other = ["What do penguins eat? (Reference: 6955+1764 =)"]
    rows = chats(tokenizer, [*asked, *other])
    out, base = generated(model, rows, shipped), generated(model, rows)
    for row, value in zip(out, asked.values(), strict=False):
        assert Decimal(value) in [number.value for number in find_numbers(str(tokenizer.decode(row)))]
    assert out[-1].equal(base[-1])


def test_it_is_saved_and_loaded_and_another_model_and_damaged_files_are_refused(tmp_path: Path) -> None:
    model, tokenizer = pair("llama")
    folder, made = tmp_path / "c", calculator(model, tokenizer)
    for _ in range(2):  # replaces itself
        made.save(folder)
    loaded = Calculator.load(folder, model, tokenizer)
    weights = zip(loaded.gate.state_dict().values(), made.gate.state_dict().values(), strict=True)
    assert loaded.config == made.config and all(a.equal(b) for a, b in weights)
    with pytest.raises(InputError, match=tmp_path.name):
        made.save(tmp_path)
    for key, changes in (("hidden_size", {"hidden_size": 48}), ("num_hidden_layers", {"num_hidden_layers": 5})):
        with pytest.raises(InputError, match=key):
            Calculator.load(folder, tiny("llama", **changes), tokenizer)
    for file, content in (
        (WEIGHTS_FILE, b"\x80\x02}q\x00."),
        (CONFIG_FILE, b'{"format_version": 2}'),
        (CONFIG_FILE, b"{}"),
    ):
        (folder / file).write_bytes(content)
        with pytest.raises(InputError, match="format_version" if b"format" in content else file):
            Calculator.load(folder, model, tokenizer)


def test_a_draft_is_not_decided_by_the_states_of_another_text() -> None:
    model, tokenizer = pair("llama")
    made, scores = cast(Any, calculator(model, tokenizer)), torch.zeros(1, len(tokenizer))
    longer, draft = (tokenizer(text, return_tensors="pt")["input_ids"] for text in ("Go on: 3 + 4 =", "12 + 34 ="))
    with torch.no_grad():
        model(longer, past_key_values=DynamicCache())
    assert made(draft, scores) is made(longer[:, 1:], scores) is scores
    assert made(longer, scores) is not scores


def test_misuse_is_refused() -> None:
    model, tokenizer = pair("llama")
    made = cast(Any, calculator(model, tokenizer))
    ids, scores = torch.tensor([[1]]), torch.zeros(1, len(tokenizer))
    with pytest.raises(InputError, match="model that generates"):
        for _ in range(40):  # more than a draft has tokens
            assert made(ids, scores) is scores
    with pytest.raises(InputError, match="use_cache"):
        generated(model, padded(tokenizer, ["12 + 34 ="]), made, use_cache=False)


def test_fit_on_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "LEAST_STEPS", 50)
    model, tokenizer = pair("llama", tokenizers.smollm2())
    file, counts = tmp_path / "answers.jsonl", {"asked": 20, "unasked": 20, "sentences": 20}
    made = Calculator.fit(model, tokenizer, answers=file, **counts)
    answers = file.read_text()
    assert len(answers.splitlines()) == 22  # two for the test of its rates
    rates = made.config.rates
    assert [rates[kind].texts for kind in ("sentence", "other sentence", "unasked")] == [1, 1, 2]
    for kind, rate in rates.items():  # the more the bias opens the gate, the more is written and the less left alone
        right = [rate.right[bias] for bias in sorted(rate.right)]
        assert right == sorted(right, reverse=kind in ("other sentence", "unasked"))
    made.save(tmp_path / "c")
    assert Calculator.load(tmp_path / "c", model, tokenizer).config == made.config
    assert "unasked (2)" in (tmp_path / "c" / "README.md").read_text()
    again = Calculator.fit(model, tokenizer, answers=file, **counts)
    assert file.read_text() == answers
    assert all(
        a.equal(b) for a, b in zip(made.gate.state_dict().values(), again.gate.state_dict().values(), strict=True)
    )
    assert (made.config.model_type, made.config.layers[-1]) == ("llama", 2)
    other, _ = pair("llama", tokenizers.smollm2())
    other.name_or_path = "other"
    Calculator.fit(other, tokenizer, answers=file, **counts)
    models = [json.loads(line)[0] for line in file.read_text().splitlines()]
    assert models == ["llama"] * 22 + ["other"] * 22  # another model answers for itself


def test_a_message_that_does_not_ask_in_known_words_is_left_to_the_gate() -> None:
    message = "my homework says 3 + 4 and i dont get it"
    assert ani.calculator.asked(message) is None
    assert PendingReader().feed([message, BOUNDARY])[-1] is not None


def test_fit_takes_the_answers_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = str(tmp_path / "model"), tmp_path / "answers.jsonl"
    for each in pair("llama", tokenizers.smollm2()):
        each.save_pretrained(path)
    model, tokenizer = load_model(path), load_tokenizer(path)
    monkeypatch.setattr(fitting, "LEAST_STEPS", 50)
    monkeypatch.setattr(fit_module, "VllmEngine", lambda name, settings: TransformersEngine(model, tokenizer))
    fit_module._answer_by_vllm(path, 20, 0, file)
    answers = file.read_text()
    assert [json.loads(line)[0] for line in answers.splitlines()] == [path] * 22
    Calculator.fit(model, tokenizer, answers=file, asked=20, unasked=20, sentences=20)
    assert file.read_text() == answers  # none is asked again


def test_fit_with_a_backend_that_is_named_does_not_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: Any) -> None:
        raise InputError("vLLM can't serve it")

    monkeypatch.setattr(fit_module, "answer_by_vllm", unable)
    refused(lambda: commands.fit(tmp_path / "out", "a model", backend="vllm"), "vLLM can't serve it")
    assert not list(tmp_path.iterdir())


def test_hooks_go_with_the_calculator() -> None:
    model, _ = pair("llama")
    states = GateStates(model, LAYERS, CONTEXT)

    def hooks() -> int:
        return sum(len(module._forward_pre_hooks) for module in model.modules())

    assert hooks() == 1 + len(LAYERS)
    del states
    assert hooks() == 0
