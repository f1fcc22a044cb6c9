"""What this part brings to the tests of all parts."""

from modelyard import Platform


def fill(platform: Platform) -> None:
    body = b'{"model": "echo", "messages": [{"role": "user", "content": "secret question"}]}'
    line = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": %s}\n' % body
    file = platform.compat.files.create("questions of theirs.jsonl", line, purpose="batch")
    platform.compat.batches.create(file.id, endpoint="/v1/chat/completions")
    platform.worker().run_until_idle()


def clear(platform: Platform) -> None:
    for one in [*platform.compat.files.list()]:
        platform.compat.files.delete(one.id)
