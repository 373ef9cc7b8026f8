import assert from "node:assert/strict";
import test from "node:test";
import { DEFAULT_RECOVERY, Recovery } from "../dist/recovery.js";

const FIRST_ATTEMPT = 10_000;

function actions(recovery) {
  const found = [];
  for (let action = recovery.pollAction(); action; action = recovery.pollAction()) {
    found.push([action.type, action.generation ?? action.reason]);
  }
  return found;
}

function connected() {
  const recovery = new Recovery(DEFAULT_RECOVERY, FIRST_ATTEMPT, 0, () => 0.5);
  assert.deepEqual(actions(recovery), [["dial", 1]]);
  recovery.handleInitialized(1, 0);
  assert.deepEqual(actions(recovery), [["admit", 1]]);
  assert.equal(recovery.pollTimeout(), null);
  return recovery;
}

test("calls go through once the session has caught up", () => {
  const recovery = connected();
  recovery.handleLost(1, false, 1_000);
  assert.deepEqual(actions(recovery), [["dial", 2]], "the first attempt is immediate");
  recovery.handleInitialized(2, 1_000);
  assert.deepEqual(actions(recovery), [["catchUp", 2]]);
  assert.equal(recovery.connected, false);
  recovery.handleCaughtUp(2, 1_000);
  assert.deepEqual(actions(recovery), [["admit", 2]]);
  assert.equal(recovery.connected, true);
});

test("after a very short connection the client pauses before it dials", () => {
  const recovery = connected();
  recovery.handleLost(1, false, 10);
  assert.deepEqual(actions(recovery), []);
  assert.equal(recovery.pollTimeout(), 10 + 75);
  recovery.handleTimeout(85);
  assert.deepEqual(actions(recovery), [["dial", 2]]);
});

test("an old connection changes nothing", () => {
  const recovery = connected();
  recovery.handleLost(1, false, 1_000);
  recovery.handleInitialized(2, 1_000);
  actions(recovery);
  recovery.handleLost(1, true, 1_000);
  recovery.handleInitialized(1, 1_000);
  recovery.handleCaughtUp(1, 1_000);
  assert.deepEqual(actions(recovery), []);
});

test("attempts are spaced and end at the deadline", () => {
  const recovery = connected();
  let now = 1_000;
  let dials = 0;
  recovery.handleLost(1, false, now);
  for (;;) {
    const action = recovery.pollAction();
    if (action?.type === "giveUp") {
      assert.equal(action.reason, "deadline");
      break;
    }
    if (action?.type === "dial") {
      dials += 1;
      recovery.handleLost(action.generation, false, now);
    } else if (action === undefined) {
      const next = recovery.pollTimeout();
      assert.ok(next - now <= DEFAULT_RECOVERY.longestPause);
      now = next;
      recovery.handleTimeout(now);
    }
  }
  assert.equal(now, 26_000);
  assert.ok(dials > 13 && dials < 40, `${dials} attempts`);
  assert.equal(recovery.pollTimeout(), null);
});

test("an attempt that hangs is aborted and counted once", () => {
  const recovery = connected();
  recovery.handleLost(1, false, 1_000);
  actions(recovery);
  recovery.handleTimeout(6_000);
  assert.deepEqual(actions(recovery), [["hangUp", 2]]);
  recovery.handleLost(2, false, 6_000);
  assert.equal(recovery.recovering.failed, 1);
  recovery.handleTimeout(recovery.pollTimeout());
  assert.deepEqual(actions(recovery), [["dial", 3]]);
});

test("a loss while catching up keeps the deadline", () => {
  const recovery = connected();
  recovery.handleLost(1, false, 1_000);
  recovery.handleInitialized(2, 1_000);
  recovery.handleLost(2, false, 6_000);
  assert.deepEqual(recovery.recovering, { since: 1_000, failed: 1 });
  actions(recovery);
  recovery.handleTimeout(26_000);
  assert.deepEqual(actions(recovery), [["giveUp", "deadline"]]);
});

test("a permanent refusal ends at once, and so does a failed first attempt", () => {
  const recovery = connected();
  recovery.handleLost(1, false, 1_000);
  actions(recovery);
  recovery.handleLost(2, true, 1_000);
  assert.deepEqual(actions(recovery), [["giveUp", "permanent"]]);
  const never = new Recovery(DEFAULT_RECOVERY, FIRST_ATTEMPT, 0, () => 0);
  actions(never);
  never.handleLost(1, false, 0);
  assert.deepEqual(actions(never), [["giveUp", "neverConnected"]]);
});
