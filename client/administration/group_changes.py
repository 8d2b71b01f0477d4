"""Changes of consumer groups at the masters of a cluster: RocketMQ's own requests 200 and 207."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.client.admin import Admin
from aerobee.protocol.bodies.group_settings import GroupConfigBody
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.headers.admin import DeleteGroupHeader


async def put_group(admin: Admin, settings: Mapping[str, GroupConfigBody]) -> None:
    """Create a group, or replace all its settings, at these brokers by their names. The first that
    refuses ends it; raises MasterAway for a broker without a master, before anything is changed."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    for broker, address in sorted((await admin.administered_masters(settings)).items()):
        await admin.session.call(address, code, body=settings[broker].encode())


async def delete_group(admin: Admin, group: str, brokers: list[str], *, offsets: bool) -> None:
    """Delete a group at these brokers, with its offsets if `offsets`; a broker that does not have
    it does not mind. Raises as `put_group`."""
    ext = DeleteGroupHeader(group, offsets).to_ext()
    for _, address in sorted((await admin.administered_masters(brokers)).items()):
        await admin.session.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
