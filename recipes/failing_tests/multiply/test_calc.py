import unittest

from calc import multiply


class CalcTest(unittest.TestCase):
    def test_multiply(self):
        assert multiply(6, 3) == 18
