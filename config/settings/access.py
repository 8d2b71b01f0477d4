"""Settings of access control: which accounts files count, for whom, and what is audited."""

from typing import ClassVar

from aerobee.config.settings.setting import Limit, Section, setting


class AccessSettings(Section):
    """Accounts and rights."""

    section: ClassVar[str] = "access"

    acl_enabled: bool = setting(
        False, "aclEnable", why="Check signature and rights of every request against plain_acl.yml."
    )
    acl_file: str = setting(
        "",
        "aclFile",
        aliases=("rocketmq.acl.plain.file",),
        why="The accounts file, below ROCKETMQ_HOME if it is no whole path. Empty: "
        "conf/plain_acl.yml there. Files of the folder conf/acl there count besides. Without a "
        "home the directory of the start stands for it, but a whole path stands alone then. It "
        "turns nothing on by itself.",
    )
    nameserver_acl_enabled: bool = setting(
        False,
        "namesrvAclEnable",
        key_of="Aerobee",
        why="A name server of ours takes changes (registrations, write permissions, KV, deletion) "
        "from administrators of the same accounts files alone; who asks for routes needs none.",
    )
    credentials_file: str = setting(
        "",
        "aclToolsFile",
        key_of="Aerobee",
        why="RocketMQ's tools.yml, with accessKey and secretKey that the broker signs its "
        "registrations with, and as a slave what it asks of its master: a master with aclEnable "
        "answers a slave with an administrator's keys alone. Empty: conf/tools.yml below "
        "ROCKETMQ_HOME, if it is there.",
    )


class AuditSettings(Section):
    """The record of what administrators change (docs/security.md)."""

    section: ClassVar[str] = "audit"

    audit_target: str = setting(
        "file",
        choices=("file", "journal", "off"),
        why="""Each changing request is an event, refused ones too: in a file beside the store, in
        systemd's journal, or nowhere. While events cannot be written, changes are refused.""",
    )
    audit_bytes: int = setting(
        16 * 1024 * 1024,
        within=(64 * 1024, 1 << 40),
        why="""Bytes of the files of events. There are two, of half of this each; when the newer is
        full the older goes.""",
        limit=Limit(
            "bytes of audit events on the disk", "the older half goes", "aerobee_audit_events_total"
        ),
    )
