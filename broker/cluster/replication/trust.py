"""Says from which addresses slaves may come to the HA port.

A slave gets every message, and signs nothing: RocketMQ's slaves cannot. The
addresses of `haSlaveAddresses` count; without them, where accounts are checked, the white addresses
of plain_acl.yml, which a slave of RocketMQ needs anyway for what it asks beside the log; without
accounts everybody is admitted, as at the port for clients.
"""

from collections.abc import Callable

from aerobee.access.control import AccessControl
from aerobee.address_patterns import address_patterns
from aerobee.config.model import Settings


def slaves_trusted(settings: Settings, control: AccessControl | None) -> Callable[[str], bool]:
    """The function that says whether a slave may come from an address."""
    patterns = address_patterns(settings.ha_slave_addresses)
    if patterns:
        return lambda address: any(pattern.matches(address) for pattern in patterns)
    if control is not None:
        return lambda address: control.rules.is_white(address)
    return lambda _address: True
