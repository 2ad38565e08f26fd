"""Swaps an object's class for a subclass of itself, and restores it."""

import functools
from typing import Any, cast


class ClassOfBaseInstances(type):
    """Kind of a layer's class. accelerate's FSDP finds a layer's class by its name and shards the instances of it:
    when the swapped layer is the first that it meets, the other layers must be among them."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cast(Any, cls)._ani_base)


def swap_class(instance: object, mixin: type[Any], kind: type[type] = type) -> None:
    """Mix a class into an object's own, in place: it stays the same object, and an instance of the class it was of."""
    instance.__class__ = _subclass(*cast(Any, (mixin, type(instance), kind)))


def restore_class(instance: object) -> None:
    """Give an object the class back that it had before `swap_class`."""
    instance.__class__ = cast(Any, instance)._ani_base


@functools.cache
def _subclass(mixin: type[Any], base: type[Any], kind: type[type]) -> type[Any]:
    # The name stays: transformers writes it into config.json (`architectures`) and looks layers up by it.
    return kind(base.__name__, (mixin, base), {"_ani_base": base, "__module__": base.__module__})
