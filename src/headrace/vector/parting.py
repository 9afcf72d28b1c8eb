"""Who shares a worker after one has ended: whoever may have ended it is not put together again with all the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def parted(housed: Sequence[int], suspects: Collection[int], *, again: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of environments that each get a worker, after the one that they shared has ended.

    Suspects are halved: if one of them ends its worker each time, it is alone after as many times as their number can be
    halved. The others stay together once. Where that worker stood already for one that had ended, whoever was suspected
    then may have been innocent (a thread that one environment has left behind ends the process while another one is
    stepped), so the others are halved too.

    Args:
        housed: Environments of the worker that ended, ascending.
        suspects: Those of them that may have ended it.
        again: Whether it stood for another one that had ended.

    Returns:
        Groups of suspects, and groups of the others; none is empty.
    """
    suspected = [env for env in housed if env in suspects]
    others = [env for env in housed if env not in suspects]
    return halved(suspected), halved(others) if again else [others] if others else []


def halved(envs: list[int]) -> list[list[int]]:
    """Two halves, the first one the larger; of one environment there is only that."""
    middle = (len(envs) + 1) // 2
    return [half for half in (envs[:middle], envs[middle:]) if half]
