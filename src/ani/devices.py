"""The device and dtype that compute, and the machine's cards."""

import os
import shutil
import subprocess
import warnings
from functools import cache
from pathlib import Path

import psutil
import torch

from ani.errors import one_line
from ani.files import is_main

DEVICE = "ANI_DEVICE"
"""Environment variable: `cpu` selects the CPU, like `--device cpu`."""
_NVIDIA = Path("/proc/driver/nvidia")


def default_device() -> str:
    """The current GPU, such as `cuda:0`, or `cpu`; warns once if torch can't use an NVIDIA card of this machine."""
    if os.environ.get(DEVICE) == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return f"cuda:{torch.cuda.current_device()}"  # each of several processes sets one
    if is_main():
        _warn_of_unused_card()
    return "cpu"


def default_dtype(device: str | None = None) -> torch.dtype:
    """bfloat16 where the device (None: `default_device`) computes in it, else float32.

    On a CPU torch's bfloat16 kernels need AVX-512, which `ATEN_CPU_CAPABILITY` may disable.
    """
    device = device or default_device()
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    kernels = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if device == "cpu" and kernels else torch.float32


def where(dtype: str = "auto") -> str:
    """A line with the name of `default_device`, the dtype and the free memory."""
    device = default_device()
    computed = str(default_dtype(device)).removeprefix("torch.") if dtype == "auto" else dtype
    if device == "cpu":
        name, memory = f"CPU ({os.cpu_count()} cores)", psutil.virtual_memory()
        free, total = memory.available, memory.total
    else:
        name, (free, total) = f"{torch.cuda.get_device_name()} ({device})", torch.cuda.mem_get_info()
    return f"{name}, {computed}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def cards() -> dict[str, str | None]:
    """Versions of CUDA in torch and of the NVIDIA driver, and the names of all cards, used or not."""
    asked = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    printed = subprocess.run(asked, capture_output=True, text=True).stdout if shutil.which(asked[0]) else ""
    found = [line.partition(", ") for line in printed.splitlines()]
    usable = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)  # hidden cards may be counted
    names = [card for _, _, card in found] or map(torch.cuda.get_device_name, usable)
    return {"cuda": torch.version.cuda, "driver": found[0][0] if found else None, "cards": "; ".join(names) or None}


@cache
def _warn_of_unused_card() -> None:
    if not _NVIDIA.exists() and shutil.which("nvidia-smi") is None:
        return
    why, hidden = "this torch is built without CUDA; install one that has it", os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        if torch.version.cuda is not None:
            torch.cuda.init()
    except RuntimeError as error:
        why = one_line(error)
        if "No CUDA GPUs" in why and hidden is not None:
            why = f"CUDA_VISIBLE_DEVICES={hidden!r} hides it; unset it, or use --device cpu"
    warnings.warn(f"using the CPU: torch can't use this machine's NVIDIA card: {why}", stacklevel=2)
