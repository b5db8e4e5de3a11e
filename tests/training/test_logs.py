"""Loggers that know their rank, and bars, where a process is alone."""

from __future__ import annotations

import inspect
import logging
import pickle
from pathlib import Path

import pytest

from nb_accelerate.training.bars import tqdm
from nb_accelerate.training.logs import get_logger


@pytest.fixture
def name(request) -> str:
    """Of a logger that no other test has."""
    return f"tests.{request.node.name}"


def here() -> int:
    return inspect.currentframe().f_back.f_lineno


def test_a_message_tells_its_rank_and_where_it_comes_from(name, caplog):
    logger = get_logger(name)
    line = here() + 1
    logger.warning("%d are missing", 3)
    logger.warning_once("said %s", "once")
    first, once = caplog.records
    assert (first.message, once.message) == ("[RANK 0] 3 are missing", "[RANK 0] said once")
    assert (first.name, first.lineno, once.lineno) == (name, line, line + 1)
    assert {Path(record.pathname) for record in caplog.records} == {Path(__file__)}


def test_a_callers_own_stacklevel_is_kept(name, caplog):
    logger = get_logger(name)

    def speak() -> None:
        logger.error("of my caller", stacklevel=3)

    line = here() + 1
    speak()
    assert caplog.records[0].lineno == line


def test_what_is_said_once_is_said_once_in_the_same_words(name, caplog):
    logger = get_logger(name)
    for size in (1, 1, 2, 1):
        logger.warning_once("size %d", size)
    logger.warning_once("an unhashable %s", [1])
    logger.warning_once("an unhashable %s", [1])
    said = [record.getMessage() for record in caplog.records]
    assert said == ["[RANK 0] size 1", "[RANK 0] size 2", "[RANK 0] an unhashable [1]"]


def test_a_level_is_that_loggers_alone(name, monkeypatch):
    root = logging.getLogger().level
    logger = get_logger(name, log_level="debug")
    assert (logger.logger.level, logging.getLogger().level) == (logging.DEBUG, root)
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "error")
    assert get_logger(f"{name}.b").logger.level == logging.ERROR
    assert get_logger(f"{name}.c", "info").logger.level == logging.INFO
    assert logging.getLogger().level == root


def test_in_order_and_from_all_ranks_are_accepted_alone_too(name, caplog):
    logger = get_logger(name)
    logger.warning("one", in_order=True)
    logger.warning("two", main_process_only=False)
    logger.debug("below the level", in_order=True)
    assert [record.getMessage() for record in caplog.records] == ["[RANK 0] one", "[RANK 0] two"]


def test_a_logger_travels_with_its_level(name):
    sent = pickle.dumps(get_logger(name, "info"))
    logging.getLogger(name).setLevel(logging.NOTSET)
    arrived = pickle.loads(sent)
    assert arrived.logger is logging.getLogger(name)
    assert arrived.logger.level == logging.INFO


def test_a_rank_that_has_not_met_the_others_cannot_tell_which_it_is(name, monkeypatch):
    started = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for variable, value in started.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(RuntimeError, match=r"before the ranks have met.*Accelerator\(\)"):
        get_logger(name).warning("who am I?")


# ---------------------------------------------------------------- bars
def test_a_bar_counts_what_it_is_given(capsys):
    assert list(tqdm(range(3), desc="counting")) == [0, 1, 2]
    assert "counting: 100%" in capsys.readouterr().err


def test_a_bar_that_is_disabled_stays_so(capsys):
    assert list(tqdm(range(3), disable=True)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("flag", [True, False])
def test_the_old_way_to_say_main_process_only_is_refused(flag):
    with pytest.raises(ValueError, match=f"main_process_only={flag} by its name"):
        tqdm(flag, range(3))
