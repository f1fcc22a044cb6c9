"""One store in PostgreSQL, two platforms on it: an episode's calls join one tree, whichever answers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from modelyard import open_platform
from modelyard.artifacts import FolderArtifacts


def test_calls_of_an_episode_through_two_platforms_join_one_tree(yard_address: str, tmp_path: Path) -> None:
    with (
        open_platform(yard_address, artifacts=FolderArtifacts(tmp_path)) as one,
        open_platform(yard_address, artifacts=FolderArtifacts(tmp_path)) as other,
    ):
        one.models.create("support", project="desk", base_model="tabular-mini")
        group = one.episodes.group("refunds", model="desk/support", size=2)
        views = [yard.acting_as(yard.keys.authenticate(group[0].key)) for yard in (one, other)]
        asked = [{"role": "user", "content": "Where is my refund?"}]
        text = views[0].chat.complete(model="m", messages=asked, max_tokens=6).text
        told = [*asked, {"role": "assistant", "content": text}]

        def ask(number: int) -> str:
            more = [*told, {"role": "user", "content": f"and {number}?"}]
            return views[number % 2].chat.complete(model="m", messages=more, max_tokens=6).text

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(ask, range(8)))
        turns = other.episodes.episode(group[0].id).turns()
        assert [one.parent and one.parent.id for one in turns] == [None, *[turns[0].id] * 8]
        assert not any(one.untrained for one in turns)
        assert sorted(entry.id for entry in one.usage.list()) == sorted(turn.id for turn in turns)
        group[0].reward(1)
        with ThreadPoolExecutor(2) as threads:
            group.close()
            jobs = threads.map(
                lambda yard: yard.training.rl("desk/support", [yard.episodes.get(group.id)]).id, (one, other)
            )
            assert len(set(jobs)) == 1
