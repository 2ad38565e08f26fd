"""Decides whether a sign belongs to the number after it.

A sign is ``+``, ``-`` or ``−`` (U+2212) directly before the mantissa or its currency sign (``-$5``, ``-\\$5``). It
belongs to the number where it can be neither an operator nor a hyphen:

- after the start of the text, a line break, a boundary, an opening bracket, or punctuation such as ``= < * , : $``, but
  not in ``+/-``, which precedes a tolerance, nor between the signs of ``$30$-$60$``;
- after blanks, unless an operand precedes those: a digit, a closing bracket, ``%`` or a variable, which is a letter
  that follows no letter.

So ``(-5``, ``= -5`` and ``to -5 degrees`` are negative, and ``3-5``, ``3 -5``, ``2x -5``, ``2020-11``, ``COVID-19`` and
``- 5`` contain 5, 11 and 19. Blanks are looked through up to `MAX_BLANKS` of them: more make a column of a table, whose
sign is its own. The bound also lets a reader of a stream know how much context it needs.
"""

BOUNDARY = "\0"
BLANKS = " \t\N{NO-BREAK SPACE}"
MAX_BLANKS = 8
_CLOSING = ")]}\N{FULLWIDTH RIGHT PARENTHESIS}"
MONEY = frozenset("$€£¥₹")
SIGNS = frozenset("+-−")
LOOK_BEHIND = MAX_BLANKS + 2 + 2
"""Characters before a mantissa that decide: blanks and two before them; a sign and an escaped currency sign."""
_BEFORE_SIGN = frozenset(BOUNDARY + "\n\r" + "([{" + "=<>*/^,:;|&~!?\"'`#@\\" + "“‘«（：，＝×÷·≤≥≠≈→") | MONEY


def with_sign(text: str, begin: int) -> int:
    """The place of the sign that belongs to the mantissa that begins at `begin`; `begin` if there is none."""
    sign = begin - 1
    if sign > 0 and text[sign] in MONEY:
        sign -= 2 if text[sign - 1] == "\\" else 1
    if sign < 0 or text[sign] not in SIGNS:
        return begin
    if sign == 0 or text[sign - 1] in _BEFORE_SIGN:
        between = text.endswith("+/", 0, sign) or (text[sign - 1 : sign] in MONEY and text[sign + 1] in MONEY)
        return begin if between else sign
    if text[sign - 1] not in BLANKS:
        return begin
    first = max(0, sign - MAX_BLANKS - 1)
    ahead = first + len(text[first:sign].rstrip(BLANKS)) - 1  # the last character before the blanks
    if ahead < first:
        return sign
    character = text[ahead]
    if character.isdigit() or character == "%" or character in _CLOSING:
        return begin
    is_variable = character.isalpha() and not (ahead and text[ahead - 1].isalpha())
    return begin if is_variable else sign
