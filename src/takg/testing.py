"""What every backend must pass: subclass a contract in a test module of your own, and pytest runs it.

class TestMyStorage(StorageContract):
    def make_storage(self):
        return MyStorage(...)
"""

import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from takg.errors import ConflictError, InputError, NoStudyError, StudyExistsError
from takg.records import (
    Asked,
    Definition,
    Dropped,
    Event,
    Failed,
    Finished,
    Given,
    Lost,
    Observed,
    Saved,
    Storage,
    fold,
)

__all__ = ["StorageContract"]


class StorageContract(ABC):
    """Every sentence of `takg.records.Storage`."""

    @abstractmethod
    def make_storage(self) -> Storage:
        """An empty store; once for each test."""

    def opened_again(self, storage: Storage) -> Storage:
        """The same store as another process would open it; for stores that several processes can share."""
        return storage

    def test_an_empty_store_has_no_studies(self) -> None:
        with closing(self.make_storage()) as storage:
            assert storage.names() == []

    def test_a_definition_comes_back_as_it_was_given(self) -> None:
        definition = _definition("größer 日本 🙂")
        with closing(self.make_storage()) as storage:
            storage.create(definition)
            found = storage.definition(definition.name)
            assert found == definition
            assert repr(found) == repr(definition)  # ints stay ints, floats floats

    def test_names_are_in_the_order_of_creation(self) -> None:
        with closing(self.make_storage()) as storage:
            for name in ("b", "c", "a", "B", "b "):
                storage.create(_definition(name))
            assert storage.names() == ["b", "c", "a", "B", "b "]

    def test_a_name_is_taken_once(self) -> None:
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            storage.append("a", [_point(0)], after=0)
            with _raises(StudyExistsError, "'a' .*already"):
                storage.create(Definition(name="a", space={}, fidelities={}, settings={}))
            assert storage.definition("a") == _definition("a")
            assert len(storage.read("a")) == 1

    def test_a_definition_that_is_not_plain_json_is_refused(self) -> None:
        bad: list[Any] = [{"lr": (1, 2)}, {"lr": math.nan}, {"lr": {1, 2}}, {1: "lr"}, {"lr": object()}]
        with closing(self.make_storage()) as storage:
            for space in bad:
                with _raises(InputError, "plain JSON"):
                    storage.create(Definition(name="a", space=space, fidelities={}, settings={}))
            for name in ("", " ", "a\n", "a\0b", "\ud800"):
                with _raises(InputError, "name=.* printable"):
                    storage.create(_definition(name))
            assert storage.names() == []

    def test_a_study_that_is_not_there_is_named_in_the_error(self) -> None:
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            for call in (
                lambda: storage.definition("b"),
                lambda: storage.delete("b"),
                lambda: storage.append("b", [_point(0)], after=0),
                lambda: storage.append("b", [_point(0), _point(1)], after=0),
                lambda: storage.append("b", [], after=0),
                lambda: storage.read("b"),
                lambda: storage.read("b", after=3),
                lambda: storage.beat("b", "w"),
                lambda: storage.silences("b"),
                lambda: storage.remember("b", "key", "value"),
                lambda: storage.recall("b", "key"),
            ):
                with _raises(NoStudyError, "no study 'b'"):
                    call()
            assert storage.names() == ["a"]
            assert storage.read("a") == []

    def test_delete_removes_a_study_and_all_that_belongs_to_it_and_nothing_else(self) -> None:
        with closing(self.make_storage()) as storage:
            for name in ("a", "b"):
                storage.create(_definition(name))
                storage.append(name, [_point(0), _point(1)], after=0)
                storage.beat(name, "w")
                storage.remember(name, "key", name)
            storage.delete("a")
            assert storage.names() == ["b"]
            assert len(storage.read("b")) == 2
            assert set(storage.silences("b")) == {"w"}
            assert storage.recall("b", "key") == "b"
            storage.create(_definition("a"))  # as new
            assert storage.names() == ["b", "a"]
            assert storage.read("a") == []
            assert storage.silences("a") == {}
            assert storage.recall("a", "key") is None

    def test_append_says_how_many_events_there_are_now(self) -> None:
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            assert storage.append("a", [], after=0) == 0
            assert storage.append("a", [_point(0)], after=0) == 1
            assert storage.append("a", [_point(1), _point(2)], after=1) == 3
            assert storage.append("a", [], after=3) == 3

    def test_read_gives_the_events_after_a_number_in_order(self) -> None:
        events = [_point(i) for i in range(25)]
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            assert storage.read("a") == []
            assert storage.read("a", after=4) == []
            storage.append("a", events[:12], after=0)
            storage.append("a", events[12:13], after=12)
            storage.append("a", events[13:], after=13)
            assert storage.read("a") == events
            for after in (0, 1, 9, 10, 24, 25, 26, 1000):
                assert storage.read("a", after=after) == events[after:]

    def test_an_append_that_does_not_know_the_whole_log_is_a_conflict_and_writes_nothing(self) -> None:
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            storage.append("a", [_point(0), _point(1), _point(2)], after=0)
            for after in (0, 1, 2, 4, 5, 1000):
                for count in (0, 1, 2, 5):
                    with _raises(ConflictError, f"'a' holds 3 events, not {after}"):
                        storage.append("a", [_point(10 + i) for i in range(count)], after=after)
            assert storage.read("a") == [_point(0), _point(1), _point(2)]

    def test_a_batch_with_an_event_that_cannot_be_written_writes_nothing(self) -> None:
        bad = Asked(evaluation=1, trial=0, target=(1.0,), worker="w", time=0.0, config={"model": object()})
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            storage.append("a", [_point(0)], after=0)
            batches: list[list[Event]] = [[bad], [_point(1), bad], [bad, _point(1)], [_point(1), bad, _point(2)]]
            for batch in batches:
                with _raises(InputError, "cannot be written as JSON"):
                    storage.append("a", batch, after=1)
            assert storage.read("a") == [_point(0)]
            assert storage.append("a", [_point(1)], after=1) == 2

    def test_events_of_every_kind_come_back_exactly(self) -> None:
        events = _events()
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            storage.append("a", events, after=0)
            found = storage.read("a")
            assert [repr(event) for event in found] == [repr(event) for event in events]  # NaN is not equal to itself
            assert fold(found).sequence == len(events)

    def test_what_is_read_is_a_copy_that_may_be_changed(self) -> None:
        config = {"layers": [64, 32]}
        asked = Asked(evaluation=0, trial=0, target=(1.0,), worker="w", time=0.0, config=config)
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            storage.append("a", [asked], after=0)
            config["layers"].append(16)
            for _ in range(2):
                [event] = storage.read("a")
                assert isinstance(event, Asked)
                assert event.config is not None
                assert event.config["layers"] == [64, 32]
                event.config["layers"].append(8)

    def test_what_one_wrote_another_reads_and_must_know_before_it_writes(self) -> None:
        with closing(self.make_storage()) as one, closing(self.opened_again(one)) as other:
            one.create(_definition("a"))
            assert other.definition("a") == _definition("a")
            assert one.append("a", [_point(0)], after=0) == 1
            with _raises(ConflictError, "'a' holds 1 events, not 0"):
                other.append("a", [_point(1)], after=0)
            assert other.append("a", [_point(1), _point(2)], after=1) == 3
            assert one.read("a", after=1) == [_point(1), _point(2)]
            one.beat("a", "w")
            one.remember("a", "key", "value")
            assert set(other.silences("a")) == {"w"}
            assert other.recall("a", "key") == "value"
            other.delete("a")
            assert one.names() == []

    def test_studies_do_not_mix(self) -> None:
        names = ["a", "A", "a ", "ä", "a%", "a_", "a'; DROP TABLE events; --"]
        with closing(self.make_storage()) as storage:
            for name in names:
                storage.create(_definition(name))
            for round_ in range(3):
                for number, name in enumerate(names):
                    assert storage.append(name, [_point(100 * number + round_)], after=round_) == round_ + 1
                    storage.remember(name, "key", name)
                    storage.beat(name, f"worker of {name}")
            for number, name in enumerate(names):
                assert storage.read(name) == [_point(100 * number + i) for i in range(3)]
                assert storage.recall(name, "key") == name
                assert set(storage.silences(name)) == {f"worker of {name}"}

    def test_silences_grow_until_the_next_beat(self) -> None:
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            assert storage.silences("a") == {}
            storage.beat("a", "w")
            storage.beat("a", "host/größer:1")
            time.sleep(0.06)
            storage.beat("a", "w")
            silences = storage.silences("a")
            assert set(silences) == {"w", "host/größer:1"}
            assert silences["host/größer:1"] >= 0.05
            assert 0.0 <= silences["w"] <= silences["host/größer:1"] - 0.05
            assert silences["host/größer:1"] < 30.0  # seconds, not days or milliseconds

    def test_a_note_is_replaced_by_the_next_of_its_key(self) -> None:
        long = "∫" * 300_000
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            assert storage.recall("a", "chains") is None
            storage.remember("a", "chains", "one")
            storage.remember("a", "", "")
            storage.remember("a", "chains", long)
            assert storage.recall("a", "chains") == long
            assert storage.recall("a", "") == ""
            assert storage.recall("a", "Chains") is None

    def test_beats_and_notes_are_not_events(self) -> None:
        with closing(self.make_storage()) as storage:
            storage.create(_definition("a"))
            storage.beat("a", "w")
            storage.remember("a", "key", "value")
            assert storage.read("a") == []
            assert storage.append("a", [_point(0)], after=0) == 1

    def test_threads_that_try_again_after_a_conflict_lose_nothing_and_write_nothing_twice(self) -> None:
        with closing(self.make_storage()) as storage:
            self._write_at_once([storage] * 4)

    def test_writers_that_opened_the_store_each_for_itself_lose_nothing_and_write_nothing_twice(self) -> None:
        with closing(self.make_storage()) as storage, ExitStack() as stack:
            self._write_at_once([stack.enter_context(closing(self.opened_again(storage))) for _ in range(4)])

    def _write_at_once(self, storages: list[Storage]) -> None:
        """One thread for each; every second batch is of two events."""
        batches = [
            [[_point(1000 * thread + 2 * i + j) for j in range(1 + i % 2)] for i in range(25)]
            for thread in range(len(storages))
        ]
        errors: list[BaseException] = []

        def work(thread: int) -> None:
            storage, after = storages[thread], 0
            try:
                for batch in batches[thread]:
                    while True:
                        try:
                            after = storage.append("a", batch, after=after)
                            break
                        except ConflictError:
                            after += len(storage.read("a", after=after))
                    storage.beat("a", str(thread))
            except BaseException as error:
                errors.append(error)

        storages[0].create(_definition("a"))
        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(len(storages))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert errors == []
        found = storages[0].read("a")
        for thread, expected in enumerate(batches):
            own = [event for event in found if isinstance(event, Observed) and event.evaluation // 1000 == thread]
            assert own == [event for batch in expected for event in batch]
        assert len(found) == sum(len(batch) for expected in batches for batch in expected)
        assert set(storages[0].silences("a")) == {str(thread) for thread in range(len(storages))}

    def test_a_store_may_be_closed_twice(self) -> None:
        storage = self.make_storage()
        storage.create(_definition("a"))
        storage.close()
        storage.close()


def _definition(name: str) -> Definition:
    space: dict[str, Any] = {"lr": {"low": 1e-6, "high": 1, "log": True}, "größe": [1, 2.0, None, "x", {"y": []}]}
    return Definition(name=name, space=space, fidelities={"epochs": {"high": 20}}, settings={"seed": 0, "q": -0.5})


def _point(number: int) -> Observed:
    return Observed(evaluation=number, attempt=1, fidelity=(number + 0.5,), value=0.1 * number, time=1.7e9 + number)


def _events() -> list[Event]:
    """A legal history with every kind of event and every kind of value that it may hold."""
    config: dict[str, Any] = {
        "lr": 1e-3,
        "layers": 3,
        "whole": 3.0,
        "big": 2**70,
        "tiny": 5e-324,
        "tenth": 0.1,
        "minus zero": -0.0,
        "on": True,
        "off": None,
        "名前": "größer 🙂 \x00 \ud800 \u2028 \"'\\",
        "nan": "nan",
        "odd": [math.nan, math.inf, -math.inf],
        "shape": (64, (32, 16.0), []),
        "nested": {"a": {"b": [{"c": None}, {}]}, "$tuple": [1]},
        "$float": {"$float": "inf"},
        "$$tag": {"$$tag": {"$tuple": (1,)}},
    }
    values = [0.25, 1, 0, -0.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1 + 0.2]
    points: list[Event] = [
        Observed(evaluation=0, attempt=2, fidelity=(i, 0.5), value=value, time=1.7e9 + i / 3)
        for i, value in enumerate(values)
    ]
    return [
        Asked(
            evaluation=0,
            trial=0,
            target=(20, 1.0),
            worker="host:1",
            time=1763251200.123456,
            config=config,
            kept=((5, 1.0), (20.0, 1)),
            reason={"gain": math.nan, "cost": 0, "by": ["takg", {"seconds": math.inf}]},
        ),
        Observed(evaluation=0, attempt=1, fidelity=(1, 0.5), value=math.nan, time=1.5),
        Saved(evaluation=0, attempt=1, fidelity=(1, 0.5), copy="copies/0-1 größer", time=2),
        Lost(evaluation=0, attempt=1, reason="silent for 60 s", time=3.0),
        Given(evaluation=0, attempt=2, worker="", time=4.0, start=(1, 0.5)),
        *points,
        Finished(evaluation=0, attempt=2, cost=0.5, seconds=12, time=6.0, has_checkpoint=True),
        Asked(evaluation=1, trial=0, target=(20.0, 1.0), worker="host:2", time=7.0, start=(9, 0.5), reason={}),
        Lost(evaluation=1, attempt=1, reason="", time=8.0),
        Given(evaluation=1, attempt=2, worker="host:3", time=9.0),
        Failed(
            evaluation=1,
            attempt=2,
            kind="error",
            message="Traceback …\n" + "größer " * 20_000,
            cost=math.inf,
            seconds=0.0,
            time=10.0,
        ),
        Dropped(trial=0, reason="no use", time=11.0),
    ]


@contextmanager
def _raises(error: type[Exception], match: str) -> Iterator[None]:
    """As `pytest.raises`, so that this module needs no pytest."""
    try:
        yield
    except error as found:
        assert re.search(match, str(found)), f"{match!r} is not in {str(found)!r}"
    else:
        raise AssertionError(f"expected {error.__name__}")
