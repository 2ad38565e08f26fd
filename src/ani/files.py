"""Atomic writes of files and directories, and a lock that lets one process work in a folder."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout

from ani.errors import InputError


def is_main() -> bool:
    """True if this process prints and writes: it is the only one, or the first that torchrun or accelerate started.

    Reads the launcher's environment variables, before accelerate's `is_main_process` is known.
    """
    return int(os.environ.get("WORLD_SIZE", 1)) == 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def replacing_file(path: Path) -> Iterator[TextIO]:
    """A UTF-8 text file to write; on success it replaces `path`, on failure nothing changes. The next writer replaces
    `.<name>.partial`, which a killed process leaves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """An empty directory to write into; on success it replaces `path`, on failure nothing changes. The next writer
    removes `.<name>.partial` and `.<name>.old`, which a killed process leaves. Raises InputError if another process
    writes this directory, or it cannot be written."""
    work, old, lock = (path.with_name(f".{path.name}.{kind}") for kind in ("partial", "old", "ani-lock"))
    with _locked(path, lock):
        try:
            _put_back(old, path)  # killed between the two moves below
            _remove(work)
            _remove(old)
            work.mkdir()
            yield work
            for file in work.rglob("*"):  # safetensors lets only the owner read its files
                if file.is_file():
                    file.chmod(work.stat().st_mode & 0o666)
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
        path.unlink()  # its target may be the user's own
    elif path.exists():
        shutil.rmtree(path)


def _put_back(old: Path, path: Path) -> None:
    if old.exists() and not path.exists():
        os.replace(old, path)


def check_replaceable(path: Path, kind: str, is_kind: bool) -> None:
    """Raise InputError if a path exists and is neither an output of a kind, such as "ANI adapter", nor an empty
    directory."""
    if path.exists() and not is_kind and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists and is no {kind}; name another path or remove it")


@contextmanager
def only_process_in(folder: Path, *, wait: float = 0) -> Iterator[None]:
    """Lock an output folder against other processes; make it if it is missing, and remove the lock at the end.

    In a distributed run only the main process takes the lock. Raises InputError if another process works on the folder
    (for `wait` seconds), or it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output {folder} is a file; name a directory")
    with _locked(folder, folder / ".lock", wait):
        for file in folder.glob(".*.ani-lock"):
            with suppress(Timeout), FileLock(file, timeout=0):  # free if its process was killed
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
            raise InputError(
                f"output {path} can't be written ({error.strerror or error}); name another, or make it writable"
            ) from error
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()  # before the release, so that a waiting process sees that it is gone and makes a new one
            lock.release()
    finally:
        for folder in made:
            with suppress(OSError):  # not empty
                folder.rmdir()
