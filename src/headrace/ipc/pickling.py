"""Python objects as messages, and back: whatever goes wrong in an object's own code is told in our words."""

from __future__ import annotations

import pickle
from typing import Any

from headrace.core.errors import ComponentError


def encoded(obj: object) -> bytes:
    """What goes through a channel for an object.

    Raises:
        ComponentError: It cannot be pickled.
    """
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        # Pickling runs the object's own code, which may raise anything.
        raise ComponentError(
            f"a message of type {type(obj).__name__} cannot be pickled",
            error=f"{type(error).__name__}: {error}",
            fix="send only plain data and objects of importable classes",
        ) from error


def decoded(message: bytes, peer: str) -> Any:
    """The object of a message from ``peer``.

    Raises:
        ComponentError: It cannot be unpickled here.
    """
    try:
        return pickle.loads(message)
    except Exception as error:
        # Unpickling runs the message's own code, which may raise anything.
        raise ComponentError(
            f"a message from {peer} cannot be unpickled",
            error=f"{type(error).__name__}: {error}",
            bytes=len(message),
            fix="send only objects whose classes the receiving process can import",
        ) from error
