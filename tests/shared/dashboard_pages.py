"""Every page of the dashboard: a store that has something for each, and where they are."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from batch_files import asking, uploaded
from driven_runs import shown_run
from modelyard import Platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.training import Trajectory
from modelyard.errors import JobFailed
from modelyard.parts.sweeps.service import Sweeps

HOSTILE = "<script>alert('x')</script> \u05e9\u05dc\u05d5\u05dd \u202e" + "long" * 40
WORD = "W" * 500
LONG = "word " * 2000
"""10,000 characters."""
LONG_NAME = "answersquestionsaboutparcelsandinvoicesinplainwords" * 2
"""A name without a place to break it; the names of a sweep's trials are as long as a name may be."""
LONG_PROJECT = "p" * 128
JUDGE = {"type": "llm_judge", "model": "echo", "prompt": "{output}", "name": "w" * 64}
PLACE: Any = {"project": "bots", "entity": "acme"}
ROWS = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]}] * 12

LISTS = ("", "jobs", "models", "runs", "tinker", "traces", "usage", "keys", "catalogue", "api")
OF_PARTS = (
    *("comparisons", "episodes", "improvements", "prompts", "reviews", "rollouts"),
    *("sweeps", "variants", "watches", "webhooks", "what-ifs"),
)
FIRST = (
    *LISTS,
    *OF_PARTS,
    "catalogue/echo",
    "usage?by=model",
    "jobs?status=failed",
    "runs?q=nothing",
    "models?q=nothing",
)
"""The pages that a store without anything has."""
REFUSED = ("nothing", "jobs/nothing", "models/nothing", "traces?status=x", "runs/nothing/rows?row=x", "sweeps/nothing")
"""Addresses that are answered with what is wrong with them."""


def fill(platform: Platform) -> None:
    """Put something into a store for every page, with the longest names and texts that there are."""
    acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
    _of_parts(platform, acme)
    shown_run(platform, "acme", HOSTILE)
    learner = platform.models.create("learner", project="loops", base_model="tabular-mini", entity="acme")
    tasks = [{"prompt": HOSTILE, "expected": "yes"}, {"prompt": LONG[:500], "expected": HOSTILE}]
    judge = {"type": "llm_judge", "model": "echo", "prompt": "1 {output}", "scale": "number"}
    options: Any = {"held_out": tasks, "rounds": 2, "samples": 2, "max_tokens": 8}
    platform.training.loop(learner, tasks, judge, **options).wait()
    _that_fail(platform, acme)
    model = platform.models.create("desk", project="bots", base_model="tabular-mini", entity="acme")
    for rate in (1e-4, 2e-4):
        platform.training.sft(model, ROWS, learning_rate=rate, batch_size=1).wait()
    platform.models.promote(model, 1)
    platform.models.promote(model, 2)
    questions = [{"prompt": HOSTILE, "expected": HOSTILE}, {"prompt": LONG, "expected": LONG}]
    questions += [{"prompt": f"say {at}", "expected": f"say {at}" if at % 3 else "no"} for at in range(30)]
    _watched(acme)
    for name in ("echo", "tabular-mini"):
        platform.evaluations.run("quiz", name, questions, **PLACE)
    _labelled(acme, HOSTILE)
    platform.usage.set_budget("5", entity="acme")
    _trace(platform)


