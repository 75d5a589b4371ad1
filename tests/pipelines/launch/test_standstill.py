"""Who is named and ended when no step comes, with a board in memory and ranks that are threads of this process."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sts_methods import RunPlan
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.launch import standstill
from sts_pipelines.launch.standstill import Note, RayBoard, StandstillWatch, culprits

PLAN = RunPlan(config={}, first_step=0, total_steps=1000, steps_per_epoch=10, images_per_step=8, keep_checkpoints=1)
NOTE = Note(rank=0, pid=10, machine="a", step=3, number=1, stack=["image.py:1 in read"], waits=False)


class Memory(dict[int, Note]):
    """A board that is a dictionary."""

    def write(self, note: Note) -> None:
        self[note.rank] = note

    def read(self) -> dict[int, Note]:
        return dict(self)

    def remove(self, number: int) -> None:
        del self[number]


class Clock:
    """Stands in for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(standstill, "time", clock)
    monkeypatch.setattr(standstill, "_SECONDS_TO_DIE", 0.0)
    return clock


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(standstill, "_print_warning", said.append)
    return said


def watch_of(board: Memory, ended: list[int], **options: float) -> StandstillWatch:
    return StandstillWatch(board, machine="a", seconds=options.get("seconds", 60.0), end=ended.append)


def stand(watch: StandstillWatch, clock: Clock, seconds: int, also: Callable[[], None] = lambda: None) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        also()
        watch.look()


def train(watch: StandstillWatch, clock: Clock, *, seconds_each: float, steps: int = 30) -> None:
    for step in range(1, steps + 1):
        clock.now += seconds_each
        watch.step(step)


def test_a_rank_that_no_longer_answers_is_named_with_its_last_place_and_killed(clock: Clock, warned: list[str]) -> None:
    board, ended = Memory({1: replace(NOTE, rank=1, pid=11)}), list[int]()
    watch = watch_of(board, ended)
    train(watch, clock, seconds_each=0.5)
    stand(watch, clock, 59)
    assert not warned
    assert not ended
    stand(watch, clock, 1)
    assert ended[0] == 11
    assert "rank 1 (process 11) does not answer, last seen at image.py:1 in read" in warned[0]
    assert "no step for 1:00, where 0.50 s is usual" in warned[0]
    assert "stuck_after_seconds" in warned[0]


def test_of_ranks_that_all_answer_the_one_that_does_not_wait_for_others_is_named(
    clock: Clock, warned: list[str]
) -> None:
    board, ended = Memory(), list[int]()
    watch = watch_of(board, ended)
    watch.step(1)
    other = iter(range(10_000))
    stand(watch, clock, 61, lambda: board.write(replace(NOTE, rank=1, pid=11, number=next(other), waits=True)))
    assert "rank 0" in warned[0]
    assert "rank 1" not in warned[0]
    assert "test_standstill.py" in warned[0]  # where this thread is


def test_slow_steps_rests_and_the_end_are_no_standstill(clock: Clock, warned: list[str]) -> None:
    ended: list[int] = []
    watch = watch_of(Memory(), ended)
    train(watch, clock, seconds_each=10.0)
    assert watch.limit() == 20 * 10.0
    stand(watch, clock, 190)
    with watch.resting():
        stand(watch, clock, 1000)
    stand(watch, clock, 190)
    assert not warned
    assert not ended
    watch.start(replace(PLAN, total_steps=31), None)  # type: ignore[arg-type]
    watch.step(31)
    assert watch._over.is_set()


def test_time_in_which_the_whole_job_was_frozen_is_no_standstill(clock: Clock, warned: list[str]) -> None:
    board, ended, other = Memory(), list[int](), iter(range(10_000))

    def another() -> None:
        board.write(replace(NOTE, rank=1, pid=11, number=next(other), waits=True))

    watch = watch_of(board, ended)
    train(watch, clock, seconds_each=0.5)
    for seconds in (40, 18):
        stand(watch, clock, seconds, another)
        assert not warned
        assert not ended
        clock.now += 3600.0
        watch.look()  # before the other rank can leave a note
    assert "no step for 1:00" in warned[0]
    assert "rank 1" not in warned[0]


def test_who_has_taken_a_step_since_the_warning_lives(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    watch = watch_of(Memory(), ended)
    train(watch, clock, seconds_each=0.5)
    monkeypatch.setattr(standstill, "_print_warning", lambda message: watch.step(31))
    stand(watch, clock, 60)
    assert watch._step == 31
    assert not ended


def test_the_first_step_has_four_times_as_long(clock: Clock, warned: list[str]) -> None:
    ended: list[int] = []
    watch = watch_of(Memory(), ended)
    stand(watch, clock, 239)
    assert not ended
    stand(watch, clock, 1)
    assert ended == [os.getpid()]
    watch.step(1)
    assert watch.limit() == 60.0


def test_a_start_reads_no_notes_of_the_one_before_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    store: dict[str, str] = {}
    monkeypatch.setattr("ray.runtime_context.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    kv = "ray.experimental.internal_kv._internal_kv"
    monkeypatch.setattr(f"{kv}_put", lambda key, value, overwrite: store.update({key: value}))
    monkeypatch.setattr(f"{kv}_get", store.get)
    monkeypatch.setattr(f"{kv}_del", store.pop)
    killed, board = RayBoard("run"), RayBoard("run")
    killed.write(NOTE)
    assert killed.read() == {0: NOTE}
    assert board.read() == {}
    watch = StandstillWatch(board, machine="a", seconds=60.0)
    board.write(watch.note())
    watch.close()
    watch._watch()
    assert board.read() == {}


def test_a_host_that_waits_for_its_gpu_is_not_taken_for_the_culprit() -> None:
    env = "/env/lib/site-packages"
    assert standstill._waits(f"{env}/sts_core/distributed.py", "agree")
    assert standstill._waits(f"{env}/sts_methods/training/failure_checks.py", "outcome")
    assert standstill._waits(f"{env}/sts_methods/runs/metrics_log.py", "flush")
    assert not standstill._waits(f"{env}/sts_methods/runs/metrics_log.py", "append")  # waits for a disk
    assert not standstill._waits("/home/me/my_failure_checks.py", "read")


def test_where_nothing_tells_the_ranks_apart_all_are_named() -> None:
    notes = {number: replace(NOTE, rank=number, waits=True) for number in range(3)}
    assert [note.rank for note in culprits(notes, [])] == [0, 1, 2]
    assert [note.rank for note in culprits(notes, [2])] == [2]


def test_the_stack_is_that_of_the_thread_that_trains() -> None:
    board, inside, over = Memory(), threading.Event(), threading.Event()
    watch = watch_of(board, [])

    def wait_for_the_disk() -> None:
        watch.start(PLAN, None)  # type: ignore[arg-type]
        inside.set()
        over.wait(60)

    thread = threading.Thread(target=wait_for_the_disk)
    thread.start()
    inside.wait(60)
    note = watch.note()
    over.set()
    thread.join(60)
    watch.close()
    assert any("wait_for_the_disk" in place for place in note.stack)
    assert not note.waits


def test_a_limit_that_every_pause_would_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="stuck_after_seconds must be at least 10"):
        ClusterConfig(stuck_after_seconds=1)
