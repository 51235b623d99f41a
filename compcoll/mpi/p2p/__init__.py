"""Point-to-point messages that travel compressed.

A compressed message begins with a *first message* on the user's own communicator, under the user's tag, so
that MPI matches and orders it like any other (`protocol`). Further chunks travel on a private communicator
(`channel`), where a short *notice* announces the size of each message: a probe can tell it, and removes
nothing. Buffered sends and messages of an unwrapped communicator reach every receive as ever.
"""
