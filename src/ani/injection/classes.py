"""Swaps an object's class for a subclass of itself, and restores it; wraps a model's forward."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from ani.errors import InputError


class ClassOfBaseInstances(type):
    """Metaclass of a layer's class. accelerate's FSDP finds a layer's class by its name and shards its instances: if
    it finds the swapped class first, the other layers must also be instances of it."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cast(Any, cls)._ani_base)


def swap_class(instance: object, mixin: type[Any], kind: type[type] = type) -> None:
    """Mix a class into an object's own, in place: it stays the same object, and an instance of its class."""
    instance.__class__ = _subclass(*cast(Any, (mixin, type(instance), kind)))


def restore_class(instance: object) -> None:
    """Restore the class that an object had before `swap_class`."""
    instance.__class__ = cast(Any, instance)._ani_base


@functools.cache
def _subclass(mixin: type[Any], base: type[Any], kind: type[type]) -> type[Any]:
    # The name stays: transformers writes it into config.json (`architectures`) and looks layers up by it.
    return kind(base.__name__, (mixin, base), {"_ani_base": base, "__module__": base.__module__})


class OutermostForward:
    """`forward` of an attached model: calls `run` with the model, the model's own forward, and the arguments.

    A data descriptor, because others replace `model.forward` on the instance (TRL's fused head, accelerate's
    autocast) and PEFT calls it directly: what they set is what we wrap, so ANI stays outermost and is never lost.
    Module hooks don't suffice: they fire only in `__call__`, which AdaLoRA passes by, as did every tuner of PEFT 0.18.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __get__(self, model: Any, owner: Any) -> Any:
        if torch.compiler.is_exporting():
            raise InputError("torch.export can't trace a model with ANI, which reads token ids; call ani.detach first")
        return self._forward(model, owner)

    @torch.compiler.disable(recursive=False)
    def _forward(self, model: Any, owner: Any) -> Callable[..., Any]:
        if model is None:
            return cast(Callable[..., Any], owner._ani_base.forward)
        inner = model.__dict__.get("_ani_inner_forward") or owner._ani_base.forward.__get__(model)
        wrapped: Callable[..., Any] = functools.wraps(inner)(functools.partial(self._run, model, inner))
        return wrapped

    def __set__(self, model: Any, forward: Callable[..., Any]) -> None:
        model.__dict__["_ani_inner_forward"] = forward

    def __delete__(self, model: Any) -> None:
        del model.__dict__["_ani_inner_forward"]


def named_arguments(method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method's call, by name."""
    return {**dict(zip(_parameters(method), args, strict=False)), **kwargs}


@functools.cache
def _parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)[1:]
