// The log of a process, and what is read and confirmed to keep it complete: pure modules.
import assert from "node:assert/strict";
import test from "node:test";
import { GapError, ProtocolError } from "../dist/errors.js";
import { ProcessSync } from "../dist/process-sync.js";

const CHUNK = 64 << 10;
const base64 = (size) => Buffer.alloc(size, "x").toString("base64");

function sync(gaps = "fatal") {
  const made = new ProcessSync("p", { gaps });
  return { made, all: made.log.subscribe("all") };
}

const output = (seq, size = 1, stream = "stdout") => [
  "process/output",
  { seq, stream, chunk: base64(size) },
];
const exited = (seq) => ["process/exited", { seq, exitCode: 0 }];
const closed = (seq) => ["process/closed", { seq }];
const response = (chunks, nextSeq, more = {}) => ({
  chunks: chunks.map((seq) => ({ seq, stream: "stdout", chunk: base64(1) })),
  nextSeq,
  exited: false,
  exitCode: null,
  closed: false,
  ...more,
});

function notify(made, ...notifications) {
  for (const [method, params] of notifications) made.notified(method, params);
}

function taken({ made, all }) {
  const events = [];
  for (let event = made.log.take(all); event; event = made.log.take(all)) events.push(event);
  return events.map(({ type, seq, droppedBytes }) =>
    type === "gap" ? `gap ${droppedBytes}` : `${type} ${seq}`,
  );
}

test("events come in order, each once", () => {
  const one = sync();
  notify(one.made, output(1), output(2), output(2), output(1), exited(3), closed(4), closed(4));
  assert.deepEqual(taken(one), ["output 1", "output 2", "exited 3", "closed 4"]);
});

test("a missing event is read, and later ones wait for it", () => {
  const one = sync();
  notify(one.made, output(1), output(3));
  assert.deepEqual(taken(one), ["output 1"]);
  const [pull] = one.made.collect(true, 0);
  assert.deepEqual([pull.type, pull.params.afterSeq], ["pull", 1]);
  assert.deepEqual(one.made.collect(true, 0), [], "one read at a time");
  one.made.pulled(pull.after, response([2, 3], 4), 0);
  assert.deepEqual(taken(one), ["output 2", "output 3"]);
});

test("only consumed output is confirmed", () => {
  const one = sync();
  notify(one.made, ...Array.from({ length: 8 }, (_, at) => output(at + 1, CHUNK)));
  assert.deepEqual(one.made.collect(true, 0), []);
  taken(one);
  assert.deepEqual(one.made.collect(true, 0), [
    { type: "notify", method: "process/ack", params: { processId: "p", seq: 8 } },
  ]);
  assert.deepEqual(one.made.collect(true, 0), []);
});

test("a small amount of output is confirmed after a delay", () => {
  const one = sync();
  notify(one.made, output(1));
  taken(one);
  assert.deepEqual(one.made.collect(true, 0), []);
  assert.equal(one.made.pollTimeout(), 100);
  assert.equal(one.made.collect(true, 100)[0].params.seq, 1);
});

test("a lost confirmation is repeated, and the last one is a request", () => {
  const one = sync();
  notify(one.made, output(1), exited(2), closed(3));
  taken(one);
  const [confirmation] = one.made.collect(true, 0);
  assert.deepEqual([confirmation.method, confirmation.params.afterSeq], ["process/read", 3]);
  assert.equal(one.made.done, true);
  one.made.connectionLost();
  assert.equal(one.made.done, false);
  assert.deepEqual(one.made.collect(true, 0), [confirmation]);
});

test("a log that is full refuses output, and reads it when there is room", () => {
  const one = sync();
  const chunks = 100;
  notify(one.made, ...Array.from({ length: chunks }, (_, at) => output(at + 1, CHUNK)));
  const before = taken(one).length;
  assert.ok(before < chunks, "4 MiB are kept");
  const outbound = one.made.collect(true, 0);
  assert.equal(outbound.find(({ type }) => type === "pull").params.afterSeq, before);
});

test("readers of one stream are not held up by the other", () => {
  const made = new ProcessSync("p", { gaps: "fatal" });
  const stdout = made.log.subscribe("stdout");
  notify(made, output(1, 1, "stderr"), output(2), output(3, 1, "stderr"));
  assert.equal(made.log.take(stdout).seq, 2);
  assert.equal(made.log.consumed, 3);
});

test("a late reader misses only what was evicted of its own stream", () => {
  const made = new ProcessSync("p", { gaps: "fatal" });
  const stdout = made.log.subscribe("stdout");
  for (let seq = 1; seq <= 100; seq++) {
    notify(made, output(seq, CHUNK));
    made.log.take(stdout);
  }
  notify(made, output(101, 1, "stderr"));
  const stderr = made.log.subscribe("stderr");
  assert.deepEqual([stderr.missed, made.log.take(stderr).seq], [0, 101]);
  assert.ok(made.log.subscribe("stdout").missed > 0);
});

test("missing output ends the process, or is reported if gaps are declared", () => {
  const fatal = sync();
  const { log } = fatal.made;
  fatal.made.pulled(0, response([5], 6, { droppedBytes: 9 }), 0);
  assert.ok(log.failure instanceof GapError);
  assert.match(log.failure.message, /it is terminated/);
  assert.ok(fatal.made.collect(true, 0).some(({ method }) => method === "process/terminate"));
  const declared = sync("declared");
  declared.made.pulled(0, response([5], 6, { droppedBytes: 9 }), 0);
  assert.deepEqual(taken(declared), ["gap 9", "output 5"]);
});

test("a gap does not count output that is here", () => {
  const one = sync("declared");
  notify(one.made, output(1, 5), output(2, 5));
  one.made.pulled(0, response([7], 8, { droppedBytes: 30 }), 0);
  assert.deepEqual(taken(one), ["output 1", "output 2", "gap 20", "output 7"]);
});

test("an exit known only from a read gets its place in the order", () => {
  const one = sync();
  notify(one.made, output(1));
  one.made.pulled(0, response([1], 4, { exited: true, exitCode: 3, closed: true }), 0);
  assert.deepEqual(taken(one), ["output 1", "exited 2", "closed 3"]);
});

test("impossible numbers end the process", () => {
  for (const seq of [0, -1, 1.5, 2 ** 53, "1", undefined]) {
    const made = new ProcessSync("p", { gaps: "fatal" });
    const failures = [];
    made.log.onFailed = (error) => failures.push(error);
    made.notified("process/output", { seq, stream: "stdout", chunk: "" });
    assert.ok(failures[0] instanceof ProtocolError, String(seq));
  }
});
