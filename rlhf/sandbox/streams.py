"""Standard input, output and error of a run: fed, kept up to a bound, and drained beyond it."""

from __future__ import annotations

import os
import selectors

CHUNK_BYTES = 1 << 16


class Streams:
    """The supervisor's side of three pipes. Output past `most` bytes of a stream is read and dropped."""

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
        """In the child: the pipes become descriptors 0, 1 and 2; every other one closes when it becomes the code."""
        for standard, theirs in enumerate(self._theirs):
            os.dup2(theirs, standard)

    def let_go(self) -> None:
        """In the supervisor, once the child has them."""
        for theirs in self._theirs:
            os.close(theirs)

    def pump(self, seconds: float, wake: int) -> None:
        """Move what can be moved; wait at most `seconds` for something to move, or for `wake` to be readable."""
        self._selector.register(wake, selectors.EVENT_READ)
        ready = self._selector.select(seconds)
        self._selector.unregister(wake)
        for key, _ in ready:
            if key.fd == self._in:
                self._feed()
            elif key.fd in self._outputs:
                self._take(key.fd)

    def finish(self) -> tuple[bytes, bytes]:
        """What is left in the pipes is read, and they close: output and error, each with a last line if it was cut."""
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
        except BrokenPipeError:  # the reader has left; how the run ends is its own affair
            self._stdin = self._stdin[:0]
        if not self._stdin:
            self._selector.unregister(self._in)
            os.close(self._in)

    def _take(self, descriptor: int) -> bool:
        """Read once; False when nothing is there, or nothing will be."""
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
