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

from ani.calculator.reader.digits import END
from ani.calculator.reader.pending import Pending, PendingReader
from ani.chat import message_ends
from ani.encoders import build_encoder
from ani.encoders.pending import Carried
from ani.injection.config import AniConfig
from ani.numbers import Number, NumberScanner
from ani.roles import Role

_ROLE_OF_FORCED = {None: Role.UNKNOWN, False: Role.NOMINAL, True: Role.QUANTITATIVE}

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
    """Known roles (`ani.roles.Role`), int64 (N,). For statistics and supervision of the gate."""
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
    return before if role == Role.UNKNOWN else role


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
        self._unread = PendingReader(message_ends(tokenizer) if self.reads_pending else ())
        self._read: dict[Hashable, RowReader] = {}
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

    def may_end(self, token_ids: np.ndarray[Any, Any]) -> Any:
        """Whether a number may stand at the last of three tokens, (N, 3), as far as they tell, bool (N,); under a
        causal policy. A text that has fewer begins with `PADDING`."""
        digits, closed, marks = (table.take(token_ids + 1, mode="clip") for table in self.scanner.tables)
        if self.policy == "running":
            return digits[:, 2]
        return digits[:, 2] | ~(closed[:, 1] | marks[:, 1] & closed[:, 0])

    def may_learn(self, token_ids: np.ndarray[Any, Any]) -> Any:
        """Whether a value may become known within each token, bool."""
        return self._may_learn.take(token_ids + 1, mode="clip")

    def may_change(self, token: int) -> bool:
        """Whether another value may be pending behind a token, or a number have begun."""
        return bool(self._may_change[min(token + 1, len(self._may_change) - 1)])

    @cached_property
    def _may_learn(self) -> np.ndarray[Any, Any]:
        return self._table(self._unread.may_learn)

    @cached_property
    def _may_change(self) -> bytes:  # bytes are read faster than an array, a token at a time
        return self._table(self._unread.may_change).tobytes()

    def _table(self, may: Callable[[str], bool]) -> np.ndarray[Any, Any]:
        return self.scanner.table(lambda piece: not piece.isprintable() or may(piece))

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
            roles: Role of the number that each token belongs to, per row and token; `Role.UNKNOWN` elsewhere. The
                next token tells the role of a pending value; behind a nominal number it is nominal. None:
                `Role.QUANTITATIVE` and `Role.NOMINAL` are those that are forced open and shut.
        """
        found: list[tuple[int, int, int, int]] = []
        carriers: list[Carrier] = []
        starts = [start] * len(rows) if isinstance(start, int) else start
        if response is not None and self.hides_response:
            rows = [
                [PADDING if hidden else i for i, hidden in zip(row, responses, strict=True)]
                for row, responses in zip(rows, response, strict=True)
            ]
        for row, (token_ids, first) in enumerate(zip(rows, starts, strict=True)):
            known = roles[row] if roles is not None else ()
            latest = list(accumulate(known, _latest_role))
            forced = self.forced_of(token_ids) if self.forced_of is not None and roles is None else {}
            for carrier in self.carriers(token_ids, start=first):
                token, number, pending = carrier
                role, masked = int(Role.UNKNOWN), 0
                if number is not None:
                    opened = forced.get(number.last_token)
                    role = known[number.last_token] if roles is not None else _ROLE_OF_FORCED[opened]
                    masked = number.last_token - number.first_token if self.substitutes and opened is not False else 0
                elif pending is not None and known:
                    role = self._role(pending, token_ids, token)
                    if role == Role.QUANTITATIVE and latest[token] == Role.NOMINAL:
                        role = Role.NOMINAL
                carriers.append(carrier)
                found.append((row, token - first, role, masked))
        columns = torch.tensor(found, dtype=torch.long).reshape(len(found), 4).T.contiguous()
        return NumberBatch(columns[0], columns[1], self.encode(carriers), columns[2], columns[3])

    def carriers(
        self, token_ids: Sequence[int], *, start: int = 0, reader: "RowReader | None" = None
    ) -> list["Carrier"]:
        """The tokens ≥ `start` of one row that carry something, with what they carry; those with a number first. The
        arguments are those of `pending`."""
        pending = self.pending(token_ids, start=start, reader=reader)
        found = []
        for number, at in self.find(token_ids, start=start):
            for token in range(max(start, number.first_token if self.policy == "digitwise" else at), at + 1):
                found.append(Carrier(token, number, pending.pop(token, None)))
        return found + [Carrier(token, None, value) for token, value in pending.items()]

    def encode(self, carriers: Sequence["Carrier"]) -> torch.Tensor:
        """φ of what N tokens carry, float32 (N, the encoder's width), on the CPU."""
        texts = [each.number.text if each.number is not None else None for each in carriers]
        values = [each.pending for each in carriers]
        if not self.reads_pending:
            read: Sequence[Any] = texts
        else:
            read = list(map(Carried, texts, values)) if self.reads_literals else values
        return cast(torch.Tensor, cast(Any, self.encoder).encode(read))

    def pending(
        self, token_ids: Sequence[int], *, start: int = 0, reader: "RowReader | None" = None
    ) -> dict[int, Pending]:
        """The value that is pending at each token ≥ `start` of one row, where there is one.

        Args:
            token_ids: `PADDING` where there is no text.
            start: Tokens before it are context only.
            reader: One that has read this row, no further than `start`; it reads on. None: the row is remembered as
                far as it is read now, so that a row that goes on costs its new tokens alone.
        """
        if not self.reads_pending:
            return {}
        own = reader or self.reader(token_ids[:start])
        begin = own.tokens
        every = enumerate(own.read(token_ids), begin)
        if reader is None:
            if len(self._read) == _REMEMBERED:
                del self._read[next(iter(self._read))]
            self._read[_key(token_ids)] = own
        return {token: each for token, each in every if each and token >= start and token_ids[token] != PADDING}

    def reader(self, token_ids: Sequence[int]) -> "RowReader":
        """One that goes on behind a row, if it was read and is remembered; otherwise one that has read nothing."""
        read = self._read.get(_key(token_ids))
        return read.copy() if read else RowReader(self.scanner, self._unread.copy())

    def _role(self, pending: Pending, token_ids: Sequence[int], token: int) -> int:
        """Quantitative where the next token writes the value's next digits, a blank or currency sign before them, or
        its end; nominal where it writes something else; unknown at the row's end."""
        following = [each for each in token_ids[token + 1 : token + 3] if each != PADDING]
        if not following:
            return Role.UNKNOWN
        pieces, _ = self.scanner.pieces(following)
        piece = pieces[0]
        if not pending.written:
            before = " " + pending.currency
            piece = piece.lstrip(before) or "".join(pieces[1:]).lstrip(before)
        digits = pending.next(max(1, len(piece)))
        if digits and digits[0].character == END:
            return Role.NOMINAL if piece[:1].isdigit() else Role.QUANTITATIVE
        if not piece or not digits:
            return Role.NOMINAL
        *first, last = zip(piece, digits, strict=False)
        goes_on = len(piece) <= len(digits) and all(written == digit.character for written, digit in first)
        return Role.QUANTITATIVE if goes_on and last[0] in (last[1].character, last[1].last) else Role.NOMINAL


class Carrier(NamedTuple):
    """A token that carries something."""

    token: int
    number: Number | None
    pending: Pending | None


def _key(token_ids: Sequence[int]) -> Hashable:
    """Equal for equal ids of one type; engines' arrays, which a tuple would take apart, are long."""
    return token_ids.tobytes() if isinstance(token_ids, np.ndarray) else tuple(token_ids)


class RowReader:
    """Reads one row of token ids for pending values, in as many calls as one likes."""

    def __init__(self, scanner: NumberScanner, reader: PendingReader) -> None:
        self._scanner, self._reader = scanner, reader
        self._begun = b""  # of a character that the last tokens have only begun
        self.tokens = 0
        """How many are read."""

    def copy(self) -> Self:
        """One that goes on from here by itself."""
        other = type(self)(self._scanner, self._reader.copy())
        other._begun, other.tokens = self._begun, self.tokens
        return other

    def read(self, token_ids: Sequence[int]) -> list[Pending | None]:
        """What is pending at each token of a row from `tokens` on."""
        pieces, self._begun = self._scanner.pieces(token_ids[self.tokens :], self._begun)
        self.tokens = len(token_ids)
        return self._reader.feed(pieces)

    @property
    def idle(self) -> bool:
        """Whether nothing is known that could be pending."""
        return self._reader.idle

    @property
    def lasts(self) -> int:
        """As of the `PendingReader`, in tokens."""
        return 0 if self._begun else self._reader.lasts


_REMEMBERED = 1024
"""Rows whose reading is remembered: more than an engine's step has requests."""
