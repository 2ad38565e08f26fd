"""Revisions of models and data sets on the Hugging Face hub, in names such as `Qwen/Qwen3-8B@REVISION`.

A revision is a branch, a tag or a commit. `pinned` replaces it by the commit that it means now: a run that keeps this
name reads the same files later, and its results and its hash name them.
"""

import os
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

_HUB_NAME = re.compile(r"([\w-][\w.-]*/[\w.-]+?(?<!\.jsonl)(?<!\.parquet))(?:@([^@\s]+))?")
_FILES = ["config.json", "ani_config.json", "README.md"]
"""Small files of models, adapters and data sets: the folder into which one is downloaded has the commit's name."""

COMMITS: dict[str, str] = {}
"""Commits of the hub's models and data sets that this process has read, by name, for the provenance of its results."""


class HubName(NamedTuple):
    """A name, and the revision that it asks for; None: the newest files, or no name on the hub."""

    name: str
    revision: str | None

    @property
    def options(self) -> dict[str, Any]:
        """The argument `revision` of loaders."""
        return {} if self.revision is None else {"revision": self.revision}


def hub_name(name: str) -> HubName:
    """Split a name at `@`; what is there as a file or directory is no name on the hub."""
    found = None if os.path.exists(name) else _HUB_NAME.fullmatch(name)
    return HubName(name, None) if found is None else HubName(*found.groups())


def at_commit(name: str | None, commit: str | None) -> str | None:
    """Return `NAME@COMMIT` of a name on the hub that has no revision, any other name as it is."""
    on_hub = name is not None and not os.path.exists(name) and (found := _HUB_NAME.fullmatch(name)) and not found[2]
    return f"{name}@{commit}" if on_hub and commit else name


def alike(one: str, other: str) -> bool:
    """Return whether two names may mean the same files: they are equal but for a revision that one of them lacks."""
    (name, revision), (other_name, other_revision) = hub_name(one), hub_name(other)
    return name == other_name and (revision == other_revision or None in (revision, other_revision))


def pinned(name: str, kind: Literal["model", "dataset"] = "model") -> str:
    """Replace the revision of a name on the hub by its commit; a name whose commit can't be found stays as it is, and
    so do files and directories. Warns, once, where a name has no revision."""
    wanted = hub_name(name)
    commit = None if os.path.exists(wanted.name) or not _HUB_NAME.fullmatch(name) else _commit(*wanted, kind)
    if commit is None:
        return name
    if wanted.revision is None and wanted.name not in COMMITS:
        warnings.warn(f"{name} has no revision; to read the same files later, write {name}@{commit}", stacklevel=2)
    COMMITS[wanted.name] = commit
    return f"{wanted.name}@{commit}"


@cache
def _commit(name: str, revision: str | None, kind: str) -> str | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    if revision is not None and re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    try:  # the hub's answer, or without a network that of its cache
        folder = snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=_FILES)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError):
        return None  # whoever loads the name says what is wrong
    return Path(folder).name
