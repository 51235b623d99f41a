"""Send, Recv and Sendrecv."""


class PointToPoint:
    """Placeholder until the next commit."""
