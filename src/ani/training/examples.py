"""Loads, tokenizes and orders a recipe's training examples."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedTokenizerBase

from ani.data.collator import TokenizedExample, tokenize
from ani.data.records import Example
from ani.errors import InputError
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS
from ani.roles import Role
from ani.training.recipe import Recipe

NOTHING = -1
"""Index of the example that fills up the last step of several processes."""


def load_examples(recipe: Recipe) -> list[Example]:
    """Training examples of the recipe, source after source, as its method writes them; all from training splits."""
    seed = recipe.seed if recipe.data_seed is None else recipe.data_seed
    examples: list[Example] = []
    for source in recipe.data:
        examples += source.examples(seed)
    return [example.written(METHODS[recipe.method].write) for example in examples]


def decisions_by_role(rows: Sequence[TokenizedExample], locator: NumberLocator) -> Counter[Role]:
    """Count the tokens at which the module injects in training, by the role of the number: at the numbers of answers
    the role is unknown, and a policy may hide them."""
    counts: Counter[Role] = Counter()
    for row in rows:
        text = row.input_ids[: row.prompt_length] if locator.hides_response else row.input_ids
        counts.update(Role(row.roles[number.last_token]) for number in locator.find(text).values())
    return counts


def check_gate(gate: str, seen: Mapping[Role, int]) -> None:
    """Raise InputError if a gate would be trained on numbers of one role (`decisions_by_role`). Numbers of unknown role
    may be of both, but teach nothing to a gate that learns from roles."""
    missing = [role for role in (Role.NOMINAL, Role.QUANTITATIVE) if not seen[role]]
    if gate != "open" and missing and (gate != "learned" or not seen[Role.UNKNOWN]):
        names = " and no ".join(role.name.lower() for role in missing)
        raise InputError(
            f"the gate (ani.gate={gate}) would learn from no {names} number, so it could not tell the roles apart: add "
            "data with both in its prompts ('roles' in JSON Lines, kind: diagnostic, or kind: labelled)"
        )


def tokenized_examples(
    examples: list[Example], tokenizer: PreTrainedTokenizerBase, locator: NumberLocator | None, max_length: int
) -> list[TokenizedExample]:
    """Tokenize examples, leaving out those whose prompts fill `max_length`, because their loss would be 0 / 0. Raises
    InputError if none is left."""
    tokenized = [tokenize(example, tokenizer, locator, max_length) for example in examples]
    kept = [example for example in tokenized if example.prompt_length < len(example.input_ids)]
    left_out = len(tokenized) - len(kept)
    if not kept:
        raise InputError(
            f"every prompt fills training.max_length={max_length} tokens; raise it" if left_out else "the data is empty"
        )
    if left_out:
        warnings.warn(
            f"{left_out} of {len(tokenized)} examples are left out: their prompts fill training.max_length="
            f"{max_length} tokens",
            stacklevel=2,
        )
    return kept


class Examples(Dataset[TokenizedExample]):
    """Tokenized examples; index `NOTHING` gives one without a number or a token to learn."""

    def __init__(self, examples: list[TokenizedExample], pad_id: int) -> None:
        self.examples = examples
        self.nothing = TokenizedExample([pad_id], 1, [Role.UNKNOWN])

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> TokenizedExample:
        return self.nothing if index == NOTHING else self.examples[index]


class LengthGroupedSampler(Sampler[int]):
    """Random order in which the rows of a batch have similar lengths, so that there is little padding.

    The order depends on seed and epoch alone, so that a resumed run sees the remaining rows in the same order.
    `NOTHING` fills it up to a multiple of `multiple` rows: the processes of a step take equal parts of it.
    """

    POOL = 32
    """Number of batches whose rows are sorted together: fewer are more random, more have less padding."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, multiple: int = 1) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.filling = -len(lengths) % multiple
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
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
