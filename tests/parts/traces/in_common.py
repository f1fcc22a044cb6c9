"""What this part brings to the tests of all parts."""

from modelyard import Platform


def fill(platform: Platform) -> None:
    traces = platform.compat.traces
    call = traces.calls.start("answer", {"question": "a question of theirs"})
    traces.calls.end(call.id, "4")
    traces.tables.create([{"row": "of a table of theirs"}])
    traces.tables.put_file("picture of theirs.png", b"a picture")
    traces.feedback.add(call.id, "note", {"text": "a note of theirs"})
