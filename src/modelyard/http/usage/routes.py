"""The administration of budgets, for the host's own keys."""

from functools import partial

from modelyard.errors import NotFound
from modelyard.formats.converter import structure_exactly
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import PAGING, listed_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.http.usage.schemas import BudgetCreate, BudgetObject, BudgetPage, BudgetRemoved, budget_object
from modelyard.platform.usage.booking import budget_id

BUDGETS = "/v1/admin/budgets"
BUDGET = f"{BUDGETS}/{{entity}}"

_OF_ENTITY = Parameter("entity", description="Only those of this entity and its keys.")
_OF = (
    Parameter("key_id", description="The budget of this key; that of the whole entity when absent."),
    Parameter("project", description="The budget of this project."),
)


def _whose(call: RouteCall) -> dict[str, str | None]:
    return {"entity": call.params["entity"], "key_id": call.one("key_id"), "project": call.one("project")}


def list_budgets(call: RouteCall) -> Response:
    """List budgets by their ids."""
    call.require_host()
    with problems_at("query"):
        budgets = call.platform.usage.list_budgets(entity=call.one("entity"))
        return json_response(BudgetPage.of(listed_page(call, budgets)))


def show_budget(call: RouteCall) -> Response:
    """Show the budget of an entity, or of one key or project of it."""
    call.require_host()
    with problems_at("query"):
        budget = call.platform.usage.get_budget(**_whose(call))
    if budget is None:
        raise NotFound("budget", budget_id(**_whose(call)))  # type: ignore[arg-type]
    return json_response(budget_object(budget))


def set_budget(call: RouteCall) -> Response:
    """Let an entity, or one key or project of it, spend so much in total, or in each period. Idempotent."""
    call.require_host()
    body = structure_exactly(BudgetCreate, call.body, "body")
    with problems_at("query"):
        budget_id(**_whose(call))  # type: ignore[arg-type]
    with problems_at("body"):
        budget = call.platform.usage.set_budget(body.limit, **_whose(call), period=body.period, warn_at=body.warn_at)
    return json_response(budget_object(budget))


def remove_budget(call: RouteCall) -> Response:
    """Remove a budget with its record of what was spent. Idempotent."""
    call.require_host()
    with problems_at("query"):
        call.platform.usage.remove_budget(**_whose(call))
    return json_response(BudgetRemoved(budget_id(**_whose(call)), True))  # type: ignore[arg-type]


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", BUDGETS, list_budgets, query=(_OF_ENTITY, *PAGING[:2]), response=BudgetPage),
    _route("GET", BUDGET, show_budget, query=_OF, response=BudgetObject),
    _route("PUT", BUDGET, set_budget, query=_OF, body=Body.CONTROL, request=BudgetCreate, response=BudgetObject),
    _route("DELETE", BUDGET, remove_budget, query=_OF, response=BudgetRemoved),
)
