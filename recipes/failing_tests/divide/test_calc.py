import unittest

from calc import divide


class CalcTest(unittest.TestCase):
    def test_divide(self):
        assert divide(6, 3) == 2
