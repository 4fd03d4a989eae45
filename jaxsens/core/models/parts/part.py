"""The base class of all parts of a transformer: a part's class is either abstract or final."""

from __future__ import annotations

import abc
import inspect


class Part(abc.ABC):  # noqa: B024  its families have the abstract methods
    """Base class of the families of parts: weightings, position terms, schedules.

    A family is an abstract class that declares the methods of its members; a member without one of them cannot be
    created. Members are final. Code with rules recognises a member by its class, so a subclass that behaves differently
    would be mistaken for it: `class Sharper(Softmax)` would be measured by the rules of `Softmax`.
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for base in cls.__bases__:
            if base is not Part and issubclass(base, Part) and not inspect.isabstract(base):
                raise TypeError(
                    f"{base.__name__} is final: {cls.__name__} needs an abstract class of its family"
                )
