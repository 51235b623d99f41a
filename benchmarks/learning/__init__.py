"""Effect of codecs on learning: matrices, k-means and nearest neighbours on many ranks, time and accuracy.

``mpiexec -n 2 python -m benchmarks.learning --codec lossless,bfp:bits=7``

The data are scikit-learn's handwritten digits, each many times over with noise of its own. Plain MPI and
every codec do the same in turns; what is sent is compressed, and nothing else is changed.

=============  ==========================================================================
digits.py      the data, and how ranks share them
tasks.py       the three tasks: what is sent, and how right the outcome is
__main__.py    the command: times, accuracies, a table
=============  ==========================================================================
"""
