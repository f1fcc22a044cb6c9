"""The catalogue: the models that can be named, one to try, and the operations of the API."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from urllib.parse import quote

from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.errors import InvalidInput, ModelyardError
from modelyard.parts.dashboard.view import HtmlPage, View, empty
from modelyard.parts.reports.html import Html, facts, joined, section, table, tag
from modelyard.parts.reports.operations import operations as operations_of
from modelyard.report.numbers import NONE, count_text

LONGEST = 20_000
MOST_TOKENS = 1024

_UNITS = {"image": "an image", "request": "a request"}
"""Of prices that are not for tokens."""


def listed(view: View) -> HtmlPage:
    entries = sorted(view.platform.catalogue.list(), key=lambda entry: entry.id)
    columns = [("model", ""), ("context", "number"), ("prompt", "number"), ("completion", "number"), ("can", "")]
    lines = [_line(view, entry) for entry in entries]
    shown = table(columns, lines) if lines else empty("No model is offered.")
    lead = "The models that can be called. Prices are in USD for a million tokens."
    return HtmlPage("Catalogue", shown, lead=lead)


def _line(view: View, entry: CatalogueEntry) -> Sequence[object]:
    return (
        view.link(entry.id, "catalogue", entry.id),
        count_text(entry.context_length),
        *(_of_a_million(getattr(entry.pricing, name)) for name in ("prompt", "completion")),
        ", ".join(entry.supported_features) or NONE,
    )


def _of_a_million(price: Decimal) -> str:
    return f"{price * 10**6:f}".rstrip("0").rstrip(".") or "0"


def _prices(pricing: Pricing) -> Iterator[tuple[str, str]]:
    for name, text in pricing.texts.items():
        amount = text if name in _UNITS else _of_a_million(Decimal(text))
        yield name.replace("_", " "), f"{amount} USD for {_UNITS.get(name, 'a million tokens')}"


def entry(view: View) -> HtmlPage:
    found = view.platform.catalogue.get(view.params["model"])
    pairs = [
        ("context", f"{count_text(found.context_length)} tokens"),
        ("answers up to", f"{count_text(found.max_output_length)} tokens"),
        ("takes", ", ".join(found.input_modalities)),
        ("sampling parameters", ", ".join(found.supported_sampling_parameters) or NONE),
        ("features", ", ".join(found.supported_features) or NONE),
        *_prices(found.pricing),
    ]
    content = [facts(pairs), _box(view, found.id), section("Call it", *_calls(view, found.id))]
    lead = "A model that can be called: what it takes, what it costs, and how to call it."
    return HtmlPage(found.name or found.id, joined(content), lead=lead)


def _box(view: View, model: str) -> Html:
    if not view.token:
        return Html("")
    hidden = tag("input", type="hidden", name="token", value=view.token)
    area = tag("textarea", name="prompt", id="prompt", rows=4, required=True, maxlength=LONGEST)
    fields = [
        hidden,
        tag("label", "Message", for_="prompt"),
        area,
        tag("button", "Send", type="submit", kind="primary"),
    ]
    form = tag("form", *fields, method="post", action=view.url("catalogue", model, "try"), data_try=True)
    return section("Try it", form, tag("pre", id="answer", aria_live="polite"))


def _calls(view: View, model: str) -> Sequence[Html]:
    base = f"http://HOST{quote(view.root)}/v1"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
    python = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{base}", api_key="...")\n'
        "answer = client.chat.completions.create(\n"
        f'    model={json.dumps(model)}, messages=[{{"role": "user", "content": "Hello"}}]\n)\n'
        "print(answer.choices[0].message.content)"
    )
    curl = (
        f"curl {base}/chat/completions -H 'Authorization: Bearer ...' -H 'Content-Type: application/json' -d '{body}'"
    )
    here = f'platform.chat.complete(model={json.dumps(model)}, messages=[{{"role": "user", "content": "Hello"}}])'
    calls = (("openai", python), ("curl", curl), ("Python, in process", here))
    return [tag("div", tag("h3", name), tag("pre", tag("code", text))) for name, text in calls]


def ask(view: View) -> Iterator[bytes]:
    prompt = view.form.get("prompt", "")
    if not 1 <= len(prompt) <= LONGEST:
        raise InvalidInput.at("prompt", msg=f"must be 1 to {LONGEST} characters")
    entry = view.platform.catalogue.get(view.params["model"])
    most = min(MOST_TOKENS, entry.max_output_length)
    message = {"role": "user", "content": prompt}
    return _texts(view, entry.id, message, most)


def _texts(view: View, model: str, message: dict[str, str], most: int) -> Iterator[bytes]:
    try:
        with view.platform.chat.stream(model=model, messages=[message], max_tokens=most) as deltas:
            for delta in deltas:
                if delta.text:
                    yield delta.text.encode("utf-8", "replace")
    except ModelyardError as error:
        yield f"\n[{error}]".encode("utf-8", "replace")


# ---- the operations of the API


def operations(view: View) -> HtmlPage:
    document = view.document()
    if not document:
        return HtmlPage("API", empty("This dashboard stands alone; the API is documented where it is served."))
    link = tag("a", "OpenAPI document", href=f"{quote(view.root)}/openapi.json")
    lead = "Every operation over HTTP. Open one for what it takes and answers."
    return HtmlPage("API", joined([tag("p", link), operations_of(document)]), lead=lead)
