"""`compcoll.policy.trial`: how trials on recorded and made-up times decide."""

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compcoll.codecs.speed import CodecSpeed, Coding, coding_of
from compcoll.policy import trial
from compcoll.policy.pairs import Known, median
from compcoll.policy.trial import Kind

SMALL, LARGE = 64 << 10, 4 << 20
#: A codec that always is worth a trial, and one that never is.
QUICK, SLOW = CodecSpeed(1e-12, 1e-12, 0.5), CodecSpeed(1.0, 1.0, 0.5)


class FakeWindow:
    """Stand-in for the layer's count of a block, on the test's clock."""

    def __init__(self, most, skip=0):
        self.most, self.skip = most, skip
        self.calls, self.since, self.seconds = 0, 0.0, 0.0
        self.raw_nbytes = self.wire_nbytes = 0


class Job:
    """Calls of one kind in a job, each lasting ``take(compress, call)`` seconds, with pauses between.

    Attributes
    ----------
    ways : list of bool
        True for each compressed call.
    agreed : int
        Number of agreements between the ranks.
    """

    def __init__(self, take, nbytes=SMALL, known=None, speed=QUICK, pause=0.0, share=0.5, wire=0.0, begun=()):
        self.take, self.speed, self.pause, self.share = take, speed, pause, share
        self.ended, self.ways, self.now, self.agreed, self.pairs = [], [], 1.0, 0, list(begun)
        coding = Coding(nbytes, nbytes)
        self.kind = Kind(nbytes, coding, wire, known, self.ended.append, begun, self.keep)

    def keep(self, pairs):
        self.pairs = pairs

    def agree(self, figures):
        assert all(figure == figure for figure in figures), "NaN"
        self.agreed += 1
        return list(figures)

    def run(self, n):
        for _ in range(n):
            kind = self.kind
            if kind.is_over:
                kind.go_on(self.now, self.agree, lambda: self.speed)
            window = kind.window
            if window.calls == window.skip:
                window.since = self.now
            window.calls += 1
            seconds = self.take(kind.compress, len(self.ways))
            if window.calls > window.skip:
                window.seconds += seconds
            if kind.compress and window.calls > window.skip:
                share = self.share(len(self.ways)) if callable(self.share) else self.share
                window.raw_nbytes, window.wire_nbytes = (
                    window.raw_nbytes + 1000,
                    window.wire_nbytes + round(1000 * share),
                )
            self.ways.append(kind.compress)
            self.now += seconds + self.pause
        return self.ways


@pytest.fixture(autouse=True)
def fake_counts(monkeypatch):
    monkeypatch.setattr(trial, "TrialWindow", FakeWindow)


def times(compressed, plain):
    return lambda compress, call: compressed if compress else plain


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
@pytest.mark.parametrize(("compressed", "chosen"), [(0.7, True), (0.9, True), (1.1, False), (1.2, False)])
def test_a_clear_trial_ends_early(nbytes, compressed, chosen):
    job = Job(times(compressed, 1.0), nbytes)
    n, _ = trial.BLOCK if nbytes == SMALL else trial.LARGE_BLOCK
    warm = 8 if nbytes == SMALL else 2
    ways = job.run(warm + 8 * n + 1)
    c, p = [True] * n, [False] * n
    assert ways == [False] * warm + c + p + p + c + c + p + p + c + [chosen]
    (known,) = job.ended
    assert known.compress == chosen
    assert known.pairs == (3, 3 * chosen)
    assert known.seconds == pytest.approx((compressed, 1.0))
    assert known.share == 0.5
    assert f"{known.pairs[1]} of 3 pairs" in job.kind.reason


@pytest.mark.parametrize(("nbytes", "n"), [(1 << 20, 8), (2 << 20, 4), (4 << 20, 2), (64 << 20, 2)])
def test_large_calls_warm_up_by_bytes(nbytes, n):
    assert Job(times(0.5, 1.0), nbytes).run(n + 1) == [False] * n + [True]


