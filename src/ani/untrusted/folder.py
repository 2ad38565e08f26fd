"""The files of a folder that others made: no links out of it, no pickles; knows nothing about what is in them."""

import hashlib
from pathlib import Path

from ani.errors import InputError


def own_file(folder: Path, name: str) -> Path:
    """A file of the folder; raises InputError if it isn't there, or is a link to somewhere else."""
    file = folder / name
    if not file.is_file():
        refuse_pickles(folder, file.stem)
        raise InputError(f"{folder} has no {name}; it is incomplete")
    home, real = folder.resolve(), file.resolve()
    # In its cache, the hub's own client links a snapshot's files to blobs beside the snapshots.
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not real.is_relative_to(home) and not real.is_relative_to(blobs):
        raise InputError(f"{file} is a link to a file outside of its folder; copy that file in its place")
    return file


def unchanged_file(folder: Path, name: str, sha256: str, told_by: str) -> Path:
    """`own_file`; raises InputError unless its digest is the one that the file `told_by` names."""
    file = own_file(folder, name)
    try:
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} can't be read: {error.strerror}") from error
    if found != sha256:
        raise InputError(f"{file} is not the file that {told_by} describes (truncated or changed); fetch it again")
    return file


def refuse_pickles(folder: Path, stem: str = "*") -> None:
    """Raises InputError if a folder has weights of that name as a pickle, and none as safetensors."""
    pickles = [file.name for file in folder.glob(f"{stem}.*") if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
    if pickles and not any(folder.glob(f"{stem}.safetensors")):
        raise InputError(
            f"{folder} has its weights in {min(pickles)}, a pickle, which can run any code when it is opened; convert "
            "it to safetensors, as ANI loads safetensors only"
        )
