"""What a whole program did: its calls counted, and written down one by one where that is asked for.

=============  ==============================================================================
``names``      which methods are calls, and what they send
``watch``      the methods of communicators, replaced by ones that say when a call has ended
``tally``      calls, bytes and seconds, added up
``ending``     the end of the program: all ranks' tallies in one line
=============  ==============================================================================
"""
