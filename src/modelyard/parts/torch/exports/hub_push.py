"""Checkpoints pushed to a hub through `huggingface_hub`: one commit, so that readers see all of it or nothing.

Its own settings count, as when a model is fetched: HF_ENDPOINT for the hub, HF_TOKEN or `hf auth login` for the token.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import attrs

from modelyard.errors import BackendError, Conflict, Forbidden, InvalidInput, MissingExtra, Overloaded
from modelyard.parts.torch import hub

try:
    import huggingface_hub
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
except ImportError as error:
    raise MissingExtra("huggingface_hub", "torch") from error


@attrs.frozen
class PushedModel:
    """A model on a hub: its name, the commit that was made, and the address of its page."""

    name: str
    commit: str
    url: str


def check_target(name: str) -> None:
    """Raise `InvalidInput` unless this can be a model of a hub that can be asked."""
    hub.check_name(name)
    if "/" not in name:
        raise InvalidInput.at("to", msg=f"{name!r} is not the name of a model of somebody: give org/name")
    if constants.is_offline_mode():
        raise InvalidInput.at("to", msg="HF_HUB_OFFLINE is set, so nothing is sent to a hub; unset it to push")


def push(
    folder: Path, name: str, *, private: bool, message: str, revision: str | None = None, shown: bool = False
) -> PushedModel:
    """Send the files of a folder to the model of a name, which is made if it is new. Files that are there stay, unless
    the folder has others of their names. If it is `shown`, the library shows its progress bars.

    Raises `Conflict` for a public model that should be private, `Forbidden`, `NotFound`, `Overloaded`, `BackendError`.
    """
    check_target(name)
    api = huggingface_hub.HfApi()
    with nullcontext() if shown else _without_bars(), _explained(name):
        api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise Conflict(
                f"{name} is there and public; push it as that (--public, private=False), or choose another name"
            )
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        made = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, revision=revision)
    return PushedModel(name, str(made.oid), f"{hub.endpoint()}/{name}")


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide the progress bars of the library, unless HF_HUB_DISABLE_PROGRESS_BARS=0 wants them."""
    if are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say what the errors of the hub's library mean. Their own texts may show signed addresses, and are left out."""
    try:
        yield
    except Exception as failed:
        beneath = failed.__cause__ if type(failed) is RuntimeError else None  # so it wraps what goes wrong with a file
        cause = failed if beneath is None else beneath
        if isinstance(cause, errors.HfHubHTTPError):
            raise _refused(name, cause.response) from None
        if not (isinstance(cause, OSError) or hub.is_connection(cause)):
            raise
        xet = "" if constants.HF_HUB_DISABLE_XET else ", with HF_HUB_DISABLE_XET=1 if this hub has no Xet storage"
        raise BackendError(
            f"pushing {name} to {hub.endpoint()} broke ({type(cause).__name__}): the hub shows none of it; "
            f"push again{xet}"
        ) from None


def _refused(name: str, response: Any) -> Exception:
    """Return what a refusal means. To callers who may not see a model, a hub says that there is none (404)."""
    status, at = response.status_code, hub.endpoint()
    if status in (401, 403, 404):
        return Forbidden(
            f"{at} does not let this token write {name} ({status}): log in with one that may (hf auth login), "
            "or set HF_TOKEN"
        )
    if status in (429, 503):
        seconds = hub.wait_of(response)
        return Overloaded(f"{at} wants fewer requests now ({status}): push {name} again in {seconds:g} s", seconds)
    return BackendError(f"{at} answered {status} to the push of {name}, and shows nothing of it; push it again later")
