"""What this part brings to the tests of all parts."""

from modelyard import Platform
from modelyard.domain.record import declaration_of
from modelyard.parts.tinker.records import (
    CommandKind,
    RunCommand,
    RunSession,
    RunWeights,
    Sample,
    SamplingSession,
    TrainingRun,
)
from specimens import specimen

OF_WEIGHTS = declaration_of(RunWeights)


def fill(platform: Platform) -> None:
    """Store what a client's training run leaves, with a file wherever a record may own one."""
    runtime, now = platform._runtime, platform.clock.now()
    place = (platform._principal.entity, "default")
    session, sampler, sample = (runtime.ids() for _ in range(3))
    run = f"{session}:train:0"
    files = [runtime.artifacts.put([b"an answer of theirs"]) for _ in range(4)]
    body, answer, state, sampled = ({"artifact": one.name, "size": one.size, "digest": one.digest} for one in files)
    records = (
        RunSession(session, *place, now, now, display_name="a session of theirs"),
        TrainingRun(run, session, *place, "model", "tabular-mini", {}, "job", now, {"note": "a note of theirs"}),
        RunCommand(run, 0, place[0], CommandKind.FORWARD, now, "digest", body=body, answer=answer),
        specimen(OF_WEIGHTS, run, entity=place[0], project="default", run_id=run, state={"optimizer": state}),
        SamplingSession(sampler, session, *place, "echo", "a model of theirs", now),
        Sample(sample, place[0], "digest", "process", now, answer=sampled),
    )
    runtime.store.transact(lambda tx: [tx.add(one) for one in records])
