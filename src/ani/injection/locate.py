"""Decides which numbers of a token row are injected, and at which token, by the policy.

Under `after` a number is injected at the first token that shows it to be over (`ani.numbers.grammar`, "Ended numbers").
For a number at the end of a prompt this is the first generated token. Under `terminal` a prompt is read as a complete
text, so its last number is injected at the number's own last token. The collator, the forward pass and generation all
ask here, so they can't disagree.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ani.chat import message_ends
from ani.encoders import build_encoder
from ani.encoders.pending import Carried
from ani.injection.config import AniConfig
from ani.numbers import Number, NumberScanner
from ani.values.digits import END
from ani.values.pending import Pending, PendingReader

UNKNOWN_ROLE, NOMINAL, QUANTITATIVE = -1, 0, 1
"""Values of `NumberBatch.roles`."""
_ROLE_OF_FORCED = {None: UNKNOWN_ROLE, False: NOMINAL, True: QUANTITATIVE}

PADDING = -1
"""Token id of a position that holds no text: no number stands there and none runs across it."""


@dataclass(frozen=True)
class NumberBatch:
    """N numbers of a batch of token rows, in row order; what the model's forward takes as `numbers`."""

    rows: torch.Tensor
    """Batch row of each number, int64 (N,)."""
    positions: torch.Tensor
    """Token of the row that carries it, int64 (N,)."""
    features: torch.Tensor
    """φ of its value, float32 (N, the encoder's width)."""
    roles: torch.Tensor
    """Known role, int64 (N,): `NOMINAL`, `QUANTITATIVE` or `UNKNOWN_ROLE`. For statistics and gate supervision."""
    masked: torch.Tensor
    """How many tokens right before it are its own and hidden, as `combine="substitute"` has it, int64 (N,); else 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str, **kwargs: Any) -> Self:
        return type(self)(*(getattr(self, field.name).to(device, **kwargs) for field in fields(self)))

    def pin_memory(self) -> Self:
        """For copies to a GPU that nobody waits for; torch's DataLoader asks."""
        return type(self)(*(getattr(self, field.name).pin_memory() for field in fields(self)))

    def at(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and positions on a device: the index of the numbers in a tensor of shape (B, T, …)."""
        return self.rows.to(device), self.positions.to(device)

    def between(self, start: int, stop: int) -> Self:
        """The numbers at positions in [start, stop), counted from `start`."""
        keep = (self.positions >= start) & (self.positions < stop)
        kept = type(self)(*(getattr(self, field.name)[keep] for field in fields(self)))
        return replace(kept, positions=kept.positions - start)

    @classmethod
    def concatenated(cls, batches: Sequence[Self]) -> Self:
        """All numbers of at least one batch, in order."""
        return cls(*(torch.cat([getattr(batch, field.name) for batch in batches]) for field in fields(cls)))

    def repeated(self, repeats: int) -> Self:
        """The same for a batch whose rows are each repeated (`repeat_interleave`), as beam search does."""
        if repeats == 1 or not len(self):
            return self
        rows = (self.rows.unsqueeze(1) * repeats + torch.arange(repeats, device=self.rows.device)).flatten()
        others = (getattr(self, field.name).repeat_interleave(repeats, dim=0) for field in fields(self)[1:])
        return type(self)(rows, *others)


@torch.compiler.disable
def text_ids(input_ids: torch.Tensor, attention_mask: Any) -> list[list[int]]:
    """The rows' token ids, `PADDING` where a 2-D attention mask says so."""
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        mask = attention_mask[:, -input_ids.shape[1] :]
        input_ids = torch.where(mask.to(input_ids.device) == 0, PADDING, input_ids)
    return cast(list[list[int]], input_ids.tolist())


def _latest_role(before: int, role: int) -> int:
    return before if role == UNKNOWN_ROLE else role


class NumberLocator:
    """Finds and encodes the numbers of token rows by a config's policy, encoders and overflow rule."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: AniConfig) -> None:
        self.scanner = NumberScanner(tokenizer)
        self.encoder = build_encoder(config)
        self.policy = config.policy
        end = tokenizer.eos_token_id if config.policy == "after" else None
        self._end = [] if end is None else [end]
        self.causal = config.causal
        """Whether numbers are found in each forward from the tokens so far, in prompt and response alike."""
        self.hides_response = not config.causal and config.scope == "prompt"
        """Whether numbers of the response get nothing, in training as in generation."""
        self.reads_literals, self.reads_pending = config.reads_literals, config.reads_pending
        self._unread = _Read(PendingReader(message_ends(tokenizer) if self.reads_pending else ()))
        self._read: dict[Hashable, _Read] = {}
        self.forced_of: Callable[[Sequence[int]], Mapping[int, bool]] | None = None
        """Of a row's numbers those whose gate is forced open or shut, by each token of a number
        (`ani.injection.inspection.forced_numbers`); None: none is."""
        self.overflow = config.overflow
        self.substitutes = config.combine == "substitute"
        """Whether a number's sub-tokens but the last are hidden (`NumberBatch.masked`)."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # shared, as its token table is large

    def whole_text(self, token_ids: Sequence[int]) -> list[int]:
        """The token ids of a text that ends with them: under `after` with the tokenizer's end token behind them, as
        behind a completion in training, since only the token behind a number shows that it is over."""
        return [*token_ids, *self._end]

    def find(self, token_ids: Sequence[int], *, start: int = 0) -> list[tuple[Number, int]]:
        """Numbers that inject at tokens ≥ `start` of one row, each with the last of those tokens.

        Args:
            token_ids: `PADDING` where there is no text.
            start: Tokens before it are context only.
        """
        if not self.reads_literals:
            return []
        if self.policy == "after":  # padding ends a number too, but is no token that could carry it
            ended = self.scanner.scan_ended(token_ids, start)
            found = [(number, token) for token, number in ended.items() if token_ids[token] != PADDING]
        else:
            running = self.policy == "running"
            numbers = self.scanner.scan_running(token_ids, start) if running else self.scanner.scan(token_ids)
            found = [(number, number.last_token) for number in numbers if number.last_token >= start]
        if self.overflow == "skip":
            found = [x for x in found if cast(Any, self.encoder).in_range(x[0].value)]
        if self.substitutes:  # what else its tokens say would be lost, as the bracket of "(-5"
            found = [x for x in found if self._is_all_of_its_tokens(x[0], token_ids)]
        return found

    def may_carry(self, token_ids: np.ndarray[Any, Any], idle: np.ndarray[Any, Any]) -> Any:
        """Whether something may stand at the last of three tokens, (N, 3), as far as they tell, bool (N,); under a
        causal policy. A text that has fewer begins with `PADDING`. `idle`: whether nothing is pending before the last
        one, bool (N,)."""
        may = np.zeros(len(token_ids), dtype=bool)
        if self.reads_pending:
            may = ~idle | self._may_learn.take(token_ids[:, 2] + 1, mode="clip")
        if not self.reads_literals:
            return may
        digits, closed, marks = (table.take(token_ids + 1, mode="clip") for table in self.scanner.tables)
        if self.policy == "running":
            return may | digits[:, 2]
        return may | digits[:, 2] | ~(closed[:, 1] | marks[:, 1] & closed[:, 0])

    @cached_property
    def _may_learn(self) -> np.ndarray[Any, Any]:
        """As `NumberScanner.table`: whether a value may become known within a token."""
        may_learn = self._unread.reader.may_learn
        return self.scanner.table(lambda piece: not piece.isprintable() or may_learn(piece))

    def idle(self, token_ids: Sequence[int]) -> bool:
        """Whether nothing is pending behind a row that was read for pending values."""
        read = self._read.get(_key(token_ids)) if self.reads_pending else None
        return read is not None and read.reader.idle

    def _is_all_of_its_tokens(self, number: Number, token_ids: Sequence[int]) -> bool:
        tokens = token_ids[number.first_token : number.last_token + 1]
        return self.scanner.text(tokens).strip() == number.text

    def batch(
        self,
        rows: Sequence[Sequence[int]],
        *,
        start: int | Sequence[int] = 0,
        response: Sequence[Sequence[bool]] | None = None,
        roles: Sequence[Sequence[int]] | None = None,
    ) -> NumberBatch:
        """Numbers of a batch.

        Args:
            rows: Token ids, `PADDING` where there is no text.
            start: Tokens before it are context only (their hidden states are already computed); one for all rows, or
                one per row. Positions count from it.
            response: True for tokens of the response, per row. They are left alone if `hides_response`: during
                generation nobody knows that a number has ended.
            roles: Role of the number that each token belongs to, per row and token; `UNKNOWN_ROLE` elsewhere. The
                next token tells the role of a pending value; behind a nominal number it is nominal. None:
                `QUANTITATIVE` and `NOMINAL` are those that are forced open and shut.
        """
        carried: list[Carried] = []
        found: list[tuple[int, int, int, int]] = []
        starts = [start] * len(rows) if isinstance(start, int) else start
        if response is not None and self.hides_response:
            rows = [
                [PADDING if hidden else i for i, hidden in zip(row, responses, strict=True)]
                for row, responses in zip(rows, response, strict=True)
            ]
        for row, (token_ids, first) in enumerate(zip(rows, starts, strict=True)):
            known = roles[row] if roles is not None else ()
            forced = self.forced_of(token_ids) if self.forced_of is not None and roles is None else {}
            pending = self.pending(token_ids, start=first)
            for number, at in self.find(token_ids, start=first):
                opened = forced.get(number.last_token)
                role = known[number.last_token] if roles is not None else _ROLE_OF_FORCED[opened]
                masked = number.last_token - number.first_token if self.substitutes and opened is not False else 0
                for token in range(max(first, number.first_token if self.policy == "digitwise" else at), at + 1):
                    carried.append(Carried(number.text, pending.pop(token, None)))
                    found.append((row, token - first, role, masked))
            latest = list(accumulate(known, _latest_role))
            for token, value in pending.items():
                role = self._role(value, token_ids, token) if known else UNKNOWN_ROLE
                if role == QUANTITATIVE and latest[token] == NOMINAL:
                    role = NOMINAL
                carried.append(Carried(pending=value))
                found.append((row, token - first, role, 0))
        features = cast(Any, self.encoder).encode(self._encoded(carried))
        columns = torch.tensor(found, dtype=torch.long).reshape(len(found), 4).T.contiguous()
        return NumberBatch(columns[0], columns[1], features, columns[2], columns[3])

    def _encoded(self, carried: Sequence[Carried]) -> Sequence[Any]:
        """The input of the encoder: texts of numbers, pending values, or both."""
        if not self.reads_pending:
            return [each.literal for each in carried]
        return carried if self.reads_literals else [each.pending for each in carried]

    def pending(self, token_ids: Sequence[int], *, start: int = 0) -> dict[int, Pending]:
        """The value that is pending at each token ≥ `start` of one row, where there is one; `PADDING` where there is no
        text. What was read of a row is remembered, so that a row that goes on costs its new tokens alone."""
        if not self.reads_pending:
            return {}
        read = self._read.get(_key(token_ids[:start]), self._unread)
        reader = read.reader.copy()
        pieces, begun = self.scanner.pieces(token_ids[read.tokens :], read.begun)
        found = reader.feed(pieces)
        if len(self._read) == _REMEMBERED:
            del self._read[next(iter(self._read))]
        self._read[_key(token_ids)] = _Read(reader, begun, len(token_ids))
        every = enumerate(found, read.tokens)
        return {token: each for token, each in every if each and token >= start and token_ids[token] != PADDING}

    def _role(self, pending: Pending, token_ids: Sequence[int], token: int) -> int:
        """Quantitative where the next token writes the value's next digits, a blank or currency sign before them, or
        its end; nominal where it writes something else; unknown at the row's end."""
        following = [each for each in token_ids[token + 1 : token + 3] if each != PADDING]
        if not following:
            return UNKNOWN_ROLE
        pieces, _ = self.scanner.pieces(following)
        piece = pieces[0]
        if not pending.written:
            before = " " + pending.currency
            piece = piece.lstrip(before) or "".join(pieces[1:]).lstrip(before)
        digits = pending.next(max(1, len(piece)))
        if digits and digits[0].character == END:
            return NOMINAL if piece[:1].isdigit() else QUANTITATIVE
        if not piece or not digits:
            return NOMINAL
        *first, last = zip(piece, digits, strict=False)
        goes_on = len(piece) <= len(digits) and all(written == digit.character for written, digit in first)
        return QUANTITATIVE if goes_on and last[0] in (last[1].character, last[1].last) else NOMINAL


def _key(token_ids: Sequence[int]) -> Hashable:
    """Equal for equal ids of one type; engines' arrays, which a tuple would take apart, are long."""
    return token_ids.tobytes() if isinstance(token_ids, np.ndarray) else tuple(token_ids)


class _Read(NamedTuple):
    """What was read of a row."""

    reader: PendingReader
    begun: bytes = b""
    """Of a character that the last tokens have only begun."""
    tokens: int = 0


_REMEMBERED = 1024
"""Rows whose reading is remembered: more than an engine's step has requests."""
