"""The recovery state machine, played without sockets and clocks."""

from exec_server._recovery import (
    Action,
    Admit,
    CatchUp,
    Dial,
    GiveUp,
    HangUp,
    Recovery,
    RecoveryPolicy,
)


def actions(recovery: Recovery) -> list[Action]:
    found: list[Action] = []
    while (action := recovery.poll_action()) is not None:
        found.append(action)
    return found


def connected(policy: RecoveryPolicy | None = None) -> Recovery:
    recovery = Recovery(policy or RecoveryPolicy(), 10.0, 0.0, lambda: 1.0)
    assert actions(recovery) == [Dial(1)]
    recovery.handle_initialized(1, 0.0)
    assert actions(recovery) == [Admit(1)]
    assert recovery.poll_timeout() is None
    return recovery


def test_a_loss_is_recovered_and_only_then_calls_go_through() -> None:
    recovery = connected()
    recovery.handle_lost(1, 50.0)
    assert actions(recovery) == [Dial(2)], "the first attempt is immediate"
    assert not recovery.is_connected
    recovery.handle_initialized(2, 50.0)
    assert actions(recovery) == [CatchUp(2)]
    assert not recovery.is_connected
    recovery.handle_caught_up(2, 50.0)
    assert actions(recovery) == [Admit(2)]
    assert recovery.is_connected


def test_an_old_generation_changes_nothing() -> None:
    recovery = connected()
    recovery.handle_lost(1, 50.0)
    recovery.handle_initialized(2, 50.0)
    actions(recovery)
    recovery.handle_lost(1, 50.0)
    recovery.handle_lost(1, 50.0, permanent=True)
    recovery.handle_initialized(1, 50.0)
    recovery.handle_caught_up(1, 50.0)
    assert actions(recovery) == []
    recovery.handle_caught_up(2, 50.0)
    assert recovery.is_connected


def test_attempts_are_spaced_and_end_at_the_deadline() -> None:
    recovery = connected()
    now = 100.0
    recovery.handle_lost(1, now)
    pauses: list[float] = []
    dials = 0
    while True:
        action = recovery.poll_action()
        if isinstance(action, Dial):
            dials += 1
            recovery.handle_lost(action.generation, now)
        elif isinstance(action, GiveUp):
            break
        elif action is None:
            at = recovery.poll_timeout()
            assert at is not None
            pauses.append(at - now)
            now = at
            recovery.handle_timeout(now)
    assert action == GiveUp("deadline")
    assert now == 125.0
    assert abs(pauses[0] - 0.1) < 1e-9 and max(pauses) <= 2.0
    assert 13 <= dials < 40
    assert recovery.poll_timeout() is None


def test_a_connection_that_lives_for_a_moment_is_not_redialled_at_once() -> None:
    recovery = connected()
    recovery.handle_lost(1, 0.01)
    assert actions(recovery) == []
    at = recovery.poll_timeout()
    assert at is not None and at > 0.05
    recovery.handle_timeout(at)
    assert actions(recovery) == [Dial(2)]


def test_an_attempt_has_a_timeout_and_catching_up_has_only_the_deadline() -> None:
    recovery = connected()
    recovery.handle_lost(1, 50.0)
    actions(recovery)
    assert recovery.poll_timeout() == 55.0
    recovery.handle_timeout(55.0)
    assert actions(recovery) == [HangUp(2)]
    recovery.handle_timeout(56.0)
    assert actions(recovery) == [Dial(3)]
    recovery.handle_initialized(3, 57.0)
    actions(recovery)
    assert recovery.poll_timeout() == 75.0, "only the deadline of the recovery"


def test_without_a_deadline_the_recovery_never_gives_up() -> None:
    recovery = connected(RecoveryPolicy(deadline=None))
    recovery.handle_lost(1, 50.0)
    for action in actions(recovery):
        assert isinstance(action, Dial)
        recovery.handle_lost(action.generation, 50.0)
    for _ in range(1000):
        at = recovery.poll_timeout()
        assert at is not None
        recovery.handle_timeout(at)
        for action in actions(recovery):
            assert isinstance(action, Dial)
            recovery.handle_lost(action.generation, at)


def test_a_permanent_refusal_ends_the_recovery() -> None:
    recovery = connected()
    recovery.handle_lost(1, 50.0)
    actions(recovery)
    recovery.handle_lost(2, 50.0, permanent=True)
    assert actions(recovery) == [GiveUp("permanent")]
    recovery.handle_lost(2, 51.0)
    assert actions(recovery) == []


def test_the_first_attempt_is_not_repeated() -> None:
    first = Recovery(RecoveryPolicy(), 10.0, 0.0, lambda: 1.0)
    actions(first)
    first.handle_lost(1, 1.0)
    assert actions(first) == [GiveUp("never connected")]
