"""Shared memory that has no name, so that no way of dying leaves one behind.

A block is a descriptor and a mapping of it. Whoever shall share it gets the descriptor (`ForkServer.spawn`
passes it on) and attaches; the memory goes back to the machine when the last descriptor and the last
mapping are gone, also after ``kill -9`` of everybody.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headrace.core.errors import ConfigError

OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers of a process, or a machine, that may open no more files."""

_LESS = "ask for less, for instance with a smaller replay.capacity"


class SharedBlock:
    """A piece of anonymous shared memory.

    Closing order: first drop every array and memoryview taken from the block, then `close` it; the memory is
    then unmapped at once. A view that is still alive stays valid: its pages stay mapped until the view is
    collected, only the descriptor is given back right away.

    Args:
        fd: The descriptor; the block owns it from now on.
        nbytes: Size in bytes.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes)
        self.buf = memoryview(self._map)
        """All bytes, writable."""

    @classmethod
    def create(cls, nbytes: int, fix: str = _LESS) -> Self:
        """A new block of zeros.

        Args:
            nbytes: Its size in bytes.
            fix: What to do where the machine refuses as much.

        Raises:
            ConfigError: The size is not positive, or the machine refuses it.
            OSError: This process may not open as many files.
        """
        if nbytes <= 0:
            raise ConfigError(
                "shared memory needs a positive size", bytes=nbytes, fix="ask for at least one byte of shared memory"
            )
        return cls.sized(_anonymous_file(), nbytes, fix)

    @classmethod
    def sized(cls, fd: int, nbytes: int, fix: str = _LESS) -> Self:
        """The block behind a descriptor, which is given its size by that.

        Args:
            fd: Of the block, whose bytes stay as far as it reaches; taken over, and closed if this fails.
            nbytes: Its size in bytes from now on.
            fix: What to do where the machine refuses as much.

        Raises:
            ConfigError: The machine refuses it.
        """
        try:
            with _refusal_told(nbytes, fix):
                os.ftruncate(fd, nbytes)
                return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int, fix: str = _LESS) -> Self:
        """The block somebody else created.

        Args:
            fd: A descriptor of it that was handed to this process; taken over, and closed if this fails.
            nbytes: Its size in bytes as its creator knows it.
            fix: What to do where the machine refuses to map as much.

        Raises:
            ConfigError: The file behind the descriptor is smaller than that; touching it would be a crash. Or the
                machine refuses to map it.
        """
        found = os.fstat(fd).st_size
        if not 0 < nbytes <= found:
            os.close(fd)
            raise ConfigError(
                "a shared memory block is not as large as its creator said",
                expected_bytes=nbytes,
                found_bytes=found,
                fix="attach with the nbytes of the block whose descriptor this is",
            )
        try:
            with _refusal_told(nbytes, fix):
                return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    def array(self, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A writable array over a part of the block, without a copy.

        Args:
            dtype: Any fixed-size dtype, structured ones included.
            shape: Of the array, C order.
            offset: Byte at which it begins.

        Raises:
            ConfigError: It would reach beyond the block.
        """
        kind = np.dtype(dtype)
        end = offset + kind.itemsize * math.prod(shape)
        if offset < 0 or end > self.nbytes:
            raise ConfigError(
                "an array does not fit into its shared memory block",
                dtype=kind,
                shape=shape,
                offset=offset,
                ends_at_byte=end,
                block_bytes=self.nbytes,
                fix="create the block large enough for everything that is laid over it",
            )
        # Not np.ndarray(buffer=...): that does not hold the mapping, and `close` would pull it away under the array.
        raw = np.frombuffer(self._map, np.uint8, count=end - offset, offset=offset)
        return raw.view(kind).reshape(shape)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.fd < 0

    def close(self) -> None:
        """Give the descriptor back, and the memory unless views of it are alive; again is harmless."""
        if self.closed:
            return
        fd, self.fd = self.fd, -1  # first: what is interrupted here may be called again
        os.close(fd)
        try:
            self.buf.release()
            self._map.close()
        except BufferError:
            # Views hold the mapping: unmapping now would turn their next use into a segmentation fault.
            # Forgetting our own reference lets the last view take the mapping with it.
            del self._map, self.buf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _refusal_told(nbytes: int, fix: str) -> Iterator[None]:
    """Around what asks the machine for memory: a refusal is told as one; a lack of files is none."""
    try:
        yield
    except (OSError, ValueError, OverflowError) as error:
        if getattr(error, "errno", 0) in OUT_OF_FILES:
            raise
        raise ConfigError(f"the machine refused {nbytes:,} bytes of shared memory", error=error, fix=fix) from error


def _anonymous_file() -> int:
    """A close-on-exec descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="headrace-")
    os.unlink(path)  # noqa: PTH108 - at once, or a crash in between would leave the name
    return fd
