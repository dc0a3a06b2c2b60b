"""Ray's health-check settings: how soon a lost node is detected, for every process that starts a part of the cluster.

Ray's head sends each node a health check, and the nodes monitor the head. With Ray's default settings a disconnected
machine is detected only after more than a minute, during which every rank waits. A machine that is only busy must not
be treated as lost, so three consecutive checks must fail.
"""

from __future__ import annotations

PERIOD_SECONDS, ANSWER_SECONDS, MISSED = 3, 10, 3
RECONNECT_SECONDS = 30

LOST_SECONDS = MISSED * (PERIOD_SECONDS + ANSWER_SECONDS) + PERIOD_SECONDS
"""Time after which the head has declared an unresponsive node dead, and the run has ended with `WorkerDied`."""

HEARTBEAT = {
    "RAY_health_check_period_ms": str(1000 * PERIOD_SECONDS),
    "RAY_health_check_timeout_ms": str(1000 * ANSWER_SECONDS),
    "RAY_health_check_failure_threshold": str(MISSED),
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_SECONDS),
}
"""Environment of `ray start` on every node. The head reads the first three; the other nodes read the last one, and end
that many seconds after the head stopped answering."""
