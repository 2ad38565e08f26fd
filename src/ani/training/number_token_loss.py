"""The Number Token Loss as a term of ours, by its authors' package `ntloss`; knows nothing about the Trainer."""

import copy
from importlib import import_module
from typing import Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from ani.data.collator import IGNORED
from ani.errors import InputError

_DIGITS = "0123456789"
_SAMPLES = (_DIGITS, "2000", "1999", "100000")


class NumberTokenLoss:
    """How far from the right digit the model expects to be, over the digit tokens of a response (arXiv 2411.02083).

    The Wasserstein variant, the source's best: Σ_d p(d)·|d − label|, where p is the softmax over the ten digit tokens
    alone. Without the package's `reweigh`, which the source does not have.

    Args:
        tokenizer: Writes numbers digit by digit. It stays as it is.
        vocab_size: Width of the model's logits.

    Raises:
        InputError: If `ntloss` is not installed, or the tokenizer has tokens of several digits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        try:
            ntloss: Any = import_module("ntloss")  # its annotations name types that no tensor or tokenizer has
        except ModuleNotFoundError as error:
            raise InputError(
                'training.number_token_loss needs the package ntloss; install it with pip install "ani[train]"'
            ) from error
        if any(not set(text) <= set(tokenizer.tokenize(text)) for text in _SAMPLES):
            raise InputError(
                "training.number_token_loss compares digits, but this model's tokenizer doesn't write a number with "
                f"one token a digit ({_DIGITS} is {tokenizer.tokenize(_DIGITS)}); set it to 0"
            )
        # A copy: ntloss adds the digits to the tokenizer as tokens of their own, which can change how texts are split.
        self._loss = ntloss.NTLoss(copy.deepcopy(tokenizer), vocab_size, reweigh=False)

    def count(self, labels: torch.Tensor) -> int:
        """How many of the labels, int64 with `IGNORED` where nothing is learnt, are digits."""
        return int(self._loss.is_number_token.to(labels.device)[labels[labels != IGNORED]].sum())

    def total(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss, summed over the labels that are digits: a float32 scalar.

        Args:
            logits: Shape (B, T, vocabulary).
            labels: int64 (B, T), the token that each position predicts (shifted already), or `IGNORED`.
        """
        if labels.numel() == 0:  # ntloss refuses it
            return logits.float().sum()
        total = self._loss(logits.float(), labels, reduction="sum", ignore_index=IGNORED)
        return cast(torch.Tensor, total)
