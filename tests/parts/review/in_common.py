"""What this part brings to the tests of all parts."""


from modelyard import Platform

TABLES = {"reviews": "c089dbb789a902bc", "review_rows": "1ff04dcad52004cf", "review_labels": "98d01d3b1cc372fd"}

ROWS = [{"prompt": f"say {word}", "expected": "a secret of theirs"} for word in ("yes", "no", "perhaps", "never")]


def fill(platform: Platform) -> None:
    run = platform.evaluations.run("quiz-of-theirs", "echo", ROWS)
    review = platform.review.start(run, rows=3)
    platform.review.label(review.id, "ann-of-theirs", 0, True, "a note of theirs")


def clear(platform: Platform) -> None:
    for one in [*platform.review.list()]:
        platform.review.delete(one.id)