def _of_parts(platform: Platform, acme: Platform) -> None:
    """Make what parts have pages for."""
    long = acme.models.create(LONG_NAME, project=LONG_PROJECT, base_model="tabular-mini")
    name = f"{LONG_PROJECT}/{LONG_NAME}"
    tags = ["W" * 64, "W" * 36, *(f"tag {at}" for at in range(12))]
    acme.annotations.set(long.id, tags=tags, note=f"{LONG[:200]}\n{WORD}")
    options: Any = {"learning_rate": [1e-5, 1e-3], "batch_size": 12, "validation": ROWS[:1]}
    acme.training.sweep(name, ROWS, **options).wait()
    for number, system in enumerate(("Be brief.", f"Be brief.\n{LONG[:400]}"), 1):
        acme.variants.publish(name, model="echo", system=system, note=f"{LONG[:200]}\n{WORD}")
        acme.variants.promote(name, number)
        acme.variants.promote(name, number, "w" * 64)
    asked: Any = [{"prompt": HOSTILE, "expected": LONG[:500]}]
    acme.training.prompt(name, asked, "token_f1", reflection="echo", calls=6).wait()
    many = [{"prompt": f"{HOSTILE[:50]} {at}", "expected": "yes"} for at in range(7)]
    roads = [acme.improve.prompt(reflection="echo", calls=6)]
    acme.improve(name, many, "token_f1", roads=roads, name="w" * 64).wait()
    acme.webhooks.add(f"https://hooks.example/{'path/' * 20}")
    with acme.episodes.group(LONG_NAME, model=name, size=3) as group:
        for reward, episode in zip((1.0, 3.0, None), group, strict=True):
            chat = platform.acting_as(platform.keys.authenticate(episode.key)).chat
            history: list[dict[str, Any]] = [{"role": "user", "content": HOSTILE}]
            text = chat.complete(model="m", messages=history, max_tokens=8, seed=1).text
            for more in ("when?", "why?"):
                after = [*history, {"role": "assistant", "content": text}, {"role": "user", "content": more}]
                chat.complete(model="m", messages=after, max_tokens=8, seed=1)
            if reward is not None:
                episode.reward(reward)
    acme.compat.batches.create(uploaded(acme, [asking("a")]))
    acme.compat.responses.create(model="echo", input="one two", background=True)
    platform.worker().run_until_idle()


def _watched(acme: Platform) -> None:
    watch = acme.review.watches.start("echo", JUDGE, share=1.0, purse=10**6)
    acme.chat.complete(model="echo", messages=f"yes {HOSTILE}", store=True)
    acme.review.watches.look(watch.id)


def _labelled(acme: Platform, note: str) -> None:
    run = next(iter(acme.evaluations.runs.list_all(order="desc")))
    for people in (("ann",), ("ann", "bob"), ()):
        review = acme.review.start(run.id, rows=4)
        for person in people:
            for row in range(4):
                acme.review.label(review.id, person, row, row % 2 == len(person) % 2, note[:60])


def _that_fail(platform: Platform, acme: Platform) -> None:
    """Make what fails, what a teacher teaches, and values as large, as small and as long as there are."""
    model = acme.models.create("fails", project=LONG_PROJECT, base_model="tabular-mini")
    with suppress(JobFailed):
        acme.training.sft(model, ROWS, learning_rate=1e30).wait()
    acme.models.promote(model, 0, "z" * 64)
    cancelled = platform.acting_as(Principal(HOSTILE + WORD, "acme", Scope("acme"))).training.sft(model, ROWS)
    cancelled.cancel()
    acme.annotations.set(cancelled.id, tags=["good", "W" * 64], note=LONG[:200])
    asked: Any = {"model": model, "messages": HOSTILE[:20], "max_tokens": 4}
    answer = acme.chat.complete(**asked, logprobs=True, top_logprobs=3).choices[0]
    taught = Trajectory.of([Message(Role.USER, HOSTILE[:20])], answer, 0.0)
    acme.training.distill(model, [taught] * 2).wait()
    acme.rollouts.start(model, 1, "z" * 64)
    acme.chat.complete(model="echo", messages=HOSTILE, store=True)
    judge = {"type": "llm_judge", "model": "echo", "prompt": "1 {output}", "scale": "number"}
    acme.traffic.what_if(model="echo", judge=judge)
    acme.keys.create(name=HOSTILE.replace("\u202e", "")[:128], projects=[LONG_PROJECT, LONG_NAME])
    platform.usage.set_budget("0.5", entity="acme", project=LONG_PROJECT)
    evaluation, answers = (f"weave:///acme/bots/object/{name}:v0" for name in (LONG_NAME, LONG_PROJECT[:60]))
    place: Any = {"project": "bots"}
    run = acme.evaluations.runs.create(evaluation, answers, **place)
    for at in range(3):
        made = acme.evaluations.predictions.create(answers, {WORD: HOSTILE}, {HOSTILE: WORD}, run_id=run.id, **place)
        scores = {"huge": 1e150 * at, "tiny": 5e-324, "W" * 100: {"why": HOSTILE, "sure": True}, "none": None}
        for name, value in scores.items():
            scorer = f"weave:///acme/bots/object/{name}:v0"
            acme.evaluations.scores.create(made.id, scorer, value, run_id=run.id, **place)
    acme.evaluations.runs.finish(run.id, {HOSTILE: WORD}, **place)


