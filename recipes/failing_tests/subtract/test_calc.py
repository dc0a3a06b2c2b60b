import unittest

from calc import subtract


class CalcTest(unittest.TestCase):
    def test_subtract(self):
        assert subtract(6, 3) == 3
