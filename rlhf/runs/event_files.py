"""Metrics as TensorBoard event files, by TensorBoard's writer, without torch or TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rlhf.runs.loggers import LoggedRun


class TensorBoardLogger:
    """Writes from its own thread. A resumed run repeats updates: with the first, it makes TensorBoard forget everything
    from there on."""

    def __init__(self, run: LoggedRun) -> None:
        self._writer = EventFileWriter(str(run.folder.tensorboard))
        self._began = False

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        if not self._began:
            self._began = True
            began = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=update, session_log=began))
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=update, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()
