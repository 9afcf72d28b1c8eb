"""Channels and message pipes: order, size, deadlines, and what happens when the other end goes."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import select
import socket
import struct
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ChannelClosed, ComponentError, ComponentStalled
from headrace.ipc import channel
from headrace.ipc.channel import Channel, Deadline, MessagePipe, poll_fds
from headrace.ipc.descriptors import FdChannel

LIMIT_S = 60.0  # bounds a failure; a success never waits for it


def refuse(*_args):
    raise ValueError("this cannot be unpickled")


class Unreadable:
    def __reduce__(self):
        return refuse, ()


class Unsendable:
    def __reduce__(self):
        raise TypeError("this stays here")


@pytest.fixture
def pair():
    ours, theirs = Channel.pair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pipe():
    with MessagePipe.create(16) as pipe:
        yield pipe


def test_messages_arrive_in_order_both_ways(pair):
    ours, theirs = pair
    for message in (1, "two", {"three": [3.0]}):
        ours.send(message, LIMIT_S)
    theirs.send(b"back", LIMIT_S)
    assert [theirs.receive(LIMIT_S) for _ in range(3)] == [1, "two", {"three": [3.0]}]
    assert ours.receive_all() == [b"back"]
    assert theirs.receive_all() == []


def test_a_message_larger_than_any_buffer_is_completed_by_later_calls(pair):
    ours, theirs = pair
    message = bytes(range(256)) * 20_000  # 5 MB
    assert ours.try_send(message)
    assert ours.unsent_bytes
    assert not ours.try_send("behind it")
    received = []
    while not received:
        received = theirs.receive_all()
        ours.flush()
    assert received == [message]
    assert not ours.unsent_bytes
    assert ours.try_send("behind it")
    assert theirs.receive(LIMIT_S) == "behind it"


class Uncounted(deque[bytes]):
    """Nobody goes through all of it."""

    def __iter__(self):
        raise AssertionError("a long backlog would be gone through at every look")


def test_what_is_unsent_is_known_without_going_through_it(pair):
    ours, theirs = pair
    ours._backlog = Uncounted()
    big = bytes(300_000)
    sizes = []
    for _ in range(20):
        ours.post(big)
        sizes.append(ours.unsent_bytes)
    framed = 8 + len(pickle.dumps(big, pickle.HIGHEST_PROTOCOL))
    assert sizes[-1] - sizes[-2] == framed
    assert 18 * framed < sizes[-1] < 20 * framed
    received = []
    while len(received) < 20:
        received += theirs.receive_all()
        assert ours.receive_all() == []
    assert (received, ours.unsent_bytes) == ([big] * 20, 0)
    for _ in range(20):
        ours.post(big)
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.flush()
    assert ours.unsent_bytes == 0


def test_two_ends_that_only_receive_still_complete_what_they_began(pair):
    ours, theirs = pair
    big = bytes(3_000_000)
    assert ours.try_send(big)
    assert theirs.try_send(big)
    got = {}
    while len(got) < 2:
        for name, end in (("ours", ours), ("theirs", theirs)):
            for message in end.receive_all():
                got[name] = message
    assert got == {"ours": big, "theirs": big}


def test_a_full_channel_takes_nothing_of_a_message_it_refuses(pair):
    ours, theirs = pair
    sent = 0
    while ours.try_send(sent):
        sent += 1
    received = []
    while len(received) < sent:
        received += theirs.receive_all()
        ours.flush()
    assert received == list(range(sent))


def test_send_gives_up_at_its_deadline_and_says_whether_the_message_was_begun(pair):
    ours, _theirs = pair
    ours.peer = "collector-0"
    with pytest.raises(ComponentStalled) as caught:
        ours.send(bytes(5_000_000), 0.01)
    assert str(caught.value) == (
        "[SUP-002] collector-0 did not take a message within 0.01 s\n"
        "  message: bytes\n"
        "  begun: True\n"
        "  fix: see what that component is doing; raise the timeout if it is only slow"
    )


def test_receive_gives_up_at_its_deadline(pair):
    ours, _theirs = pair
    with pytest.raises(ComponentStalled, match=r"sent no message within 0\.01 s"):
        ours.receive(0.01)


def test_what_was_sent_before_the_end_is_received_after_it(pair):
    ours, theirs = pair
    theirs.send("last words", LIMIT_S)
    theirs.close()
    assert not ours.peer_alive()
    with pytest.raises(ChannelClosed):
        ours.send("too late", LIMIT_S)
    assert ours.closed_by_peer
    assert ours.receive(LIMIT_S) == "last words"
    with pytest.raises(ChannelClosed):
        ours.receive(LIMIT_S)
    with pytest.raises(ChannelClosed):
        ours.receive_all()


def test_an_end_with_unread_input_counts_as_closed_not_as_an_oserror(pair):
    ours, theirs = pair
    ours.send("never read", LIMIT_S)
    theirs.close()  # the kernel makes a reset of this
    with pytest.raises(ChannelClosed):
        ours.receive(LIMIT_S)


def test_half_a_message_before_the_end_is_not_a_message(pair):
    ours, theirs = pair
    os.write(theirs.fileno(), struct.pack("<Q", 100) + b"only the beginning")
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.receive(LIMIT_S)


def test_an_unreadable_message_costs_only_itself(pair):
    ours, theirs = pair
    for message in ("before", Unreadable(), "after", "more"):
        ours.send(message, LIMIT_S)
    assert theirs.receive_all() == ["before"]
    with pytest.raises(ComponentError, match="cannot be unpickled") as caught:
        theirs.receive_all()
    assert caught.value.facts["error"] == "ValueError: this cannot be unpickled"
    assert theirs.receive_all() == ["after", "more"]


def test_an_unsendable_message_sends_nothing(pair):
    ours, theirs = pair
    with pytest.raises(ComponentError, match="type Unsendable cannot be pickled"):
        ours.try_send(Unsendable())
    ours.send("fine", LIMIT_S)
    assert theirs.receive_all() == ["fine"]


def test_a_damaged_stream_closes_the_channel(pair):
    ours, theirs = pair
    os.write(theirs.fileno(), b"\xff" * 64)
    with pytest.raises(ChannelClosed):
        ours.receive(LIMIT_S)


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_messages_survive_any_fragmentation(messages, step):
    ours, theirs = Channel.pair()
    with ours, theirs:
        stream = b"".join(
            struct.pack("<Q", len(data)) + data for data in (pickle.dumps(message) for message in messages)
        )
        received = []
        for start in range(0, len(stream), step):
            os.write(ours.fileno(), stream[start : start + step])
            received += theirs.receive_all()
        assert received == messages


def test_descriptors_travel_in_the_order_of_their_messages():
    sockets = Channel.pair()
    pipes = [MessagePipe.create(1) for _ in range(3)]
    ours, theirs = (FdChannel(end._sock.dup()) for end in sockets)
    for end in sockets:
        end.close()
    try:
        for number, pipe in enumerate(pipes):
            ours.attach_fds([pipe.reader_fd])
            ours.send(number, LIMIT_S)
            pipe.put(bytes([number]))
        assert theirs.receive_all() == [0, 1, 2]
        for number in range(3):
            [fd] = theirs.take_fds()
            assert os.read(fd, 1) == bytes([number])
            assert not os.get_inheritable(fd)
            os.close(fd)
        ours.attach_fds([pipes[0].reader_fd])
        ours.send("nobody takes its descriptor", LIMIT_S)
        theirs.receive_all()
    finally:
        for closing in (ours, theirs, *pipes):
            closing.close()  # the untaken descriptor too, or no_leaks tells


def test_descriptors_that_found_no_place_are_missed_with_their_own_message(monkeypatch):
    sockets = Channel.pair()
    ours, theirs = (FdChannel(end._sock.dup()) for end in sockets)
    receive = socket.recv_fds

    def without_the_last(*args):  # as where one file less may be opened
        data, fds, flags, address = receive(*args)
        os.close(fds.pop())
        return data, fds, flags | socket.MSG_CTRUNC, address

    with ours, theirs, sockets[0], sockets[1], MessagePipe.create(1) as pipe:
        for number, seen in enumerate((without_the_last, receive)):
            monkeypatch.setattr(socket, "recv_fds", seen)
            ours.attach_fds([pipe.reader_fd, pipe.writer_fd])
            ours.send(number, LIMIT_S)
            assert theirs.receive(LIMIT_S) == number
        with pytest.raises(OSError, match="Too many open files"):
            theirs.take_fds()
        for fd in theirs.take_fds():
            os.close(fd)


def test_a_wait_may_be_as_long_as_anybody_likes(pair):
    ours, theirs = pair
    theirs.send("here", LIMIT_S)
    assert poll_fds({ours.fileno(): select.POLLIN}, 1e9) == {ours.fileno(): select.POLLIN}
    assert ours.receive(1e9) == "here"


@pytest.mark.parametrize(
    ("timeout_s", "frozen", "slices"),
    [
        (-1.0, (), [0.0]),
        (5.0, (), [5.0]),
        (12.0, (), [5.0, 5.0, 2.0]),
        (12.0, (1,), [5.0, 5.0, 5.0]),
        (12.0, (2,), [5.0, 5.0, 2.0, 5.0]),
        (0.5, (0,), [0.5, 0.5]),
        (0.0, (0,), [0.0]),
    ],
)
def test_a_long_wait_is_a_sum_of_short_ones_and_being_frozen_is_no_part_of_it(monkeypatch, timeout_s, frozen, slices):
    waits, now_s = [], 0.0

    class Poller:
        def poll(self, timeout_ms):
            nonlocal now_s
            now_s += timeout_ms / 1000.0 + 3600.0 * (len(waits) in frozen)
            waits.append(timeout_ms / 1000.0)
            return []

    monkeypatch.setattr(select, "poll", Poller)
    monkeypatch.setattr(channel, "monotonic_s", lambda: now_s)
    assert poll_fds({}, timeout_s) == {}
    assert waits == slices


def test_waiting_on_a_descriptor_that_was_closed_here_is_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(ChannelClosed, match="has closed itself"):
        poll_fds({reader: select.POLLIN}, LIMIT_S)


def test_a_deadline_never_has_less_than_nothing_left():
    assert Deadline(-1.0).passed
    assert Deadline(-1.0).left_s() == 0.0
    assert 0.0 < Deadline(LIMIT_S).left_s() <= LIMIT_S


def test_pipe_delivers_whole_messages_in_order(pipe):
    sent = [bytes([number]) * 16 for number in range(100)]
    for message in sent:
        pipe.put(message)
    assert pipe.take() == sent
    assert pipe.take() == []


def test_a_full_pipe_is_an_error_and_loses_nothing(pipe):
    numbers = iter(range(2**20))
    with pytest.raises(ComponentError, match="more messages are in flight than credits allow"):
        deque((pipe.put(number.to_bytes(16, "little")) for number in numbers), maxlen=0)
    refused = next(numbers) - 1
    assert [int.from_bytes(message, "little") for message in pipe.take()] == list(range(refused))


def test_pipe_refuses_a_message_of_another_size(pipe):
    with pytest.raises(ComponentError, match="size of its pipe"):
        pipe.put(b"short")
    assert pipe.take() == []


@pytest.mark.parametrize("size", [1, 40, 56, 3104, select.PIPE_BUF])
def test_pipe_holds_as_many_messages_as_it_has_made_room_for(size):
    with MessagePipe.create(size) as pipe:
        pipe.make_room(200)
        count, page = pipe.room, max(1, 4096 // size)
        assert count >= 200
        for taken in {0, 1, page // 2, page - 1}:  # the first message in flight lies anywhere in its page
            for _ in range(page):
                pipe.put(bytes(size))
            if taken:
                os.read(pipe.reader_fd, taken * size)
            for _ in range(count - page + taken):
                pipe.put(bytes(size))
            assert len(pipe.take()) == count


def test_pipe_that_has_room_stays_as_it_is_and_one_that_gets_none_says_so(monkeypatch):
    def refuse(fd: int, command: int, size: int = 0) -> int:
        if command == fcntl.F_SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return 16 * os.sysconf("SC_PAGE_SIZE")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with MessagePipe.create(40) as pipe:
        pipe.make_room(pipe.room)
        with pytest.raises(PermissionError):
            pipe.make_room(pipe.room + 1)


def test_pipe_of_an_unknown_size_is_taken_for_a_small_one(monkeypatch):
    """macOS tells nothing, and makes none larger."""
    for name in ("F_GETPIPE_SZ", "F_SETPIPE_SZ"):
        monkeypatch.delattr(fcntl, name)
    with MessagePipe.create(40) as pipe:
        assert pipe.room == 409
        pipe.make_room(409)
        for _ in range(409):
            pipe.put(bytes(40))
        with pytest.raises(OSError, match="not supported"):
            pipe.make_room(410)


@pytest.mark.parametrize("size", [0, select.PIPE_BUF + 1])
def test_pipe_refuses_sizes_that_could_be_torn(size):
    with pytest.raises(ComponentError, match="in one piece"):
        MessagePipe.create(size)


def test_ends_of_a_pipe_notice_each_others_end():
    pipe = MessagePipe.create(4)
    reader = MessagePipe.attach(4, reader_fd=os.dup(pipe.reader_fd))
    writer = MessagePipe.attach(4, writer_fd=os.dup(pipe.writer_fd))
    pipe.close()
    writer.put(b"last")
    writer.close()
    assert reader.take() == [b"last"]
    with pytest.raises(ChannelClosed, match="every writer"):
        reader.take()
    reader.close()


def test_writing_to_a_pipe_without_reader_is_closed_not_a_signal():
    pipe = MessagePipe.create(4)
    writer = MessagePipe.attach(4, writer_fd=os.dup(pipe.writer_fd))
    pipe.close()
    with writer, pytest.raises(ChannelClosed, match="the reader"):
        writer.put(b"four")


def test_descriptors_are_closed_in_programs_that_are_started(pair, pipe):
    fds = [pair[0].fileno(), pair[1].fileno(), pipe.reader_fd, pipe.writer_fd]
    assert not any(os.get_inheritable(fd) or os.get_blocking(fd) for fd in fds)
