"""A simulated CUDA device for fake tensors: tracks memory and autocast, and reports faults.

`register` changes torch for the rest of the process.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.flop_counter import flop_registry

from ani.injection.locate import NumberLocator
from ani.injection.number_batch import NumberBatch

DEVICE = torch.device("cpu")
"""Device of fake tensors; `register` changes it."""
_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten._scaled_dot_product_flash_attention}
_COPIES = {_aten._to_copy, _aten.clone}
_BFLOAT16 = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
_FLOAT32 = ("softmax.int", "log_softmax.int", "pow.Tensor_Scalar", "rsqrt", "exp", "sum", "rms_norm")
"""Operators of language models that CUDA's autocast computes in bfloat16, or in float32."""
_libraries: list[torch.library.Library] = []


class Fault(Exception):
    """An error, a wait or a waste of memory that a card would show."""


def fake(tensor: torch.Tensor) -> Any:
    """A tensor of the same shape and dtype on the device. The host, which made its values, may read them (`tolist`)."""
    made: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
    made.values_on_host = tensor
    return made


def register() -> None:
    """Make `gpu:0` the device of fake tensors, for the rest of the process."""
    global DEVICE
    _setup_privateuseone_for_python_backend("gpu")
    DEVICE = torch.device("gpu:0")
    vars(torch)["gpu"].get_amp_supported_dtype = lambda: [torch.bfloat16]
    _libraries[:] = [torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")]
    _libraries[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for dtype, names in ((torch.bfloat16, _BFLOAT16), (torch.float32, _FLOAT32)):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(_aten, packet), overload or "default")
            _libraries[1].impl(operator, _autocast(operator, dtype), "AutocastPrivateUse1")
    enabled, tensor, batch = torch.is_autocast_enabled, torch.tensor, NumberLocator.batch
    tolist = FakeTensor.tolist

    def made(data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **given: Any) -> torch.Tensor:
        if device is None or torch.device(device).type == "cpu":
            found = tensor(data, dtype=dtype, **given)
            if isinstance(found, FakeTensor):
                found.constant = None  # which torch would move to the device
            return found
        with _disable_current_modes():
            found = tensor(data, dtype=dtype, **given)
        return cast(torch.Tensor, fake(found))

    def found_numbers(locator: NumberLocator, *args: Any, **given: Any) -> NumberBatch:
        with _disable_current_modes():
            numbers = batch(locator, *args, **given)
        return NumberBatch(*map(fake, vars(numbers).values()))

    changes: list[tuple[Any, str, Any]] = [
        (torch, "is_autocast_enabled", lambda device="gpu": enabled(device)),  # PEFT asks for CUDA's
        (torch, "tensor", made),  # fake tensors have none for such a device
        (nn.functional, "scaled_dot_product_attention", _attention),
        (NumberLocator, "batch", found_numbers),
        (FakeTensor, "tolist", lambda x: x.values_on_host.tolist() if hasattr(x, "values_on_host") else tolist(x)),
    ]
    for place, name, change in changes:
        setattr(place, name, change)


def _autocast(operator: Any, dtype: torch.dtype) -> Callable[..., Any]:
    key: Any = torch._C._dispatch_key_parse("AutocastPrivateUse1")

    def to_dtype(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point() and value.device == DEVICE
        return value.to(dtype) if floating else value

    def kernel(*args: Any, **given: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return operator(*map(to_dtype, args), **{name: to_dtype(value) for name, value in given.items()})

    return kernel


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, scale: Any = None, **_: Any
) -> Any:
    """Flash attention without a mask: transformers makes a mask where it cannot read that none is needed."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    causal = query.shape[2] > 1
    return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, causal, False, scale=scale)[0]


class Watch(TorchDispatchMode):
    """Counts operations, and the bytes of all storages on `DEVICE` as CUDA's allocator rounds them. Raises Fault for a
    product of several dtypes or devices, a value that the host reads, unneeded logits, or a second copy of them.

    Attributes:
        now: Bytes in use.
        peak: Most bytes in use so far.
        flops: Floating-point operations of products and attention so far.
        causal: False if attention has a mask of several texts, with which it computes the masked half too.
        logits: Rows of logits that the pass needs, and their width, the vocabulary; None: not watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.flops = 0
        self.causal = True
        self.logits: tuple[int, int] | None = None
        self._copies = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator, given = func.overloadpacket, kwargs or {}
        if operator is _aten._local_scalar_dense and isinstance(args[0], FakeTensor):
            if args[0].device == DEVICE:
                raise Fault("the host reads a value of the device, and waits for it")
            return 1.0 if args[0].dtype.is_floating_point else 1
        if operator in _PRODUCTS:
            factors = [x for x in args if isinstance(x, torch.Tensor)]
            for kinds in ({str(x.device) for x in factors}, {str(x.dtype).removeprefix("torch.") for x in factors}):
                if len(kinds) > 1:
                    raise Fault(f"{operator.__name__} multiplies {' with '.join(sorted(kinds))}")
        out = func(*args, **given)
        if operator in flop_registry:
            flops = flop_registry[operator](*args, **given, out_val=out)
            self.flops += flops // 2 if self.causal and "attention" in func.name() else flops
        elif func.name() == "bitsandbytes::gemm_4bit":
            self.flops += 2 * out.numel() * args[0].shape[-1]
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor) and made.device == DEVICE:
                self._add(made, operator in _COPIES)
        self.peak = max(self.peak, self.now)
        return out

    def _add(self, made: torch.Tensor, copied: bool) -> None:
        storage = made.untyped_storage()
        if storage in self._seen:
            return
        size = math.ceil(storage.nbytes() / 512) * 512
        self._seen.add(storage)
        self.now += size
        weakref.finalize(storage, self._free, size)
        if self.logits is not None and made.ndim > 1 and made.shape[-1] == self.logits[1]:
            needed, rows = self.logits[0], made.numel() // made.shape[-1]
            self._copies += copied
            if rows > needed:
                raise Fault(f"logits of {rows:,} tokens are computed, where {needed:,} are learnt")
            if self._copies > 1:
                raise Fault("the logits are copied a second time; the loss has a float32 copy")

    def _free(self, size: int) -> None:
        self.now -= size
