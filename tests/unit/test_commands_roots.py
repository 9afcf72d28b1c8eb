"""From the process that stands still to the one that is to blame, in words."""

from __future__ import annotations

from headrace.commands.roots import Sign, Stage, Standing, path_to_root, sentence, silent_too

NOW_S = 1000.0


def standings(*found):
    return {one.id: one for one in found}


def silent(name, needs=(), *, last_s, **more):
    """It runs, and got on last at ``last_s``."""
    facts = {"stage": Stage.READY, "since_s": 100.0, "started_s": 90.0, "sign": Sign.RESULTS, "progress_s": last_s}
    return Standing(id=name, needs=needs, **(facts | more))


def stalled(name, needs=(), *, last_s):
    trouble = f"makes no progress for {NOW_S - last_s:.3g} s (limit 300 s)"
    return silent(name, needs, last_s=last_s, stage=Stage.FAILED, since_s=NOW_S, trouble=trouble, stalled=True)


def test_the_root_is_the_one_that_died_two_needs_away():
    found = standings(
        stalled("trainer", ("orchestrator",), last_s=688.0),
        silent("orchestrator", ("inference",), last_s=687.0),
        Standing(id="inference", stage=Stage.FAILED, since_s=960.0, started_s=10.0, trouble="exited with code 1"),
    )

    path = path_to_root("trainer", found, NOW_S)

    assert path == ["trainer", "orchestrator", "inference"]
    assert sentence(path, found, NOW_S) == (
        "trainer makes no progress for 312 s (limit 300 s); it needs orchestrator (makes no progress for 313 s), "
        "which needs inference: exited with code 1 40 s ago"
    )


def test_of_silent_ones_the_root_fell_silent_first():
    found = standings(
        stalled("trainer", ("orchestrator",), last_s=690.0),
        silent("orchestrator", ("inference",), last_s=687.0),
        silent("inference", last_s=685.0),
    )
    assert path_to_root("trainer", found, NOW_S)[-1] == "inference"


def test_who_fell_silent_itself_is_not_excused_by_those_that_followed():
    found = standings(
        stalled("trainer", ("orchestrator",), last_s=600.0),
        silent("orchestrator", ("inference",), last_s=610.0),
        silent("inference", last_s=999.5),
    )
    assert path_to_root("trainer", found, NOW_S) == ["trainer"]


def test_what_was_noticed_late_may_have_happened_before():
    found = standings(stalled("trainer", ("server",), last_s=690.0), silent("server", last_s=692.0, slack_s=5.0))
    assert path_to_root("trainer", found, NOW_S) == ["trainer", "server"]


def test_a_server_that_may_only_have_nothing_to_do_is_not_blamed_for_falling_silent_about_then():
    found = standings(
        stalled("trainer", ("orchestrator",), last_s=690.0),
        silent("orchestrator", ("inference",), last_s=689.0),
        silent("inference", last_s=688.5, sign=Sign.ANSWERS),
    )
    path = path_to_root("trainer", found, NOW_S)

    assert path == ["trainer", "orchestrator"]
    assert silent_too(path, found, NOW_S) == ["inference (makes no progress for 312 s; it may have nothing to do)"]


def test_a_server_that_fell_silent_long_before_is_blamed():
    found = standings(stalled("trainer", ("server",), last_s=690.0), silent("server", last_s=600.0, sign=Sign.ANSWERS))
    assert path_to_root("trainer", found, NOW_S) == ["trainer", "server"]
    assert silent_too(["trainer", "server"], found, NOW_S) == []


def test_a_server_that_does_nothing_with_work_at_hand_is_blamed_though_it_worked_on_for_a_while():
    found = standings(stalled("trainer", ("server",), last_s=690.0), silent("server", last_s=750.0, sign=Sign.WORK))
    assert path_to_root("trainer", found, NOW_S) == ["trainer", "server"]
    found = standings(stalled("trainer", ("server",), last_s=690.0), silent("server", last_s=950.0, sign=Sign.WORK))
    assert path_to_root("trainer", found, NOW_S) == ["trainer"]


def test_a_dead_one_explains_more_than_a_silent_one():
    found = standings(
        stalled("trainer", ("silent", "dead"), last_s=690.0),
        silent("silent", last_s=500.0),
        Standing(id="dead", stage=Stage.FAILED, since_s=950.0, trouble="was killed by SIGKILL"),
    )
    assert path_to_root("trainer", found, NOW_S) == ["trainer", "dead"]


def test_one_that_exited_by_itself_is_excused_only_by_what_had_failed_before():
    exited = {"stage": Stage.FAILED, "started_s": 90.0, "trouble": "exited with code 1"}
    user = Standing(id="user", needs=("server",), since_s=900.0, progress_s=890.0, **exited)

    def root(server):
        return path_to_root("user", standings(user, server), NOW_S)[-1]

    assert root(silent("server", last_s=600.0)) == "user"
    assert root(Standing(id="server", since_s=899.0, **exited)) == "server"
    assert root(Standing(id="server", since_s=901.0, **exited)) == "user"


def test_one_that_ended_in_order_explains_a_wait_unless_it_only_prepared():
    user = stalled("trainer", ("orchestrator", "prepare"), last_s=690.0)
    orchestrator = Standing(id="orchestrator", stage=Stage.DONE, since_s=685.0)
    prepare = Standing(id="prepare", stage=Stage.DONE, since_s=80.0)

    path = path_to_root("trainer", standings(user, orchestrator, prepare), NOW_S)

    assert path == ["trainer", "orchestrator"]
    assert sentence(path, standings(user, orchestrator), NOW_S).endswith(
        "it needs orchestrator: ended with code 0 315 s ago"
    )


def test_one_that_is_well_or_needs_nobody_is_its_own_root():
    found = standings(stalled("trainer", ("server",), last_s=690.0), silent("server", last_s=999.8))

    assert path_to_root("trainer", found, NOW_S) == ["trainer"]
    assert sentence(["trainer"], found, NOW_S) == "trainer makes no progress for 310 s (limit 300 s)"


def test_one_that_never_became_ready_is_the_root_of_those_it_kept_from_starting():
    found = standings(
        Standing(id="trainer", needs=("inference",), stage=Stage.FAILED, since_s=NOW_S, trouble="cannot be started"),
        Standing(id="inference", stage=Stage.STARTING, since_s=400.0, started_s=400.0),
    )
    path = path_to_root("trainer", found, NOW_S)
    assert sentence(path, found, NOW_S) == "trainer cannot be started; it needs inference: is not ready after 600 s"
