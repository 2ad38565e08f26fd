"""Bytes of a tokenizer's tokens, and their text: a character may be split over several tokens.

Text is UTF-8, with a lone surrogate for each byte that is not (`surrogateescape`).
"""

import codecs
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ani.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONE_BYTE = re.compile("[\udc80-\udcfe]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_decoder(tokenizer: "PreTrainedTokenizerBase") -> Callable[[str], bytes]:
    """The function from this tokenizer's tokens, as its vocabulary writes them, to bytes; raises InputError if the
    tokenizer is neither byte-level BPE nor sentencepiece."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    steps: list[dict[str, Any]] = []
    if decoder is not None:
        state = json.loads(decoder.__getstate__())
        steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = {step["type"] for step in steps}
    if kinds and kinds <= {"ByteLevel", "Fuse"}:
        return _byte_level()
    replaces = [step for step in steps if step["type"] == "Replace"]
    writes_space = "Metaspace" in kinds or replaces
    if (
        writes_space
        and kinds <= {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
        and all(step["pattern"] == {"String": "▁"} and step["content"] == " " for step in replaces)
    ):
        return _byte_fallback if "ByteFallback" in kinds else _sentencepiece
    name = f"{type(tokenizer).__name__} (decoder {' + '.join(sorted(kinds)) or 'none'})"
    raise InputError(
        f"{name} is neither a byte-level BPE nor a sentencepiece tokenizer on the tokenizers backend: "
        "use a model with one of those."
    )


def _byte_level() -> Callable[[str], bytes]:
    """Byte-level BPE writes printable bytes of Latin-1 as themselves, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    # A character below U+0100 that the alphabet lacks must not pass for a byte: its token is literal text.
    table = {byte: 0xFFFF for byte in others} | {0x100 + i: byte for i, byte in enumerate(others)}

    def to_bytes(token: str) -> bytes:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return to_bytes


def _sentencepiece(token: str) -> bytes:
    return token.replace("▁", " ").encode()


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes.fromhex(match[1]) if match else _sentencepiece(token)


def decode(data: bytes) -> str:
    """The text of bytes."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The inverse of `decode`."""
    return text.encode("utf-8", "surrogateescape")


def completed(pieces: list[str], begun: bytes = b"") -> tuple[list[str], bytes]:
    """Move every character into the piece that completes it, or shows that it is broken.

    Args:
        pieces: Pieces of a text, or of a text that follows `begun`.
        begun: Bytes of a character that the pieces before have only begun.

    Returns:
        The pieces, and the bytes of a character that they have only begun.
    """
    if not begun and not _LONE_BYTE.search("".join(pieces)):
        return pieces, b""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(begun)
    return [decoder.decode(encode(piece)) for piece in pieces], decoder.getstate()[0]


def readable(decoded: str) -> str:
    """The text with U+FFFD for each byte that is not UTF-8."""
    return _LONE_BYTE.sub("\N{REPLACEMENT CHARACTER}", decoded)
