"""API keys: making, limiting and revoking them, and logging in with one."""

from collections.abc import Sequence
from datetime import timedelta

from modelyard.domain.identity import ApiKey, NewKey
from modelyard.errors import NotFound
from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, empty, name_text, short_id, when, whole_number
from modelyard.parts.reports.html import Html, chip, folded, joined, section, table, tag
from modelyard.report.numbers import NONE, count_text, id_text

LEAD = "Who may call the platform, in which projects, and how often."

PAGE = 200


def listed(view: View) -> HtmlPage:
    return HtmlPage("Keys", _content(view), lead=LEAD)


def _content(view: View, new: NewKey | None = None) -> Html:
    page = view.platform.keys.list().page(PAGE, view.query.get("after"))
    columns = [
        ("name", ""),
        ("begins with", "brief"),
        ("entity", "brief"),
        ("projects", "choice"),
        ("limits", "choice"),
        ("state", "brief"),
        ("made", "brief"),
        ("", "brief"),
    ]
    alive = [_line(view, key) for key in page if key.alive(view.now)]
    dead = [_line(view, key) for key in page if not key.alive(view.now)]
    over = folded(f"{len(dead)} revoked or expired", table(columns, dead)) if dead else ""
    shown = (
        joined([table(columns, alive) if alive else "", over])
        if page.items
        else empty("No key yet. Make one:", "modelyard keys create --name app")
    )
    more = view.link("More keys", "keys", after=page.items[-1].id) if page.has_more else ""
    return joined([_secret(new) if new else "", shown, tag("p", more), _form(view)])


def _line(view: View, key: ApiKey) -> Sequence[object]:
    alive = key.alive(view.now)
    state = chip("in force", "better") if alive else chip("revoked" if key.revoked_at else "expired")
    revoke = view.action("Revoke", "keys", key.id, "revoke", confirm=f"Revoke the key {key.prefix}…?", kind="danger")
    expires = joined([" until ", when(key.expires_at)]) if key.expires_at and alive else ""
    return (
        key.name or short_id(key.id),
        tag("code", f"{key.prefix}…", kind="id"),
        name_text(key.entity),
        ", ".join(key.projects) or "all",
        limits_text(key).removeprefix(NONE),
        joined([state, expires]),
        when(key.created_at),
        revoke if alive else "",
    )


def key_text(view: View, id: str) -> str:
    """Return the name of a key, or the end of its id."""
    try:
        return view.platform.keys.get(id).name or id_text(id)
    except NotFound:
        return id_text(id)


def limits_text(key: ApiKey) -> str:
    limits = [(key.requests_per_minute, "a minute"), (key.concurrent_requests, "at once")]
    return ", ".join(f"{count_text(value)} {words}" for value, words in limits if value is not None) or NONE


def _secret(new: NewKey) -> Html:
    words = tag("p", "This is the new key. It is shown only now; copy it.")
    return tag("div", words, tag("pre", tag("code", new.secret)), kind="secret", role="status")


def _form(view: View) -> Html:
    if not view.token:
        return Html("")
    fields = [
        tag("label", "Name ", tag("input", name="name", maxlength=128)),
        tag("label", "Projects ", tag("input", name="projects", placeholder="all; or names with commas")),
        tag("label", "Days until it expires ", tag("input", name="days", type="number", min=1, placeholder="never")),
        tag("label", "Requests a minute ", tag("input", name="requests_per_minute", type="number", min=1)),
        tag("label", "Requests at once ", tag("input", name="concurrent_requests", type="number", min=1)),
        tag("button", "Make a key", type="submit", kind="primary"),
    ]
    return section("Make a key", tag("div", view.form_to("keys", content=fields), kind="stacked"))


# ---- actions


def create(view: View) -> HtmlPage:
    """Make a key, and show its secret once."""
    projects = [name.strip() for name in view.form.get("projects", "").split(",") if name.strip()]
    days = _number(view, "days")
    new = view.platform.keys.create(
        None,
        projects or None,
        name=view.form.get("name", "").strip(),
        expires_in=None if days is None else timedelta(days=days),
        requests_per_minute=_number(view, "requests_per_minute"),
        concurrent_requests=_number(view, "concurrent_requests"),
    )
    return HtmlPage("Keys", _content(view, new), lead=LEAD)


def _number(view: View, name: str) -> int | None:
    text = view.form.get(name, "").strip()
    return whole_number(text, name) if text else None


def revoke(view: View) -> Redirect:
    view.platform.keys.revoke(view.params["key"])
    return Redirect(view.url("keys"))


# ---- logging in


def login(view: View, refused: str = "") -> HtmlPage:
    fields = [
        tag("label", "API key", for_="key"),
        tag("input", type="password", id="key", name="key", required=True, autofocus=True, autocomplete="off"),
        tag("input", type="hidden", name="to", value=view.query.get("to", view.form.get("to", ""))),
        tag("button", "Log in", type="submit", kind="primary"),
    ]
    form = tag("form", *fields, method="post", action=view.url("login"), kind="login")
    problem = tag("p", refused, kind="problem", role="alert") if refused else ""
    hint = tag("p", "A key is made by ", tag("code", "modelyard keys create"), ".", kind="quiet")
    lead = "Jobs, models, evaluation runs and costs of this modelyard server."
    return HtmlPage("Log in", joined([problem, form, hint]), lead=lead)
