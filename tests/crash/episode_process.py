"""A program that is killed within its episodes: python episode_process.py PATH GROUP KEYS [MOMENT].

It goes on from the turns that there are, rewards each episode, and trains on the group. It dies at the moment
(`moments.py`). KEYS has a key for each episode, with commas between.
"""

import sys
from typing import Any

from moments import Moments, WatchedArtifacts, WatchedStore, tell

from modelyard import Platform, open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.domain.schema import RECORDS
from modelyard.parts.episodes.handle import EpisodeHandle
from modelyard.platform.artifacts import artifacts_folder
from modelyard.stores.sqlite import SqliteStore

TURNS = 2
"""How many turns an episode has."""


def go_on(platform: Platform, episode: EpisodeHandle, key: str, stream: bool = False) -> None:
    """Ask what is not asked yet. A turn of which the program has no answer is asked again."""
    chat = platform.acting_as(platform.keys.authenticate(key)).chat
    history: list[dict[str, str]] = [{"role": "user", "content": "Where is my refund?"}]
    for number in range(TURNS):
        if stream:
            streamed = chat.stream(model="gpt-4o", messages=history, max_tokens=5)
            text = "".join(delta.text for delta in streamed)
        else:
            text = chat.complete(model="gpt-4o", messages=history, max_tokens=5).text
        tell("answered", episode.place, text)
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": f"and then, {number}?"}]


def main(path: str, group_id: str, keys: str, moment: str = "") -> None:
    moments = Moments({moment: "die"}, reported=True)
    store: Any = WatchedStore(SqliteStore(path, RECORDS), moments)
    artifacts: Any = WatchedArtifacts(FolderArtifacts(artifacts_folder(path)), moments)
    with open_platform(store=store, artifacts=artifacts) as platform:
        group = platform.episodes.get(group_id)
        if not group.refresh().job_id:
            for episode, key in zip(group, keys.split(","), strict=True):
                if episode.state == "open":
                    go_on(platform, episode, key, stream=episode.place == 1)
                    episode.reward(episode.place)
                    tell("rewarded", episode.place)
            group.close()
        job = platform.training.rl("desk/support", [group])
        tell("queued", job.id)


if __name__ == "__main__":
    main(*sys.argv[1:])
