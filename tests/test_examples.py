import pytest

from modelyard import examples, open_platform


@pytest.mark.slow
def test_the_support_desk_can_be_trained_on_and_evaluated():
    data = examples.support()
    rows = examples.tasks(data.held_out)
    with open_platform(project="desk") as platform:
        model = platform.models.create("support", base_model="tabular-mini")
        job = platform.training.sft(model, data.train, batch_size=146)
        assert (job.result().step, len(examples.tasks(data.train)), len(rows)) == (1, 292, 73)
        result = platform.evaluations.run("held-out", lambda row: row["expected"], rows)
        assert result.score == 1.0


def test_a_task_ends_with_its_question():
    task = examples.tasks(examples.support().held_out)[0]
    assert [message["role"] for message in task["messages"]] == ["system", "user"]
    assert task["expected"].startswith("Open Settings")
