"""What every part of a transformer has in common: its class is abstract, or final."""

from __future__ import annotations

import abc
import inspect


class Part(abc.ABC):  # noqa: B024  its families have the abstract methods
    """Base of the families of parts: weightings, position terms, schedules.

    A family is an abstract class that names the behaviours of its members; a member that lacks one cannot be made. A
    member is final. Its consumers recognise it by its class, so a subclass with another behaviour would be taken for
    what it is not: `class Sharper(Softmax)` would be measured by the rules of `Softmax`.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for base in cls.__bases__:
            if base is not Part and issubclass(base, Part) and not inspect.isabstract(base):
                raise TypeError(
                    f"{base.__name__} is final: {cls.__name__} needs an abstract class of its family"
                )