def _trace(platform: Platform) -> None:
    traces = platform.compat.traces
    asked: Any = {"model": "echo", "messages": [{"role": "user", "content": HOSTILE}], "long": LONG}
    outer = traces.calls.start("answer", asked, **PLACE)
    for at in range(4):
        inner = traces.calls.start(HOSTILE if at else "search", asked, parent=outer)
        traces.calls.end(inner.id, LONG, exception=LONG if at == 3 else None, **PLACE)
    traces.calls.end(outer.id, {HOSTILE: LONG}, summary={"usage": {"echo": {"total_tokens": 7}}}, **PLACE)
    traces.feedback.add(outer.ref, "rating", {"said": HOSTILE}, creator="ann")


def addresses(platform: Platform, entity: str = "acme") -> Iterator[str]:
    """Yield the path of every page that a filled store has, below that of the dashboard."""
    acme = platform.acting_as(Principal("ann", entity, Scope(entity)))
    yield from FIRST
    for kind in {job.kind: job for job in acme.jobs.list()}.values():
        yield f"jobs/{kind.id}"
    for model in acme.models.list():
        yield f"models/{model.id}"
        yield f"models/{model.id}/{model.last_step}"
    yield from _of_runs(acme)
    for call in acme.compat.traces.calls.list_all():
        yield f"traces/{call.entity}/{call.project}/{call.id}"
    for run in acme.compat.training_runs.listing():
        yield f"tinker/{run.id}"
    for data in islice(acme.datasets.list(), 1):
        yield f"datasets/{data.entity}/{data.project}/{data.name}:v{data.version}"
    for sweep in acme.part(Sweeps).list():
        yield f"sweeps/{sweep.id}"
    for group in acme.episodes.list():
        yield f"episodes/{group.id}"
        yield from (f"episodes/{group.id}/{one.id}" for one in acme.episodes.get(group.id))
    for asked in acme.traffic.what_if.list():
        yield f"what-ifs/{asked.id}"
    for job in acme.training.list():
        if job.kind == "prompt":
            yield f"prompts/{job.id}"
    for one in acme.improve.list():
        yield f"improvements/{one.id}"
    for rollout in acme.rollouts.list():
        yield f"rollouts/{rollout.id}"
    for review in acme.review.list():
        yield f"reviews/{review.id}"
        yield f"reviews/{review.id}/results"
        yield f"reviews/{review.id}/results?person=ann"
        yield f"reviews/{review.id}/label?person=ann"
        yield f"reviews/{review.id}/label?person=eve&row=1"
    for watch in acme.review.watches.list():
        yield f"watches/{watch.id}"
    for variant in acme.variants.list():
        yield f"variants/{variant.id}"
        yield f"variants/{variant.id}/{variant.last_number}"
        yield f"variants/{variant.id}/diff?before=1&after={variant.last_number}"


def _of_runs(acme: Platform) -> Iterator[str]:
    runs = list(acme.evaluations.runs.list_all(order="desc"))
    failed = [run for run in runs if LONG_NAME in run.evaluation]
    for run in (*runs[:2], *failed):
        yield f"runs/{run.id}"
        yield f"runs/{run.id}/rows"
        yield f"runs/{run.id}/steering"
        yield f"runs/{run.id}/by?field=expected" if run not in failed else f"runs/{run.id}/by"
    if len(runs) > 1:
        after, before = runs[:2]
        yield f"compare?baseline={before.id}&candidate={after.id}"
        yield f"runs/{after.id}/rows?baseline={before.id}&show=changed"
        yield f"runs/{after.id}/rows?field=expected"
        yield f"comparisons/evaluation?name={after.evaluation}"
