"""Reads rows of token ids for pending values. A row that goes on costs its new tokens alone."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from ani.calculator.reader.pending import Pending, PendingReader
from ani.calculator.reader.spelling import Spelling
from ani.chat import message_ends
from ani.numbers import NumberScanner

REMEMBERED = 1024
"""Rows that are remembered at least: the rows of a batch, their beams, and drafts that are tried and dropped."""


class Row(NamedTuple):
    """A row of token ids as far as it is read. It is never changed."""

    reader: PendingReader
    begun: bytes = b""
    """The bytes of a character that the last tokens have only begun."""
    pending: Pending | None = None
    """The value that is pending after the last token."""
    spelling: Spelling | None = None
    """The value that the calculator is writing, with the last token."""


class RowReader:
    """Reads rows, and remembers them by their token ids, so that beams and batches may come in any order.

    Args:
        tokenizer: As for `NumberScanner`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.scanner = NumberScanner(tokenizer)
        self.unread = Row(PendingReader(message_ends(tokenizer)))
        self._rows: OrderedDict[tuple[int, int], Row] = OrderedDict()
        self._factors = np.empty(0, dtype=np.int64)

    def read(self, token_ids: np.ndarray) -> Row:
        """Read a row of token ids, int64 (length,); padding may come before the text."""
        if (row := self._rows.get(self._key(token_ids))) is None:
            row = self._rows.get(self._key(token_ids[:-1]))
            row = self.after(self.unread, token_ids) if row is None else self.after(row, token_ids[-1:])
            self.remember(token_ids, row)
        return row

    def remember(self, token_ids: np.ndarray, row: Row) -> None:
        """Keep a row as it is read, in place of what was known of its token ids."""
        key = self._key(token_ids)
        self._rows[key] = row
        self._rows.move_to_end(key)
        while len(self._rows) > REMEMBERED:
            self._rows.popitem(last=False)

    def _key(self, token_ids: np.ndarray) -> tuple[int, int]:
        """Length and fingerprint of a row: faster than its bytes, and as long for a row of any length."""
        if (missing := len(token_ids) - len(self._factors)) > 0:
            more = np.random.default_rng().integers(-(2**62), 2**62, 2 * missing)
            self._factors = np.append(self._factors, 2 * more + 1)  # odd: two rows that differ in one token have two
        return len(token_ids), int(token_ids @ self._factors[: len(token_ids)])

    def every(self, token_ids: Sequence[int]) -> list[Pending | None]:
        """The value that is pending after each token of a text."""
        pieces, _ = self.scanner.pieces(token_ids)
        return self.unread.reader.copy().feed(pieces)

    def after(self, row: Row, token_ids: np.ndarray) -> Row:
        """Read on after a row: at least one more token id, int (count,)."""
        pieces, begun = self.scanner.pieces(token_ids, row.begun)
        reader = row.reader.copy()
        pending = reader.feed(pieces)[-1] if pieces else None
        spelling = row.spelling and row.spelling._replace(text=row.spelling.text + "".join(pieces))
        return Row(reader, begun, pending, spelling if spelling and spelling.next(1) else None)
