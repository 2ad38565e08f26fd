"""Chat messages in the model's chat template, the same for training, evaluation, serving and the playground.

Thinking is off and the date is fixed, so that the tokens before an answer are the same in training and evaluation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ani.errors import InputError, one_line

PLAIN_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{{- message['role'] | capitalize + ':\\n' + message['content'] | trim }}
{%- if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}
{{- '\\n\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"""
"""Template for tokenizers without one: the role, a line break, the message, an empty line."""

_ANSWER_AT_ONCE: dict[str, Any] = {"enable_thinking": False, "date_string": "26 Jul 2024"}
"""Qwen3's switch, and the date that Llama 3's templates write by default."""


def rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of a chat up to the answer, special tokens included. If the template refuses a system message, its text
    and an empty line precede the first user message. Raises InputError if the template refuses the messages."""
    chat = [dict(message) for message in messages]
    try:
        try:
            return _rendered(tokenizer, chat)
        except Exception:  # templates refuse by any error
            if len(chat) < 2 or chat[0]["role"] != "system":
                raise
            chat[1]["content"] = f"{chat[0]['content']}\n\n{chat[1]['content']}"
            return _rendered(tokenizer, chat[1:])
    except Exception as error:  # from jinja, or from the template's code
        raise InputError(
            f"the model's chat template refuses the messages {one_line(repr(messages), 100)}: {one_line(error)}"
        ) from error


_MARK = "THE-TEXT-OF-THE-USER"


def around_message(tokenizer: PreTrainedTokenizerBase, before: Sequence[Mapping[str, Any]] = ()) -> tuple[str, str]:
    """The text before and after a user's message that follows the messages `before`."""
    # A mark, because the template may contain the text itself, such as "assistant".
    start, _, end = rendered(tokenizer, [*before, {"role": "user", "content": _MARK}]).rpartition(_MARK)
    return start, end


def message_ends(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text that ends a user's message in the tokenizer's chats; an empty list where a special token ends it."""
    after = around_message(tokenizer)[1]
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    ends = (after.find(special) for special in {*tokenizer.all_special_tokens, *added} if special in after)
    text = after[: min(ends, default=len(after))].rstrip()
    return [text] if text else []


def _rendered(tokenizer: PreTrainedTokenizerBase, chat: list[dict[str, Any]]) -> str:
    template = PLAIN_TEMPLATE if tokenizer.chat_template is None else None
    options = {"tokenize": False, "add_generation_prompt": True, **_ANSWER_AT_ONCE}
    return str(tokenizer.apply_chat_template(chat, chat_template=template, **options))
