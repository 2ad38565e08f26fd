"""Atomic writes of files and directories, and a lock that lets one process work in a folder."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout

from ani.errors import InputError

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system answers to a write for which there is no room: disk, quota, largest file."""


def is_main() -> bool:
    """Whether this is the process that prints and writes: the first that a launcher started, or the only one.

    By the launcher's variables, so before the processes have met; later accelerate's `is_main_process` says it.
    """
    return int(os.environ.get("WORLD_SIZE", 1)) == 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def replacing_file(path: Path) -> Iterator[TextIO]:
    """Give a UTF-8 text file to write; on success it takes the place of `path`, on failure nothing changes.

    What a killed process leaves, `.<name>.partial`, the next one replaces.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with naming_full_disk(path), temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """Give an empty directory to write into; on success it takes the place of `path`, on failure nothing changes.

    What a killed process leaves, `.<name>.partial` and `.<name>.old`, the next one clears away.

    Raises:
        InputError: If another process writes this directory, or none can be made there.
    """
    work, old, lock = (path.with_name(f".{path.name}.{kind}") for kind in ("partial", "old", "ani-lock"))
    with _locked(path, lock), naming_full_disk(path):
        try:
            _put_back(old, path)  # killed between the two moves below
            _remove(work)
            _remove(old)
            work.mkdir()
            yield work
            if path.exists():
                os.replace(path, old)
            os.replace(work, path)
        finally:
            _put_back(old, path)
            with suppress(OSError):
                _remove(work)
                _remove(old)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()  # what it points to is somebody's own
    elif path.exists():
        shutil.rmtree(path)


def _put_back(old: Path, path: Path) -> None:
    if old.exists() and not path.exists():
        os.replace(old, path)


@contextmanager
def only_process_in(folder: Path, *, wait: float = 0) -> Iterator[None]:
    """Keep other processes from an output folder, which is made if it isn't there; nothing of the lock remains.

    Of the processes of one distributed run only the main one asks for the folder.

    Args:
        folder: The output.
        wait: Seconds that another process, which is about to end, is given.

    Raises:
        InputError: If another process works on it, or it can't be written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output {folder} is a file; name a directory")
    with _locked(folder, folder / ".lock", wait):
        for file in folder.glob(".*.ani-lock"):
            with suppress(Timeout), FileLock(file, timeout=0):  # it is held unless its process was killed
                file.unlink(missing_ok=True)
        yield


@contextmanager
def _locked(path: Path, file: Path, wait: float = 0) -> Iterator[None]:
    if not is_main():
        yield
        return
    made = [folder for folder in file.parents if not folder.exists()]
    try:
        lock = FileLock(file, timeout=wait)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise InputError(f"another process works on {path}; wait for it, or name another output") from error
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            raise InputError(
                f"output {path} can't be written ({error.strerror or error}); name another, or make it writable"
            ) from error
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()  # while the lock is held: who waits for it sees that it has no name, and asks anew
            lock.release()
    finally:
        for folder in made:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Turn errors of a full disk into OSErrors that name `path`.

    Python's own name no file where a write fails, and those of torch and safetensors are of other kinds.
    """
    try:
        yield
    except InputError:
        raise  # of another place
    except Exception as error:
        number = _errno(error)
        if number not in DISK_FULL or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _errno(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    if found := re.search(r"\(os error (\d+)\)", str(error)):  # written in Rust
        return int(found[1])
    # torch.save doesn't say why it could not write.
    return errno.ENOSPC if re.search("inline_container|iostream error", str(error)) else None
