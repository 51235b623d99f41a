"""The version of compcoll."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
