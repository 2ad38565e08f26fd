"""A value of your own: a price, looked up in a database when a text asks for it."""

import re
import sqlite3
from decimal import Decimal

from ani.calculator import asked
from ani.calculator.reader import VALUES, Exact, Known, Value

SHOP = sqlite3.connect(":memory:", check_same_thread=False)  # yours is a file
SHOP.execute("create table articles (name text primary key, price text)")
SHOP.executemany("insert into articles values (?, ?)", [("lamp", "24.90"), ("desk", "1340"), ("chair", "89.5")])

# What a text says at its end, and nowhere else.
ASKED = re.compile(r"\b(?:(?:how much is|what does) the (\w+)(?: cost)?\?|the (\w+) costs)\Z", re.IGNORECASE)


class Price(Value):
    """``How much is the desk?``, and ``The desk costs``."""

    name = "price"
    triggers = (" costs",)  # beside the end of a question

    def known(self, text: str) -> Known | None:
        match = ASKED.search(text)
        if match is None:
            return None
        article = (match[1] or match[2]).lower()
        row = SHOP.execute("select price from articles where name = ?", [article]).fetchone()
        return row and Known(Exact.of(Decimal(row[0])), match[0], match.start(), currency="$")


VALUES[Price.name] = Price

if __name__ == "__main__":
    print(asked("How much is the desk?").rounded(2))
