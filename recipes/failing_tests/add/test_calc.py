import unittest

from calc import add


class CalcTest(unittest.TestCase):
    def test_add(self):
        assert add(6, 3) == 9
