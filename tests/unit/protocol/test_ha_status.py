"""The answer to GET_BROKER_HA_STATUS."""

from __future__ import annotations

import json

import pytest

from aerobee.protocol.bodies.ha_status import HaStatus, MasterStatus, RefusedSlave, SlaveStatus
from aerobee.protocol.errors import BadRequest

SLAVES = (
    SlaveStatus("10.0.0.2:40001", 900, 100, True, 50, 1000),
    SlaveStatus("[2001:db8::2]:40002", 0, 1000, False, 0, 0),
)
OF_MASTER = HaStatus(1000, SLAVES, copies=1)
OF_SLAVE = HaStatus(master=MasterStatus("10.0.0.1:10912", True, 900, 1_700_000, 1_700_001, 50))


REFUSING = HaStatus(1000, refused=(RefusedSlave("10.0.0.3", "it is not admitted"),))
REFUSED = HaStatus(master=MasterStatus("", False, 900, 0, 0, 0, problem="it is ahead"))


@pytest.mark.parametrize("status", [HaStatus(), OF_MASTER, OF_SLAVE, REFUSING, REFUSED])
def test_what_is_written_is_read(status: HaStatus) -> None:
    assert HaStatus.parse(status.encode()) == status


def test_a_master_has_all_members_of_rocketmq() -> None:
    body = json.loads(OF_MASTER.encode())
    assert body["master"] is True
    assert (body["masterCommitLogMaxOffset"], body["inSyncSlaveNums"]) == (1000, 1)
    assert body["haConnectionInfo"][0] == {
        "addr": "10.0.0.2:40001",
        "diff": 100,
        "inSync": True,
        "slaveAckOffset": 900,
        "transferFromWhere": 1000,
        "transferredByteInSecond": 50,
    }
    assert set(body["haClientRuntimeInfo"]) == {
        *("activated", "lastReadTimestamp", "lastWriteTimestamp", "masterAddr"),
        *("masterFlushOffset", "maxOffset", "transferredByteInSecond"),
    }


def test_members_that_rocketmq_does_not_have_are_there_only_with_something_to_say() -> None:
    assert "refusedSlaves" not in json.loads(OF_MASTER.encode())
    assert "problem" not in json.loads(OF_SLAVE.encode())["haClientRuntimeInfo"]
    assert json.loads(REFUSING.encode())["refusedSlaves"] == [
        {"addr": "10.0.0.3", "reason": "it is not admitted"}
    ]
    assert json.loads(REFUSED.encode())["haClientRuntimeInfo"]["problem"] == "it is ahead"


def test_a_slave_says_whom_it_follows() -> None:
    body = json.loads(OF_SLAVE.encode())
    assert (body["master"], body["haConnectionInfo"], body["inSyncSlaveNums"]) == (False, [], 0)
    of_slave = body["haClientRuntimeInfo"]
    assert (of_slave["masterAddr"], of_slave["maxOffset"]) == ("10.0.0.1:10912", 900)
    assert of_slave["activated"] is True


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"haConnectionInfo":1}', b'{"haConnectionInfo":[1]}', b'{"master":']
)
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        HaStatus.parse(body)
