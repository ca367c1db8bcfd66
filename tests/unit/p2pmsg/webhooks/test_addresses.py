"""Addresses to which no request goes."""

import pytest

from p2pmsg.webhooks.addresses import address_of, check_address, parse_networks

FORBIDDEN = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "127.0.0.1", "127.255.0.1",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1",
    "192.168.0.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.1.2.3",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::7f00:1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1",
    "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:c0a8:1::1", "3fff::1", "fc00::1",
    "fd12:3456::1", "fe80::1", "fe80::1%lo", "fec0::1", "ff02::1", "ff0e::1", "nonsense", "",
)  # fmt: skip
ALLOWED = ("8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808", "2002:808:808::1")


@pytest.mark.parametrize("address", FORBIDDEN)
def test_no_request_goes_there(address):
    with pytest.raises(PermissionError):
        check_address(address)


@pytest.mark.parametrize("address", ALLOWED)
def test_requests_go_to_public_addresses(address):
    check_address(address)


SPELLINGS = (
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0X7F000001", "017700000001",
    "0177.0.0.1", "0x7f.1", "0x7f.0.0.0x1", "127.0.0.1.", "127.0.0.01", "%31%32%37.0.0.1",
    "127\u30020\u30020\u30021", "\u2460\u2461\u2466.0.0.1", "\uff11\uff12\uff17.0.0.1",
    "::ffff:7f00:1",
)  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_a_host_that_is_an_address_is_one_in_any_spelling(host):
    assert address_of(host) in ("127.0.0.1", "::ffff:127.0.0.1")


def test_a_name_is_no_address():
    for name in ("a.example.com", "1a", "a.", "localhost", "x0x7f", "7f.example", "1.2.3.4.5"):
        assert address_of(name) is None


def test_a_network_may_be_allowed():
    allowed = parse_networks(["127.0.0.0/8", "fd00::/8"])
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "fd12::1"):
        check_address(address, allowed)
    for address in ("10.0.0.1", "::1", "fe80::1", "64:ff9b::a00:1"):
        with pytest.raises(PermissionError):
            check_address(address, allowed)