@pytest.mark.parametrize(("compressed", "chosen"), [(0.5, True), (1.1, False)])
@pytest.mark.parametrize(("nbytes", "n_calls", "n_jobs"), [(LARGE, 10, 4), (LARGE, 15, 2), (SMALL, 60, 2)])
def test_a_trial_goes_on_in_later_jobs(nbytes, n_calls, n_jobs, compressed, chosen):
    """A trial that a job's end cuts off goes on in the next job, and its outcome counts all pairs."""
    pairs = []
    for i in range(n_jobs):
        job = Job(times(compressed, 1.0), nbytes, begun=pairs)
        job.run(n_calls)
        assert len(job.ended) == (i == n_jobs - 1)
        assert len(job.pairs) > len(pairs) or job.ended
        pairs = job.pairs
    assert job.ended[0].pairs == (3, 3 * chosen)
    assert "this job and earlier ones" in job.kind.reason


def test_the_first_pair_of_small_calls_is_not_counted_in_any_job():
    """A later job's first pair of small calls is as distorted as that of the first job."""
    first = Job(times(0.8, 1.0))
    first.run(8 + 2 * 16 + 1)
    second = Job(lambda compress, call: 0.8 if compress else 0.1 if call < 8 + 16 else 1.0, begun=first.pairs)
    second.run(8 + 3 * 16 + 1)
    assert second.ended[0].pairs == (3, 3)


def test_what_is_hardly_quicker_stays_plain():
    job = Job(times(0.97, 1.0))
    job.run(8 + 144 + 1)
    assert job.ended[0].pairs == (8, 8)
    assert not job.ended[0].compress
    assert not job.ways[-1]


@pytest.mark.parametrize("factor", [2.5, 1.4])
def test_what_is_much_slower_is_given_up(factor):
    job = Job(times(factor, 1.0), LARGE)
    ways = job.run(100)
    assert sum(ways) == 4
    assert len(job.ended) == 1


def test_first_compressed_calls_that_are_slow_do_not_end_a_trial():
    """Memory is touched first: recorded at 10 Gb/s, 16 MiB, 66.8 ms a call, plain 20.5, then 16."""
    first = []
    job = Job(lambda compress, call: (0.0668 if call < first[0] else 0.016) if compress else 0.0205, 32 << 20)
    first.append(job.kind.window.most + 2)
    assert job.run(100)[-1]
    assert [known.compress for known in job.ended] == [True]


def test_the_first_calls_of_blocks_and_the_first_pair_are_not_counted():
    """The first pair and each block's first calls do not count, since queues and buckets distort them."""

    def take(compress, call):
        place = (call - 8) % 8
        if call < 8 + 16 or place < 2:
            return 0.5 if compress else 0.1
        return 0.8 if compress else 1.0

    job = Job(take)
    job.run(8 + 144 + 1)
    assert job.ways[-1]
    assert job.ended[0].seconds == pytest.approx((0.8, 1.0))


def test_what_a_bucket_lets_pass_is_not_counted():
    """A bucket of 1 MiB on a 10 Gb/s link speeds up five pairs of blocks of 64 KiB, which do not count."""

    def take(compress, call):
        return 0.036 if compress else 0.03 if call < 8 + 5 * 16 else 0.052

    job = Job(take, wire=0.052)
    job.run(8 + 144 + 1)
    assert job.ways[-1]
    assert job.ended[0].pairs == (3, 3)
    other = Job(take, wire=0.5)  # a wrong measurement of the link
    other.run(8 + 144 + 1)
    assert len(other.ended) == 1


@pytest.mark.parametrize("seed", range(20))
def test_noise_hides_little(seed):
    rng = random.Random(seed)
    job = Job(lambda compress, call: rng.uniform(0.5, 1.0) if compress else rng.uniform(0.8, 1.4))
    job.run(153)
    assert job.ended[0].compress


@pytest.mark.parametrize("pause", [0.5, 3.0])
def test_pauses_count(pause):
    """Compression is not chosen if it saves little compared with the program's time between calls."""
    job = Job(times(0.8, 1.0), pause=pause)
    job.run(160)
    assert job.ended[0].compress == (pause == 0.5)


def test_a_trial_that_cannot_pay_is_not_made():
    job = Job(times(1.0, 1.0), LARGE, speed=SLOW)
    assert not any(job.run(500))
    assert job.agreed == 1
    assert ", coding " in job.kind.reason
    job.speed = QUICK  # other data from now on
    assert any(job.run(100)), "looked at again after 512 calls"


