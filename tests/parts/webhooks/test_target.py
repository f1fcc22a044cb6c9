"""Which addresses a webhook may reach."""

import socket

import pytest

from modelyard.errors import InvalidInput
from modelyard.parts.webhooks.target import TargetRefused, allowed, is_public, resolve, target_of


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


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_is_allowed(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "localhost", "::1", "::ffff:127.0.0.1"],
)
def test_however_loopback_is_written_it_is_refused(host: str) -> None:
    try:
        found = resolve(host, 443)
    except OSError:
        return
    with pytest.raises(TargetRefused, match="not public"):
        allowed(found, trusted=False)
    assert allowed(found, trusted=True) == found


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


@pytest.mark.parametrize(
    "url",
    [
        *("", "example.org", "http://example.org", "ftp://example.org", "file:///etc/passwd", "https://", "https:///x"),
        *("https://user@example.org", "https://user:pass@example.org", "https://example.org/#part", "https://[::1"),
        *(
            "https://example.org:99999/",
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
