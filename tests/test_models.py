"""Where a model runs: the line that says it, and a warning of an unused card."""

import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch

import ani.cli
import ani.devices
from ani.devices import DEVICE, default_device, default_dtype, where

GIB = 2**30
HIDDEN = "No CUDA GPUs are available"
OLD = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DEVICE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(ani.devices, "_NVIDIA", tmp_path / "none")
    monkeypatch.setattr(shutil, "which", lambda program: None)
    ani.devices._warn_of_unused_card.cache_clear()


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (78 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert where() == "NVIDIA H100 80GB HBM3 (cuda:1), bfloat16, 78.0 of 80.0 GiB free"
    assert where("float16").split(", ")[1] == "float16"
    monkeypatch.setenv(DEVICE, "cpu")
    assert default_device() == "cpu"
    assert re.fullmatch(rf"CPU \({os.cpu_count()} cores\), float32, [\d.]+ of [\d.]+ GiB free", where("float32"))


def test_a_cpus_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernels, computes in (("AVX512", True), ("AVX512", False), ("AVX2", True)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda kernels=kernels: kernels)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda computes=computes: computes)
        assert default_dtype("cpu") == (torch.bfloat16 if (kernels, computes) == ("AVX512", True) else torch.float32)


@pytest.mark.parametrize(
    ("built", "hidden", "error"), [(None, None, "built without CUDA"), ("13.0", "7", HIDDEN), ("13.0", "0", OLD)]
)
def test_a_card_that_torch_cannot_use_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, built: str | None, hidden: str | None, error: str
) -> None:
    def init() -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "init", init)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        where()  # there is none
    ani.devices._warn_of_unused_card.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda program: "/usr/bin/nvidia-smi")
    with pytest.warns(UserWarning, match=re.escape("CUDA_VISIBLE_DEVICES='7'" if error == HIDDEN else error)):
        where()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        where()


def test_the_option_for_the_cpu_hides_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(DEVICE, "auto")
    monkeypatch.setattr(sys, "argv", ["ani", "train", "none.yaml", "--device", "cpu"])
    with pytest.raises(SystemExit):
        ani.cli.main()
    assert (os.environ[DEVICE], os.environ["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
