"""Zeroconf: tells Home Assistant where the server is, with a real address, and takes it back.

The wyoming library would advertise `0.0.0.0` literally, which Home Assistant drops.
"""

import contextlib
import ipaddress
import logging
import socket
import uuid
from collections.abc import AsyncIterator

import ifaddr
from zeroconf import IPVersion, NonUniqueNameException
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

_LOGGER = logging.getLogger(__name__)

_SERVICE = "_wyoming._tcp.local."


@contextlib.asynccontextmanager
async def advertise(name: str, host: str, port: int) -> AsyncIterator[None]:
    """Advertises the server inside the block; a network without multicast costs a warning."""
    addresses = usable_addresses(host)
    if not addresses:
        _LOGGER.warning("zeroconf: there is no address that others could reach; not advertising")
        yield
        return
    # the machine's own number keeps the name the same over restarts and apart from other machines
    instance = f"{name}-{uuid.getnode():012x}"
    info = AsyncServiceInfo(
        _SERVICE,
        f"{instance}.{_SERVICE}",
        parsed_addresses=addresses,
        port=port,
        server=f"{instance}.local.",
    )
    try:
        zeroconf = AsyncZeroconf(ip_version=IPVersion.V4Only)
    except OSError as error:
        _LOGGER.warning("zeroconf: cannot advertise: %s", error)
        yield
        return
    try:
        try:
            await zeroconf.async_register_service(info, allow_name_change=True)
            _LOGGER.info("zeroconf: advertising %s at %s port %d", info.name, addresses, port)
        except (OSError, NonUniqueNameException) as error:
            _LOGGER.warning("zeroconf: cannot advertise: %s", error)
        yield
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()


def usable_addresses(host: str) -> list[str]:
    """IPv4 addresses to advertise for a listening address: itself, or for a wildcard address
    every one of this machine that is not loopback or link-local."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if not address.is_unspecified:
            return [host] if address.version == 4 else []
    found = []
    for adapter in ifaddr.get_adapters():
        for ip in adapter.ips:
            if ip.is_IPv4 and isinstance(ip.ip, str):
                address = ipaddress.ip_address(ip.ip)
                if not (address.is_loopback or address.is_link_local):
                    found.append(ip.ip)
    # the address of the default route first
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        preferred = probe.getsockname()[0]
        found.sort(key=lambda ip: ip != preferred)
    return found
