"""Loads, tokenizes and orders a recipe's training examples."""

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from rich.console import Console
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedTokenizerBase

from ani.data.collator import TokenizedExample, tokenize
from ani.data.sources import Example
from ani.errors import InputError
from ani.evaluation.engines import Engine
from ani.files import replacing_file
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS
from ani.numbers import find_numbers
from ani.roles import Role, RoleName
from ani.terminal import counting
from ani.text_files import json_lines
from ani.training.recipe import Recipe

ANSWER = 32
"""Tokens of an answer that the model itself gives to an example without a completion."""
NOTHING = -1
"""Index of the example that stands where a process has none left."""


def load_examples(recipe: Recipe) -> list[Example]:
    """The recipe's training examples, source after source, as its method writes them; all from training splits."""
    seed = recipe.seed if recipe.data_seed is None else recipe.data_seed
    examples: list[Example] = []
    for source in recipe.data:
        examples += source.examples(seed)
    if recipe.ani is not None and recipe.ani.gate in ("supervised", "fitted") and recipe.ani.values != "pending":
        _check_roles(examples, recipe.ani.gate)
    return [example.written(METHODS[recipe.method].write) for example in examples]


def _check_roles(examples: list[Example], gate: str) -> None:
    known = {role for example in examples for role in example.roles or ()} - {None}
    if missing := sorted({"nominal", "quantitative"} - known):
        raise InputError(
            f"ani.gate={gate} learns from numbers' roles, but the data has no {' and no '.join(missing)} number; "
            "add data that tells them ('roles' in JSON Lines, or kind: diagnostic or labelled)"
        )


def answered(examples: list[Example], engine: Engine, file: Path, console: Console) -> list[Example]:
    """The examples, those without a completion with the model's own greedy answer, of at most `ANSWER` tokens.

    All of their numbers are nominal: the answer shall stay as it is, and so no value is meant in it, be it right or
    wrong what the model calculates. The answers are written to `file`, and read from it where a run goes on.
    """
    open_ones = [place for place, example in enumerate(examples) if not example.completion]
    if not open_ones:
        return examples
    if file.is_file():
        texts = [line["answer"] for _, line in json_lines(file)]
    else:
        prompts, texts = [examples[place].prompt for place in open_ones], [""] * len(open_ones)
        # Prompts of similar length make a batch, so that little is padded.
        order = sorted(range(len(prompts)), key=lambda index: len(str(prompts[index])))
        with engine.base(), counting(console, "answers of the base model", len(prompts)) as count:
            for position, text in engine.generate([prompts[index] for index in order], ANSWER, batch_size=64):
                texts[order[position]] = text
                count(1)
        with replacing_file(file) as written:
            written.writelines(json.dumps({"answer": text}) + "\n" for text in texts)
    nominal: RoleName = "nominal"
    for place, text in zip(open_ones, texts, strict=True):
        example = examples[place]
        last = example.prompt if isinstance(example.prompt, str) else example.prompt[-1]["content"]
        examples[place] = example._replace(completion=text, roles=(nominal,) * len(find_numbers(last)))
    return [example for example in examples if example.completion]


def tokenized_examples(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, locator: NumberLocator | None, max_length: int
) -> list[TokenizedExample]:
    """Tokenized examples, without those that `max_length` leaves no token to learn: their loss would be 0 / 0."""
    tokenized = [tokenize(example, tokenizer, locator, max_length) for example in examples]
    kept = [example for example in tokenized if example.prompt_length < len(example.input_ids)]
    left_out = len(tokenized) - len(kept)
    if not kept:
        raise InputError(
            f"no example keeps a completion within training.max_length={max_length} tokens; raise it"
            if left_out
            else "the data holds no examples"
        )
    if left_out:
        warnings.warn(
            f"{left_out} of {len(tokenized)} examples are left out: their prompts fill training.max_length="
            f"{max_length} tokens",
            stacklevel=2,
        )
    return kept


class Examples(Dataset[TokenizedExample]):
    """The examples; at `NOTHING` one without a number or anything to learn."""

    def __init__(self, examples: list[TokenizedExample], pad_id: int) -> None:
        self.examples = examples
        self.nothing = TokenizedExample([pad_id], 1, [Role.UNKNOWN])

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> TokenizedExample:
        return self.nothing if index == NOTHING else self.examples[index]


class LengthGroupedSampler(Sampler[int]):
    """Random order in which the rows of a batch have similar lengths, so that little is padded.

    The order depends on seed and epoch alone: a resumed run skips what it has seen and meets the rest as before. The
    processes take its batches in turn; `NOTHING` fills up the last round, so that all of them have a batch.
    """

    POOL = 32
    """Batches whose rows are sorted together; the smaller, the more random, the larger, the less padding."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, processes: int = 1) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.filling = -len(lengths) % (batch_size * processes) if processes > 1 else 0
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; the Trainer calls it."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) + self.filling

    def __iter__(self) -> Iterator[int]:
        random = Random(f"{self.seed} {self.epoch}")
        order = list(range(len(self.lengths)))
        random.shuffle(order)
        pool = self.POOL * self.batch_size
        batches: list[list[int]] = []
        for start in range(0, len(order), pool):
            rows = sorted(order[start : start + pool], key=lambda row: self.lengths[row])
            batches += [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        # A batch that isn't full must stay the last one, or the batches after it would be cut elsewhere.
        last = [batches.pop()] if batches and len(batches[-1]) < self.batch_size else []
        random.shuffle(batches)
        return (row for batch in [*batches, *last, [NOTHING] * self.filling] for row in batch)
