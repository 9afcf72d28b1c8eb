"""Ctrl-C and SIGTERM as a count."""

from __future__ import annotations

import signal

from headrace.runtime.interrupts import Interrupts, held


def test_signals_are_held_only_while_they_are_counted():
    assert not held()
    with Interrupts() as interrupts:
        assert held()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.count == 1
    assert not held()


def test_a_signal_that_is_ignored_stays_ignored():
    """As in the background of a shell, where Ctrl-C is meant for another program."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        assert interrupts.count == 1
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
