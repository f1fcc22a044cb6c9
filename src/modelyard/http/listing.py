"""The common part of listings: the parameters that page through it, and the shape of a page."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, TypeVar

import attrs

from modelyard.domain.record import Order, Page
from modelyard.errors import InvalidInput
from modelyard.http.route import Parameter, RouteCall
from modelyard.platform.listing import Listing

T = TypeVar("T")

DEFAULT_PAGE, MAX_PAGE = 20, 100

PAGING = (
    Parameter("after", description="Continue after the item with this id."),
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE}, "How many."),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}, "In which order."),
)
NEWEST_FIRST = (
    *PAGING[:2],
    Parameter("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}, "In which order."),
)
NAMESPACE = (
    Parameter("entity", description="The entity; the key's default one when absent."),
    Parameter("project", description="Only this project."),
)


def requested_page(call: RouteCall, listing: Callable[[Order], Listing[T]], default: Order = "asc") -> Page[T]:
    limit, order = call.integer("limit", DEFAULT_PAGE, 1, MAX_PAGE), _order(call, default)
    return listing(order).page(limit, call.one("after"))


def listed_page(call: RouteCall, listing: Listing[T]) -> Page[T]:
    return listing.page(call.integer("limit", DEFAULT_PAGE, 1, MAX_PAGE), call.one("after"))


def _order(call: RouteCall, default: Order) -> Order:
    order = call.one("order")
    if order not in (None, "asc", "desc"):
        raise InvalidInput.at("query", "order", msg="must be 'asc' or 'desc'", type="literal_error")
    return default if order is None else "desc" if order == "desc" else "asc"


@attrs.frozen
class PageObject:
    """A page of a listing. `after` = `last_id` asks for the next; both ids are "" if the page is empty."""

    show: ClassVar[Callable[[Any], Any]]

    object: Literal["list"]
    data: tuple[Any, ...]
    has_more: bool
    first_id: str
    last_id: str

    @classmethod
    def of(cls, page: Page[Any]) -> Self:
        data: tuple[Any, ...] = tuple(map(cls.show, page))
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return cls("list", data, page.has_more, first, last)


def page_class(name: str, item: type[Any], show: Callable[[Any], Any], doc: str) -> type[PageObject]:
    """Make the class of the pages of items. `show` makes each with an `id`, which a client sends as `after`."""

    def in_order(_: type, fields: "list[attrs.Attribute[Any]]") -> "list[attrs.Attribute[Any]]":
        named = {field.name: field for field in fields}
        return [named[field.name] for field in attrs.fields(PageObject)]

    members = {"__doc__": doc, "__annotations__": {"data": tuple[item, ...]}, "show": staticmethod(show)}  # type: ignore[valid-type]
    return attrs.frozen(type(name, (PageObject,), members), field_transformer=in_order)
