"""The time that requests may wait in the broker before they are refused (fast failure)."""

from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode


def patience_s(settings: Settings) -> dict[int, float]:
    """Seconds by request code; requests of other codes may wait for ever."""
    if not settings.fast_failure:
        return {}
    sends, pulls = settings.send_queue_wait_ms, settings.pull_queue_wait_ms
    waits_ms = {
        RequestCode.SEND_MESSAGE: sends,
        RequestCode.SEND_MESSAGE_V2: sends,
        RequestCode.SEND_BATCH_MESSAGE: sends,
        RequestCode.CONSUMER_SEND_MSG_BACK: sends,
        RequestCode.PULL_MESSAGE: pulls,
        RequestCode.LITE_PULL_MESSAGE: pulls,
        RequestCode.HEART_BEAT: settings.heartbeat_queue_wait_ms,
        RequestCode.END_TRANSACTION: settings.transaction_queue_wait_ms,
    }
    return {code: wait_ms / 1000 for code, wait_ms in waits_ms.items() if wait_ms}