@pytest.mark.parametrize(
    ("plain", "coding", "is_tried"),
    [
        # Recorded between two hosts with lossless floats at ratio 1.42; comments have compression's gain.
        (33.08, 21.10, True),  # Alltoall of 16 MiB, 5 Gb/s: 1.22
        (31.52, 25.65, True),  # Alltoall of 16 MiB, 5 Gb/s, with a bucket of 1 MiB: 1.27
        (9.64, 6.70, True),  # Allgather of 4 MiB, 5 Gb/s: 1.21
        (3.34, 2.33, True),  # Bcast of 4 MiB, 10 Gb/s: 1.19
        (20.94, 22.12, False),  # Allgather of 16 MiB, 10 Gb/s: 0.83
        (3.87, 3.80, False),  # Alltoall of 4 MiB, 10 Gb/s: 0.77
        (1.05, 0.98, False),  # Alltoall of 1 MiB, 10 Gb/s: 1.00
    ],
)
def test_recorded_figures_are_worth_a_trial_where_compression_gains(plain, coding, is_tried):
    each = coding / (2 * LARGE)
    job = Job(times(0.9 * plain, plain), LARGE, speed=CodecSpeed(each, each, 1 / 1.42))
    assert any(job.run(20)) == is_tried


def test_values_that_hardly_shrink_are_not_tried():
    job = Job(times(0.5, 1.0), speed=CodecSpeed(1e-12, 1e-12, 0.99))
    assert not any(job.run(200))
    assert "little is saved" in job.kind.reason


def test_ranks_without_values_try():
    job = Job(times(0.5, 1.0), speed=None)
    assert any(job.run(20))


def test_calls_go_by_what_is_known_from_the_first_one_on():
    known = Known(True, (0.7, 1.0), (0.7, 1.0), 0.5, (3, 3), 0.0, "trial of yesterday")
    job = Job(times(0.7, 1.0), known=known)
    assert all(job.run(500))
    assert not job.ended
    assert "trial of yesterday" in job.kind.reason


@pytest.mark.parametrize(
    "change",
    [{"take": times(1.5, 1.0)}, {"share": 0.9}, {"take": times(0.2, 1.0)}],
    ids=["slower", "data", "quicker"],
)
def test_what_is_no_longer_so_is_tried_again(change):
    """A known decision is tried again if times or ratios no longer agree with its row."""
    known = Known(True, (0.7, 1.0), (0.7, 1.0), 0.5, (3, 3))
    job = Job(**{"take": times(0.7, 1.0), "known": known, **change})
    job.run(16 + 160)
    assert len(job.ended) == 1
    assert job.ways[:17] == [True] * 17
    assert not all(job.ways)


def test_the_first_calls_of_a_job_are_not_compared():
    """A job's first calls, which wait for connections, are not compared with known times."""
    known = Known(True, (0.7, 1.0), (0.7, 1.0), 0.5, (3, 3))
    job = Job(lambda compress, call: 20.0 if call < 2 else 0.7, known=known)
    assert all(job.run(100))
    assert not job.ended


def test_neighbouring_rows_have_no_times():
    job = Job(times(0.7, 1.0), known=Known(True, source="as calls of 65536 and 262144 bytes"))
    assert all(job.run(60))
    job.take = times(2.0, 1.0)
    job.run(400)
    assert len(job.ended) == 1


def test_slower_compressed_calls_are_not_tried_again_while_they_are_quicker_than_plain_ones_were():
    known = Known(True, (0.5, 1.0), (0.5, 1.0), 0.5, (3, 3))
    job = Job(times(0.9, 1.0), known=known)
    assert all(job.run(500))
    assert not job.ended


