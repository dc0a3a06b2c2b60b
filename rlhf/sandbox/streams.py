"""Standard input, output and error of a run: writes input, and keeps output up to a limit."""

from __future__ import annotations

import os
import selectors

CHUNK_BYTES = 1 << 16


class Streams:
    """The supervisor's ends of three pipes. Output past `most` bytes of a stream is read and dropped."""

    def __init__(self, stdin: bytes, most: int) -> None:
        self._stdin, self._most = memoryview(stdin), most
        self._pipes = [os.pipe() for _ in range(3)]
        self._theirs = [self._pipes[0][0], self._pipes[1][1], self._pipes[2][1]]
        self._in, self._outputs = self._pipes[0][1], {self._pipes[1][0]: bytearray(), self._pipes[2][0]: bytearray()}
        self._dropped = dict.fromkeys(self._outputs, 0)
        self._selector = selectors.DefaultSelector()
        for descriptor in self._outputs:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(self._in, False)
        self._selector.register(self._in, selectors.EVENT_WRITE)

    def become_standard(self) -> None:
        """In the child: the pipes become file descriptors 0, 1 and 2; the others close on exec."""
        for standard, theirs in enumerate(self._theirs):
            os.dup2(theirs, standard)

    def let_go(self) -> None:
        """In the supervisor, after the fork: close the child's ends."""
        for theirs in self._theirs:
            os.close(theirs)

    def pump(self, seconds: float, wake: int) -> None:
        """Read and write what is possible; wait at most `seconds` for that, or until `wake` is readable."""
        self._selector.register(wake, selectors.EVENT_READ)
        ready = self._selector.select(seconds)
        self._selector.unregister(wake)
        for key, _ in ready:
            if key.fd == self._in:
                self._feed()
            elif key.fd in self._outputs:
                self._take(key.fd)

    def finish(self) -> tuple[bytes, bytes]:
        """Read the rest of the pipes and return output and error; a truncated stream ends with a line that says so."""
        for descriptor in list(self._outputs):
            while descriptor in self._selector.get_map() and self._take(descriptor):
                pass
        first, second = (self._text(descriptor) for descriptor in self._outputs)
        return first, second

    def _feed(self) -> None:
        try:
            if self._stdin:
                self._stdin = self._stdin[os.write(self._in, self._stdin[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program closed its input, which is not an error
            self._stdin = self._stdin[:0]
        if not self._stdin:
            self._selector.unregister(self._in)
            os.close(self._in)

    def _take(self, descriptor: int) -> bool:
        """Read once; False if there is no data, or the stream has ended."""
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(descriptor)
            return False
        kept = self._outputs[descriptor]
        room = self._most - len(kept)
        kept += chunk[:room]
        self._dropped[descriptor] += len(chunk) - len(chunk[:room])
        return True

    def _text(self, descriptor: int) -> bytes:
        dropped = self._dropped[descriptor]
        note = f"\n[the sandbox dropped {dropped} bytes after the first {self._most}]\n" if dropped else ""
        return bytes(self._outputs[descriptor]) + note.encode()
