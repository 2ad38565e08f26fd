"""Fourier features of exact decimal numbers: FoNE (arXiv 2502.09741), read off the digits."""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ani.encoders.base import as_text, as_texts, read_number
from ani.errors import InputError


class FourierNumberEncoder:
    """Maps numbers to φ(x) = [cos 2πx/T, sin 2πx/T] for each period T (paper, "Topology Encoding").

    The periods are T_i = 10^i for i = 1 − fraction_digits … integer_digits. x mod T_i is read off the decimal
    digits, never computed in floating point, so a feature is within 1e-7 of the exact one at any number of digits.
    Numbers are rounded half-even to `fraction_digits`. Integer digits above `integer_digits` change no feature: the
    number wraps, and `in_range` is False.

    Args:
        integer_digits, fraction_digits: Digits kept before and after the point.
        sign: "feature" encodes |x| and adds one feature, −1 for negative numbers and +1 otherwise. "phase" takes x mod
            T of the negative number itself, as in the formula: x and x − 10^integer_digits then have the same features.
            "none" encodes |x|, as FoNE's published code.

    Raises:
        InputError: A setting is out of its domain.
    """

    def __init__(
        self,
        integer_digits: int = 10,
        fraction_digits: int = 6,
        *,
        sign: Literal["feature", "phase", "none"] = "feature",
    ) -> None:
        if min(integer_digits, fraction_digits) < 0 or integer_digits + fraction_digits == 0:
            digits = f"{integer_digits} and {fraction_digits}"
            raise InputError(f"integer_digits and fraction_digits must be 0 or more, not both 0, but are {digits}")
        if sign not in ("feature", "phase", "none"):
            raise InputError(f"sign must be 'feature', 'phase' or 'none', not {sign!r}")
        self.integer_digits, self.fraction_digits, self.sign = integer_digits, fraction_digits, sign
        self._digits = integer_digits + fraction_digits
        self.width = 2 * self._digits + (sign == "feature")
        """Number of features of one number."""

    def in_range(self, value: str | int | Decimal) -> bool:
        """True if |value|, rounded, is below 10^integer_digits; raises as `encode`."""
        *_, in_range = self._round(as_text(value))
        return in_range

    def encode(self, values: Sequence[str | int | Decimal]) -> torch.Tensor:
        """Features of N exact numbers, float32 (N, width), on the CPU.

        A text may have a sign, thousands separators, a leading point and an exponent: "1,234.5", "-.5", "1e-5".

        Raises:
            TypeError: A value is a float or of another inexact or unknown type.
            InputError: A value is not a finite decimal number.
        """
        texts = as_texts(values)
        integer_digits, fraction_digits = self.integer_digits, self.fraction_digits
        unread = "?" * self._digits
        rows = []
        for text in texts:
            whole, point, fraction = text.partition(".")
            fits = len(whole) <= integer_digits and len(fraction) <= fraction_digits and text != point
            rows.append(whole.rjust(integer_digits, "0") + fraction.ljust(fraction_digits, "0") if fits else unread)
        # One byte per character.
        written = "".join(rows).encode("ascii", "replace")
        digits = (np.frombuffer(written, np.uint8) - np.uint8(ord("0"))).reshape(len(rows), self._digits)
        if not rows or written.isdigit():  # most are; in a decode step each skipped operation counts
            return self._features(digits, None)
        negative = np.zeros(len(rows), bool)
        for row in np.flatnonzero((digits > 9).any(axis=1)):
            negative[row], kept, _ = self._round(texts[row])
            digits[row] = np.frombuffer(kept.encode(), np.uint8) - np.uint8(ord("0"))
        return self._features(digits, negative)

    def decode(self, features: torch.Tensor) -> list[Decimal]:
        """The numbers that have these features, of shape (N, width): the exact inverse of `encode` over the range.

        Digits are found from the lowest up, each against the lower ones, so noise matters only if it exceeds 1/20 of a
        turn at one period. Under sign="phase" the result is in [−10^integer_digits / 2, 10^integer_digits / 2), under
        "none" it is |x|. Raises ValueError if the shape is wrong, or a feature is not finite.
        """
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ValueError(f"features must have shape (N, {self.width}), not {tuple(features.shape)}")
        values = features.detach().to("cpu", torch.float64)
        if not values.isfinite().all():
            raise ValueError("features must be finite, but contain NaN or infinity")
        count = len(values)
        cos, sin = values[:, : 2 * self._digits].reshape(count, self._digits, 2).unbind(-1)
        turns = torch.atan2(sin, cos) / (2 * math.pi)

        digits = torch.empty(count, self._digits, dtype=torch.int64)
        below = torch.zeros(count, dtype=torch.float64)  # phase of the digits already known
        for place in range(self._digits):
            digit = (10 * turns[:, place] - below).round().remainder(10)
            digits[:, place] = digit.long()
            below = (digit + below) / 10
        negative = (values[:, -1] < 0).tolist() if self.sign == "feature" else [False] * count
        return list(map(self._number, digits.flip(1).tolist(), negative))

    def _features(self, digits: NDArray[np.uint8], negative: NDArray[np.bool_] | None) -> torch.Tensor:
        """Features from digits, shape (N, integer_digits + fraction_digits), highest first; None: none is negative."""
        # turns[k] = (x mod T) / T at the period T = 10^(k + 1 − fraction_digits): 0.ddd… of the digits below T. Each
        # step doubles the count of digits; those after the sixteenth are below float64.
        turns = np.ascontiguousarray(digits.T[::-1]) / 10
        for step in (1, 2, 4, 8):
            turns[step:] += turns[:-step] / 10**step
        angles = torch.from_numpy(turns) * (2 * math.pi)
        pairs = torch.empty(self._digits, 2, len(digits))  # float32; cos and sin are taken in float64
        pairs[:, 0] = angles.cos()
        pairs[:, 1] = angles.sin_()
        signs = torch.ones(len(digits), 1)
        if negative is not None:
            signs[torch.from_numpy(negative)] = -1
            if self.sign == "phase":
                pairs[:, 1] *= signs.squeeze(1)
        features = pairs.permute(2, 0, 1).flatten(1)
        return torch.cat((features, signs), 1) if self.sign == "feature" else features.contiguous()

    def _round(self, text: str) -> tuple[bool, str, bool]:
        """Round half-even to fraction_digits, on the digits as text: no exponent is written out in full. Return whether
        the result is negative, the kept digits (highest first, zero-padded), and whether none above them is cut off."""
        sign, whole, fraction, exponent_sign, exponent = read_number(text).groups("")
        coefficient = (whole.replace(",", "") + fraction).lstrip("0")
        # Nineteen digits of an exponent already outdo the length of any text.
        places = int(exponent_sign + (exponent[:19] or "0")) - len(fraction) + self.fraction_digits
        if places >= 0:
            kept, rest = coefficient and coefficient + "0" * min(places, self._digits), ""
        else:
            cut = len(coefficient) + places
            kept, rest = (coefficient[:cut], coefficient[cut:].rstrip("0")) if cut >= 0 else ("", "")
        # As texts: "51" > "5", "49" < "5"; a tie goes up from an odd digit.
        if rest > "5" or (rest == "5" and kept[-1:] in tuple("13579")):
            low = int(kept[-self._digits :] or "0") + 1
            kept = kept[: -self._digits] + str(low).zfill(min(len(kept), self._digits))
        in_range = len(kept) <= self._digits
        return sign == "-" and kept != "", kept[-self._digits :].rjust(self._digits, "0"), in_range

    def _number(self, digits: list[int], negative: bool) -> Decimal:
        """The number with these digits, highest first, without trailing zeros."""
        units = int("".join(map(str, digits)))
        if self.sign == "phase" and 2 * units >= 10**self._digits:
            units -= 10**self._digits
        whole, fraction = divmod(abs(units), 10**self.fraction_digits)
        text = f"{whole}.{fraction:0{self.fraction_digits}d}".rstrip("0").rstrip(".")
        return Decimal(f"-{text}" if units and (negative or units < 0) else text)
