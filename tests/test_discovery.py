"""Zeroconf: a real address under a stable name, taken back on stop."""

import asyncio
import socket
import uuid

import pytest
from zeroconf import IPVersion
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from wyoming_chattts.discovery import advertise, usable_addresses

_SERVICE = "_wyoming._tcp.local."


def test_a_given_address_is_used_and_a_wildcard_never() -> None:
    assert usable_addresses("192.168.1.5") == ["192.168.1.5"]
    assert usable_addresses("127.0.0.1") == ["127.0.0.1"]
    assert usable_addresses("::1") == []
    found = usable_addresses("0.0.0.0")
    assert "0.0.0.0" not in found
    assert not any(address.startswith("127.") for address in found)


def _multicast_works() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("224.0.0.251", 5353))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _multicast_works(), reason="this machine has no multicast route")
async def test_the_record_is_there_while_serving_and_gone_afterwards() -> None:
    address = usable_addresses("0.0.0.0") or ["127.0.0.1"]
    name = f"test-{uuid.getnode():012x}.{_SERVICE}"
    other = AsyncZeroconf(ip_version=IPVersion.V4Only)
    try:
        async with advertise("test", address[0], 12345):
            info = AsyncServiceInfo(_SERVICE, name)
            assert await info.async_request(other.zeroconf, 5000)
            assert info.port == 12345
            assert info.parsed_addresses() == [address[0]]
        await asyncio.sleep(0)
        other.zeroconf.cache.cache.clear()
        assert not await AsyncServiceInfo(_SERVICE, name).async_request(other.zeroconf, 1500)
    finally:
        await other.async_close()


def _chained_pointers(count: int) -> bytes:
    """A question whose name is a pointer to a pointer to a pointer..."""
    chain, last = bytearray(b"\x01a\x00"), 18
    for _ in range(count):
        pointer = (0xC000 | last).to_bytes(2, "big")
        last = 18 + len(chain)
        chain += pointer
    header = bytes((0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    return header + (0xC000 | last).to_bytes(2, "big") + b"\0\1\0\1" + bytes(chain)


@pytest.mark.skipif(not _multicast_works(), reason="this machine has no multicast route")
async def test_a_hostile_neighbour_raises_nothing() -> None:
    """zeroconf before 0.149 raised a RecursionError for each such packet."""
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    address = usable_addresses("0.0.0.0") or ["127.0.0.1"]
    name = f"test-{uuid.getnode():012x}.{_SERVICE}"
    other = AsyncZeroconf(ip_version=IPVersion.V4Only)
    try:
        async with advertise("test", address[0], 12345):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for _ in range(3):
                    sender.sendto(_chained_pointers(1500), ("224.0.0.251", 5353))
            # asked after it: answered, so the packets before were read
            info = AsyncServiceInfo(_SERVICE, name)
            assert await info.async_request(other.zeroconf, 5000)
        assert raised == []
    finally:
        await other.async_close()
