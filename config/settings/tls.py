"""Settings of encryption, under the names of RocketMQ's system properties and of its tls.properties
(protocol/WIRE.md 7.2).

Where RocketMQ is not followed, and why: docs/decisions/0021-tls.md.
"""

from typing import ClassVar

from aerobee.config.settings.setting import Limit, Section, setting


class TlsSettings(Section):
    """Encryption of what clients, slaves, name servers and scrapers say to the broker, and it to
    them and to its master."""

    section: ClassVar[str] = "tls"

    tls_mode: str = setting(
        "disabled",
        "tls.server.mode",
        choices=("disabled", "permissive", "enforcing"),
        why="""Whether clients may (permissive) or must (enforcing) use TLS, on every port there is:
        broker, VIP, name server, administrators, slaves, metrics and health. With a certificate
        the default is permissive. RocketMQ's slaves speak no TLS, so enforcing shuts them out.""",
    )
    tls_config_file: str = setting(
        "",
        "tls.config.file",
        why="""RocketMQ's tls.properties; what is set elsewhere counts more. Empty:
        /etc/rocketmq/tls.properties, if that exists and TLS is asked for.""",
    )
    tls_test_mode: bool = setting(
        True,
        "tls.test.mode.enable",
        why="""Where TLS is asked for and no certificate is given, make one at each start, for
        trying out. It needs the package cryptography (pip install 'aerobee[selfsigned]').""",
    )
    tls_certificate_path: str = setting(
        "",
        "tls.server.certPath",
        why="""Certificate of the broker, and those between it and its authority behind it, PEM. It
        is read again when a file changes.""",
    )
    tls_key_path: str = setting("", "tls.server.keyPath", why="Private key of it, PEM.")
    tls_key_password: str = setting(
        "", "tls.server.keyPassword", secret=True, why="Password of that key."
    )
    tls_client_certificate: str = setting(
        "none",
        "tls.server.need.client.auth",
        choices=("none", "optional", "require"),
        why="""Whether clients are asked for a certificate, and must have one. One that is shown is
        checked against trust_path. The HTTP port asks for none: probes have none.""",
    )
    tls_check_clients: bool = setting(
        False,
        "tls.server.authClient",
        why="""RocketMQ takes any certificate of a client unless this is true. Here one that is
        asked for is checked, whatever stands here.""",
    )
    tls_trust_path: str = setting(
        "",
        "tls.server.trustCertPath",
        why="Certificates that clients' certificates are checked against, PEM.",
    )
    tls_handshake_seconds: int = setting(
        10,
        within=(1, 120),
        why="""Time for a client's hello, and as much again for the handshake behind it: Netty's,
        which RocketMQ does not change.""",
        limit=Limit(
            "the time of a TLS handshake",
            "the connection is closed",
            'aerobee_tls_failures_total{reason="timeout"}',
        ),
    )
    tls_outgoing: bool = setting(
        False,
        "tls.enable",
        why="""Whether the broker uses TLS towards name servers, and as a slave towards its master.
        Towards its own name server it does when mode is enforcing, whatever stands here.""",
    )
    tls_check_servers: bool = setting(
        False,
        "tls.client.authServer",
        why="""Whether certificates of name servers and masters are checked, against
        client_trust_path. Names in them are not, since servers are known by their addresses.""",
    )
    tls_client_trust_path: str = setting(
        "",
        "tls.client.trustCertPath",
        why="Certificates that those of name servers and masters are checked against, PEM.",
    )
    tls_client_certificate_path: str = setting(
        "",
        "tls.client.certPath",
        why="""Certificate that the broker shows to name servers, and as a slave to its master,
        where they ask for one, PEM.""",
    )
    tls_client_key_path: str = setting("", "tls.client.keyPath", why="Private key of it, PEM.")
    tls_client_key_password: str = setting(
        "", "tls.client.keyPassword", secret=True, why="Password of that key."
    )
