"""Reads numbers from what a person typed."""


def numbers(text: str) -> list[float]:
    """The numbers of a text, separated by spaces or commas."""
    return [float(word) for word in text.replace(",", " ").split()]
