"""Which addresses a webhook may reach."""

import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.errors import InvalidInput
from modelyard.parts.webhooks.target import Address, TargetRefused, allowed, is_public, resolve, target_of


def words(text: str) -> list[str]:
    return text.split()


PRIVATE = words(
    """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.9.9.9
    169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1
    192.168.255.255 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 168.63.129.16 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254
    ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 fc00::1 fd00:ec2::254 fdff::1
    fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 2001::1 2001:0:53aa:64c:0:0:80ff:fffe 2001:10::1 2001:20::1
    2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe:: 3fff::1 5f00::1
    """
)
PUBLIC = words(
    """
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 172.15.255.255
    172.32.0.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 2606:4700:4700::1111
    2001:4860:4860::8888 2001:200::1 ::ffff:8.8.8.8 64:ff9b::808:808 2a00::1
    """
)


@each_case("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not is_public(address)


@each_case("address", PUBLIC)
def test_what_is_public_is_allowed(address: str) -> None:
    assert is_public(address)


INNER = [IPv4Network(one) for one in words("0.0.0.0/8 10.0.0.0/8 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12")]
NUMBERS: tuple[Callable[[int], str], ...] = (str, hex, lambda number: f"0{number:o}", lambda number: f"0x{number:08X}")


def parts(address: IPv4Address, count: int) -> list[int]:
    """Return an address as so many numbers, the last of which takes what is left."""
    packed = address.packed
    return [*packed[: count - 1], int.from_bytes(packed[count - 1 :])]


def spellings(address: IPv4Address) -> list[str]:
    """Return the hosts that a resolver may take for an IPv4 address."""
    dotted = [".".join(map(number, parts(address, count))) for count, number in product((1, 2, 3, 4), NUMBERS)]
    held = [IPv6Address(start << 32 | int(address)) for start in (0xFFFF, 0, 0x64FF9B << 64, 0xFFFF0000)]
    held.append(IPv6Address(0x2002 << 112 | int(address) << 80))
    return [*dotted, *(f"[{host}]" for host in held), f"[::ffff:{address}]"]


def reached(host: str) -> list[Address]:
    """Return what a post to a host connects to. Raises `OSError`, `TargetRefused`."""
    target = target_of(f"https://{host}:8443/hook", trusted=False)
    return [*allowed(resolve(target.host, target.port), trusted=False)]


@given(
    st.sampled_from(INNER).flatmap(lambda network: st.integers(0, network.num_addresses - 1).map(network.__getitem__))
)
@examples(40)
def test_however_an_inner_address_is_written_it_is_refused(address: IPv4Address) -> None:
    for host in spellings(address):
        with pytest.raises((TargetRefused, OSError)):
            reached(host)


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
@examples(40)
def test_an_address_is_taken_for_the_same_however_it_is_written(address: IPv4Address) -> None:
    """And a public one is reached, so that the law above says something."""
    assume(not address.is_multicast)
    public = is_public(str(address))
    assert public or not address.is_global or address in IPv4Network("168.63.129.16/32")
    for host in spellings(address):
        with suppress(TargetRefused, OSError):
            assert [ip_address(one[1][0]) for one in reached(host)]
            assert public
    assert not public or reached(str(address)) == [(socket.AF_INET, (str(address), 8443))]


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
@examples(200)
def test_only_global_addresses_of_ipv6_are_public(address: IPv6Address) -> None:
    if is_public(str(address)):
        assert address.is_global or address in IPv6Network("64:ff9b::/96")


@each_case("host", words("localhost LOCALHOST 0 [::] [::1] [::1%25lo] [fe80::1%25eth0]"))
def test_loopback_by_its_name_is_refused(host: str) -> None:
    with pytest.raises((TargetRefused, OSError, InvalidInput)):
        reached(host)


def test_one_address_that_is_not_public_refuses_all() -> None:
    both = [(socket.AF_INET, ("8.8.8.8", 443)), (socket.AF_INET, ("10.0.0.1", 443))]
    with pytest.raises(TargetRefused):
        allowed(both, trusted=False)
    with pytest.raises(TargetRefused, match="no address"):
        allowed([], trusted=True)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.org", (True, "example.org", 443, "/")),
        ("https://EXAMPLE.org:8443/a/b?c=d", (True, "example.org", 8443, "/a/b?c=d")),
        ("https://[2606:4700::1]/x", (True, "2606:4700::1", 443, "/x")),
    ],
)
def test_an_address_is_read(url: str, target: tuple[bool, str, int, str]) -> None:
    found = target_of(url, trusted=False)
    assert (found.secure, found.host, found.port, found.path) == target


@each_case(
    "url",
    [
        *("", "example.org", "http://example.org", "ftp://example.org", "file:///etc/passwd", "https://", "https:///x"),
        *("https://user@example.org", "https://user:pass@example.org", "https://example.org/#part", "https://[::1"),
        *(
            "https://example.org:99999/",
            "https://example.org:0/",
            "https://example.org\\@127.0.0.1/",
            "https://example.org:443@127.0.0.1/",
            "https://127.0.0.1#@example.org/",
            "https://127.0.0.1\t/",
            "https://example.org:x/",
            "https://exa mple.org",
            "https://example.org/\r\nx: y",
        ),
        *("https://exämple.org", "https://example.org/" + "x" * 2000, "gopher://127.0.0.1:25/"),
    ],
)
def test_what_is_no_such_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        target_of(url, trusted=False)
    assert refused.value.problems[0].loc == ("url",)
    assert len(url) < 10 or url not in str(refused.value)


def test_the_host_may_trust_an_address_without_tls() -> None:
    assert target_of("http://127.0.0.1:8000/hook", trusted=True).port == 8000
    with pytest.raises(InvalidInput):
        target_of("ftp://127.0.0.1", trusted=True)
