"""How soon a machine of the cluster counts as lost: Ray's settings, for every process that starts a part of it.

Ray's head asks each node whether it lives, and the nodes watch the head. With Ray's own settings a machine whose cable
is cut is missed after more than a minute, in which every rank waits. A machine that is only busy must not be taken for
a lost one, so three questions in a row have to stay without an answer.
"""

from __future__ import annotations

PERIOD_SECONDS, ANSWER_SECONDS, MISSED = 3, 10, 3
RECONNECT_SECONDS = 30

LOST_SECONDS = MISSED * (PERIOD_SECONDS + ANSWER_SECONDS) + PERIOD_SECONDS
"""By then the head has given up a node that does not answer, and the run has ended with `WorkerDied`."""

HEARTBEAT = {
    "RAY_health_check_period_ms": str(1000 * PERIOD_SECONDS),
    "RAY_health_check_timeout_ms": str(1000 * ANSWER_SECONDS),
    "RAY_health_check_failure_threshold": str(MISSED),
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_SECONDS),
}
"""The environment of `ray start` on every node: the first three are read by the head, the last one by the others, which
end so long after the head has become silent."""