@pytest.mark.parametrize("pause", [0.0, 0.2e-3, 1e-3])
@pytest.mark.parametrize(
    ("gbit", "bucket", "nbytes", "plain", "compressed", "ratio"),
    [
        # Recorded between two hosts of one core each: what calls take while the bucket lets them pass.
        (10, 720 << 10, SMALL, 29e-6, 49e-6, 1.56),
        (10, 720 << 10, 4 * SMALL, 170e-6, 190e-6, 1.56),
        (5, 360 << 10, SMALL, 38e-6, 60e-6, 1.27),
        (5, 4 << 20, SMALL, 50e-6, 57e-6, 1.43),
    ],
)
def test_a_bucket_that_fills_between_blocks_hides_no_gain(
    gbit, bucket, nbytes, plain, compressed, ratio, pause
):
    """One trial finds what the link takes, although a bucket fills between blocks and lets bursts pass."""
    link, tokens, block = gbit / 8e-9, float(bucket), None

    def take(compress, call):
        nonlocal tokens, block
        if job.kind.window is not block:
            block, tokens = job.kind.window, min(bucket, tokens + link * pause)
        sent, least = (nbytes / ratio, compressed) if compress else (nbytes, plain)
        seconds = max(least, (sent - tokens) / link)
        tokens = min(bucket, tokens + link * seconds - sent)
        return seconds

    job = Job(take, nbytes, wire=nbytes / link)
    job.run(3000)
    assert [known.compress for known in job.ended] == [True]
    assert all(job.ways[-100:])


def test_one_hiccup_on_a_link_that_is_quicker_than_it_was_measured_to_be():
    job = Job(lambda compress, call: 30.0 if call == 60 else (1.5 if compress else 1.0), wire=2.0)
    job.run(400)
    assert [known.compress for known in job.ended] == [False]


def test_a_look_finds_that_the_other_way_is_quicker_now():
    """A later trial finds that compressed calls have become faster, which plain calls cannot show."""
    quick = Job(lambda compress, call: (0.5 if call > 300 else 1.1) if compress else 1.0)
    quick.run(512 + 400)
    assert [known.compress for known in quick.ended] == [False, True]
    assert quick.ways[-1]


def test_looks_that_reverse_each_other_end_in_plain():
    """Trials that reverse each other, as with alternating data, are few and end in plain calls."""
    state = {"trial": 0}

    def take(compress, call):
        return (0.5 if state["trial"] % 2 else 1.1) if compress else 1.0

    job = Job(take)
    job.kind._on_end = lambda known: (job.ended.append(known), state.update(trial=state["trial"] + 1))
    for _ in range(40):
        state["trial"] = len(job.ended)
        job.run(500)
    assert not any(job.ways[-1000:])
    assert len(job.ended) <= 6


@pytest.mark.parametrize("wire", [0.0, 1e-4])
def test_a_busy_machine_begins_few_trials(wire):
    rng = random.Random(1)
    job = Job(lambda compress, call: rng.choice([1.0, 1.0, 9.0]) * 1e-4, wire=wire)
    job.run(8000)
    assert len(job.ended) <= 4
    assert 8 * job.kind._tried <= 3 * len(job.ways)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=20),
    st.sampled_from([SMALL, LARGE]),
    st.floats(0, 1),
)
def test_any_times_end_a_trial(series, nbytes, share):
    """Any times end a trial within its limit, without NaN."""
    job = Job(lambda compress, call: series[call % len(series)][compress], nbytes, share=share)
    job.run(8 + (144 if nbytes == SMALL else 36) + 1)
    assert len(job.ended) == 1 or job.kind.known is not None
    assert job.kind.known.seconds[0] >= 0


def test_a_call_that_raised_leaves_its_block_out(monkeypatch):
    """A block with a call that raised, whose start may be unknown, does not count."""
    monkeypatch.setattr(
        FakeWindow, "since", property(lambda self: 0.0, lambda self, value: None), raising=False
    )
    job = Job(times(0.5, 1.0))
    job.run(8 + 144 + 1)
    assert job.ended[0].compress is False


@pytest.mark.parametrize("op", ["Alltoall", "Allgather", "Bcast", "Allreduce", "Gather", "Scatter", "Reduce"])
def test_what_is_coded(op):
    coding = coding_of(op, 1000, 4, 2)
    assert coding.encoded + coding.decoded >= 1000
    assert coding.seconds(1.0, 1.0) == (coding.encoded + coding.decoded) / 2


def test_the_middle():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, inf]) == 3
