"""The form of all generated texts."""

from typing import NamedTuple

from ani.data.records import Message


class DrawnText(NamedTuple):
    """A generated text that contains a calculation."""

    prompt: str
    """A user's message, or a raw text."""
    result: str
    """The calculation's result as the text's writer writes it: exact, or rounded half away from zero."""
    template: str
    """The wording with its slots."""
    meant: bool
    """True if the text asks for the result."""
    raw: bool = False
    operation: str = ""
    """Such as `addition`, `root`; `several`: of three operands. Empty in texts that ask in no listed wording."""
    completion: str = ""
    """The text that follows the prompt; empty: the model's own answer is right."""

    @property
    def given(self) -> str | list[Message]:
        """The prompt as a model gets it."""
        return self.prompt if self.raw else [{"role": "user", "content": self.prompt}]
