"""One module a family of arrays; each answers a `Record` with calls of the library's own functions."""
