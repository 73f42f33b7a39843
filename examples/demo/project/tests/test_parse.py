import unittest

from tally.parse import numbers


class NumbersAreRead(unittest.TestCase):
    def test_spaces_and_commas_separate(self) -> None:
        self.assertEqual(numbers("1, 2 3.5"), [1.0, 2.0, 3.5])

    def test_nothing_is_no_numbers(self) -> None:
        self.assertEqual(numbers("  "), [])


if __name__ == "__main__":
    unittest.main()
