"""Method `forced`: a logits processor that writes pending values, with no training.

What a user would otherwise do, and so the rival of `values: pending`. Nothing says no but the gate of a model that has
one: the way of a switch before a calculator, as OccamLLM's (arXiv 2406.06576).
"""

from collections import defaultdict
from typing import cast

import torch
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from ani.injection.attach import ani_module, has_gate, last_decision
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator

_SYMBOLS = "-.0123456789"


class ForcedValues(LogitsProcessor):
    """Writes every pending value (`ani.calculator.reader.pending`) in place of the next number that the model begins:

        model.generate(**inputs, logits_processor=[ForcedValues(tokenizer)])

    Where a value is pending and the most likely token begins a number, or some of the value is written, only tokens
    that go on with it are left; at its end those that would go on with the number are not. A number that goes on for
    ever ends where the model ends it. Elsewhere scores stay as they are, bit for bit.

    Args:
        tokenizer: As for `NumberScanner`.
        model: With a gate for pending values: values are written only where it is open. None: everywhere.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None = None) -> None:
        gated = model is not None and has_gate(model) and ani_module(model).config.values == "pending"
        self.gated = model if gated else None
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
        opened: dict[int, bool] | None = None
        for index, (ids, row) in enumerate(zip(input_ids.tolist(), scores, strict=True)):
            last = len(ids) - 1
            pending = self.locator.pending(ids, start=last).get(last)
            begins = int(row.argmax()) in self._numeric
            if pending is None or not (pending.written or begins):
                continue
            if self.gated is not None:
                opened = _last_gates(self.gated) if opened is None else opened
                if not opened[index]:
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


def _last_gates(model: PreTrainedModel) -> dict[int, bool]:
    """Whether the gate at the last number of each row is open, in the latest forward pass."""
    decision = last_decision(model)
    assert decision is not None
    numbers, injection = decision
    return dict(zip(numbers.rows.tolist(), (injection.alpha > 0).tolist(), strict=True))
