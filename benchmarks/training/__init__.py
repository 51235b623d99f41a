"""Training over the torch.distributed backend: effect of codecs on the loss and on the time of a step.

corpus.py      the bytes of the standard library's sources, split by file
model.py       a GPT over bytes, dense or with experts
strategies.py  data-, tensor-, pipeline- and expert-parallel training, each with torch's own tools
train.py       one run
study.py       many runs: losses beside those of lossless
step.py        the time of a step, for the lab
hooks.py       training beside gloo: steps, bytes, losses, and when the buckets of DDP travel
passes.py      backward passes
"""
