"""The event stream parser, against the WHATWG's rules and cut at every byte."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clients.sse import Comment, ServerEvent, SSEDecoder


def decode(*chunks: bytes) -> list[ServerEvent | Comment]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_data_events_and_comments_come_in_order() -> None:
    assert decode(b": place 2\n\ndata: one\n\nevent: error\ndata: two\n\n") == [
        Comment("place 2"),
        ServerEvent("one"),
        ServerEvent("two", "error"),
    ]


def test_data_lines_of_one_event_are_joined_by_newlines() -> None:
    # The three examples of the specification's section on interpreting an event stream.
    assert decode(b"data: YHOO\ndata: +2\ndata: 10\n\n") == [ServerEvent("YHOO\n+2\n10")]
    assert decode(b"data\n\ndata\ndata\n\ndata:") == [ServerEvent(""), ServerEvent("\n")]
    assert decode(b"data:test\n\ndata: test\n\n") == [ServerEvent("test"), ServerEvent("test")]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert decode(b"data:  two\n\n") == [ServerEvent(" two")]


def test_an_event_without_data_is_not_dispatched_and_its_name_is_forgotten() -> None:
    assert decode(b"event: ping\n\ndata: x\n\n") == [ServerEvent("x")]


def test_unknown_fields_are_ignored() -> None:
    assert decode(b"id: 1\nretry: 5\nfoo: bar\ndata: x\n\n") == [ServerEvent("x")]


def test_an_event_cut_off_by_the_end_of_the_stream_is_not_seen() -> None:
    assert decode(b"data: whole\n\ndata: half\n") == [ServerEvent("whole")]


def test_every_line_end_is_understood_and_acted_on_at_once() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        assert decode(b"data: a" + end + b"data: b" + end * 2) == [ServerEvent("a\nb")]


def test_a_byte_order_mark_is_dropped_only_at_the_start() -> None:
    assert decode(b"\xef", b"\xbb", b"\xbfdata: x\n\n") == [ServerEvent("x")]
    assert decode(b"data: x\n\n", b"\xef\xbb\xbfdata: y\n\n") == [ServerEvent("x")]


@given(st.data())
def test_where_the_bytes_are_cut_makes_no_difference(data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    lines = ["data: Grüße", "", ": ahead 1", "event: x", "data: a", "data: 世界", "", "data: z", ""]
    body = b"".join(line.encode() + end for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    edges = [0, *cuts, len(body)]
    chunks = [body[i:j] for i, j in itertools.pairwise(edges)]
    assert decode(*chunks) == [
        ServerEvent("Grüße"),
        Comment("ahead 1"),
        ServerEvent("a\n世界", "x"),
        ServerEvent("z"),
    ]
