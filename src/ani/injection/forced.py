"""Exact results without a module: decoding is made to write them; knows nothing about hidden states.

What a user would otherwise do, and so the rival of `values: results` and `pending`. Nothing is trained, and nothing can
say no.
"""

from collections import defaultdict
from typing import cast

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from ani.errors import InputError
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator
from ani.numbers import NumberScanner
from ani.numbers.calculations import MAX_WRITING, WRITING, Calculation

_WRITING = frozenset(WRITING.decode())
_SYMBOLS = "-.0123456789"
"""What `Remainder.upcoming` is made of."""


class ForcedResults(LogitsProcessor):
    """Writes the exact result of every written calculation (`ani.numbers.calculations`) in `generate`:

        model.generate(**inputs, logits_processor=[ForcedResults(tokenizer)])

    Between the equals sign and the end of the result the model's scores choose among the tokens that go on with the
    result's writing, as blanks, currency sign and commas are the writer's choice. At the end they may not choose what
    would go on with the number. Elsewhere they are left as they are, bit for bit.

    It reads token ids alone: prompts, answers, batches, beams and left padding (by a special token) are all the same.
    A step reads back no further than the calculation at the end of the text.

    Args:
        tokenizer: As for `NumberScanner`.

    Raises:
        InputError: As `NumberScanner`; or the tokenizer has no token for a digit, sign, point or comma by itself.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.scanner = NumberScanner(tokenizer)
        self._tokens: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))  # by symbols, by text
        self._goes_on: list[int] = []
        for token in tokenizer.get_vocab().values():
            text = self.scanner.text([token])
            if text[:1].isascii() and (text[:1].isdigit() or (text[:1] in ".," and text[1:2].isdigit())):
                self._goes_on.append(token)
            if text and _WRITING.issuperset(text):
                self._tokens[_symbols(text)][text].append(token)
        self._longest = max(map(len, self._tokens))
        for character in (*_SYMBOLS, ","):
            if character not in self._tokens[_symbols(character)]:
                raise InputError(
                    f"{type(tokenizer).__name__} has no token {character!r}: results can't be written in it"
                )

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores (rows, vocabulary) of the next token after `input_ids` (rows, length)."""
        scores = cast(torch.FloatTensor, scores.clone())
        for ids, row in zip(input_ids.cpu(), scores, strict=True):
            last = len(ids) - 1
            result = self.scanner.scan_results(ids, last).get(last)
            if result is None:
                # What ends a sentence may still become a decimal point.
                if last and self.scanner.text(ids[last:]) in (".", ","):
                    result = self.scanner.scan_results(ids[:last], last - 1).get(last - 1)
                    if result is not None and not result.upcoming:
                        row[self._goes_on] = -torch.inf
            elif result.upcoming:
                written = self.scanner.text(ids[-MAX_WRITING - 1 :]).rpartition("=")[2]
                allowed = self._going_on(result.calculation, written, result.upcoming)
                chosen = row[allowed]
                row.fill_(-torch.inf)
                row[allowed] = chosen
            else:
                row[self._goes_on] = -torch.inf
        return scores

    def _going_on(self, calculation: Calculation, written: str, upcoming: str) -> list[int]:
        """The tokens with which what is written is still a beginning of the result's writing."""
        sign = "-" * upcoming.startswith("-")
        forms = {upcoming, sign + upcoming.removeprefix(sign + "0") if upcoming.startswith(sign + "0.") else upcoming}
        beginnings = {form[:length] for form in forms for length in range(self._longest + 1)}
        return [
            token
            for beginning in beginnings
            for text, tokens in self._tokens.get(beginning, {}).items()
            if calculation.upcoming(written + text) is not None
            for token in tokens
        ]


class ForcedValues(LogitsProcessor):
    """Writes every pending value (`ani.values.pending`) in place of the next number that the model begins:

        model.generate(**inputs, logits_processor=[ForcedValues(tokenizer)])

    Where a value is pending and the most likely token begins a number, or some of the value is written, only tokens
    that go on with it are left; at its end those that would go on with the number are not. A number that goes on for
    ever ends where the model ends it. Elsewhere scores stay as they are, bit for bit.

    Args:
        tokenizer: As for `NumberScanner`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.locator = NumberLocator(tokenizer, AniConfig(layer=0, values="pending"))
        self._tokens: dict[str, list[int]] = defaultdict(list)  # by text, without a blank before it
        for token in tokenizer.get_vocab().values():
            text = self.locator.scanner.text([token])
            if text and not set(text.removeprefix(" ")) - {*_SYMBOLS} and text != " ":
                self._tokens[text].append(token)
        self._numeric = {token for tokens in self._tokens.values() for token in tokens}
        self._longest = max(map(len, self._tokens), default=1)
        self._goes_on = [each for text, tokens in self._tokens.items() if text[0].isdigit() for each in tokens]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores (rows, vocabulary) of the next token after `input_ids` (rows, length)."""
        scores = cast(torch.FloatTensor, scores.clone())
        for ids, row in zip(input_ids.tolist(), scores, strict=True):
            last = len(ids) - 1
            pending = self.locator.pending(ids, start=last).get(last)
            begins = int(row.argmax()) in self._numeric
            if pending is None or not (pending.written or begins):
                continue
            digits = pending.next(self._longest)
            if not digits[0].character:
                row[self._goes_on] = -torch.inf
            elif begins or not digits[0].endless:
                due = "".join(digit.character for digit in digits)
                blanks = ("",) if pending.written else ("", " ")
                beginnings = (blank + due[:length] for blank in blanks for length in range(1, len(due) + 1))
                allowed = [token for text in beginnings for token in self._tokens.get(text, ())]
                chosen = row[allowed]
                row.fill_(-torch.inf)
                row[allowed] = chosen
        return scores


def _symbols(text: str) -> str:
    return "".join(character for character in text.replace("−", "-") if character in _SYMBOLS)
