"""The reward `code`: unit tests of a task judge the program of a reply, which runs in the sandbox."""
