"""Channel: frames, descriptors, ends."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from nb_accelerate.channel import Channel


@pytest.fixture
def pair():
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def pipe_saying(word: bytes) -> int:
    read, write = os.pipe()
    os.write(write, word)
    os.close(write)
    return read


def test_messages_arrive_whole_and_in_order(pair):
    ours, other = pair
    sent = [b"x" * size for size in (0, 1, 70_000, 3)]
    sender = threading.Thread(target=lambda: [ours.send(message) for message in sent])
    sender.start()
    assert [other.receive()[0] for _ in sent] == sent
    sender.join()


def test_descriptors_stay_with_their_messages(pair):
    ours, other = pair
    for word in (b"one", b"two"):
        descriptor = pipe_saying(word)
        ours.send(word, [descriptor])
        os.close(descriptor)
    ours.send(b"none")
    received = [other.receive() for _ in range(3)]
    assert [(message, len(descriptors)) for message, descriptors in received] == [
        (b"one", 1),
        (b"two", 1),
        (b"none", 0),
    ]
    for message, descriptors in received[:2]:
        assert os.read(descriptors[0], 9) == message
        os.close(descriptors[0])


def test_more_descriptors_travel_than_one_system_call_passes(pair):
    ours, other = pair
    descriptor = pipe_saying(b"")
    ours.send("many", [descriptor] * 600)
    message, descriptors = other.receive()
    assert (message, len(set(descriptors))) == ("many", 600)
    for each in (descriptor, *descriptors):
        os.close(each)


def test_looking_for_what_is_available_never_blocks(pair):
    ours, other = pair
    assert list(other.available()) == []
    ours.send(1)
    assert [message for message, _ in other.available()] == [1]
    assert not other.at_end


def test_a_frame_that_has_come_in_part_waits_for_its_rest():
    ours, theirs = socket.socketpair()
    whole, probe = Channel.pair()
    whole.send("hello")
    frame = probe.recv(1000)
    channel = Channel(theirs)
    ours.sendall(frame[:7])
    assert list(channel.available()) == []
    ours.sendall(frame[7:])
    assert [message for message, _ in channel.available()] == ["hello"]
    for each in (whole, channel, ours, probe):
        each.close()


def test_the_end_comes_after_all_that_was_sent(pair):
    ours, other = pair
    ours.send("last words")
    ours.close()
    assert [message for message, _ in other.available()] == ["last words"]
    assert other.at_end
    with pytest.raises(EOFError):
        other.receive()


def test_an_abandoned_channel_is_told_without_taking_anything_from_it(pair):
    ours, other = pair
    assert not other.is_abandoned()
    ours.send("word")
    assert not other.is_abandoned()
    ours.close()
    assert other.is_abandoned(), "an unread word hides that nobody is there"
    assert [message for message, _ in other.available()] == ["word"]


def test_descriptors_that_nobody_took_are_closed(pair):
    ours, other = pair
    read, write = os.pipe()
    ours.send("here", [write])
    os.close(write)
    other._read(0)
    other.close()
    assert os.read(read, 1) == b"", "the writing end lives on"
    os.close(read)
