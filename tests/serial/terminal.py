"""Output of commands, whatever the terminal's width."""


def words(text):
    """The text without its line breaks."""
    return " ".join(text.split())
