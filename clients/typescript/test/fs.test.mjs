// machine.fs: Node's names on another machine; watch, search and glob.
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { join } from "node:path";
import test from "node:test";
import { connect, needsServer, temporaryDirectory } from "./support.mjs";

async function start(context) {
  const machine = await connect(context);
  const directory = temporaryDirectory(context);
  return { machine, fs: machine.fs, directory, at: (name) => join(directory, name) };
}

test("files are written, read and described", needsServer, async (context) => {
  const { fs, directory, at } = await start(context);
  await fs.mkdir(at("a b/c"), { recursive: true });
  await assert.rejects(fs.mkdir(at("x/y")), { kind: "notFound" });
  await fs.writeFile(at("a b/ü"), "text\n", { mode: 0o600 });
  assert.equal(await fs.readFile(at("a b/ü"), "utf8"), "text\n");
  assert.equal(
    await fs.readFile(new URL(`file://${directory}/a%20b/%C3%BC`), { encoding: "utf8" }),
    "text\n",
  );
  assert.deepEqual(await fs.readdir(at("a b")), ["c", "ü"]);
  const entries = await fs.readdir(at("a b"), { withFileTypes: true });
  assert.deepEqual(
    entries.map((entry) => [entry.name, entry.path, entry.isFile()]),
    [
      ["c", at("a b/c"), false],
      ["ü", at("a b/ü"), true],
    ],
  );
  const stats = await fs.stat(at("a b/ü"));
  assert.deepEqual([stats.size, stats.isFile(), stats.mode & 0o777], [5, true, 0o600]);
  assert.ok(stats.mtime instanceof Date && stats.mtimeMs > 0);
  await fs.chmod(at("a b/ü"), 0o640);
  assert.equal((await fs.stat(at("a b/ü"))).mode & 0o777, 0o640);
  assert.equal(await fs.exists(at("a b/ü")), true);
  assert.equal(await fs.exists(at("none")), false);
  await fs.writeFile(at("marked"), "\ufefftext");
  assert.equal(await fs.readFile(at("marked"), "utf8"), "\ufefftext", "a byte order mark stays");
  await assert.rejects(fs.readFile(at("none")), { kind: "notFound", code: -32004 });
  await assert.rejects(fs.readFile("relative"), TypeError);
});

test("a conditional write does not replace a changed file", needsServer, async (context) => {
  const { fs, at } = await start(context);
  await fs.writeFile(at("x"), "old", { flag: "wx", atomic: true });
  await assert.rejects(fs.writeFile(at("x"), "new", { flag: "wx" }), { kind: "conflict" });
  const { mtimeMs, size } = await fs.stat(at("x"));
  await assert.rejects(fs.writeFile(at("x"), "new", { ifSize: size + 1 }), { kind: "conflict" });
  await fs.writeFile(at("x"), "new", { ifSize: size, ifModifiedAtMs: mtimeMs });
  assert.equal(await fs.readFile(at("x"), "utf8"), "new");
});

test("files are copied, renamed and removed", needsServer, async (context) => {
  const { fs, directory, at } = await start(context);
  await fs.mkdir(at("from"));
  await fs.writeFile(at("from/x"), "x");
  await fs.cp(at("from"), at("to"), { recursive: true });
  await fs.rename(at("to/x"), at("to/y"));
  await assert.rejects(fs.rename(at("to/y"), at("from/x"), { replace: false }), {
    kind: "conflict",
  });
  await assert.rejects(fs.rm(at("to")));
  await fs.rm(at("to"), { recursive: true });
  await fs.rm(at("none"), { force: true });
  assert.deepEqual(await fs.readdir(directory), ["from"]);
});

test("symlinks are made, read, followed and refused", needsServer, async (context) => {
  const { fs, directory, at } = await start(context);
  await fs.writeFile(at("file"), "x");
  await fs.symlink("file", at("link"));
  await fs.symlink("nowhere", at("dangling"));
  assert.equal(await fs.readlink(at("link")), "file");
  assert.equal(await fs.realpath(at("link")), join(await fs.realpath(directory), "file"));
  assert.equal((await fs.stat(at("link"))).isSymbolicLink(), false);
  assert.equal((await fs.lstat(at("link"))).isSymbolicLink(), true);
  assert.equal((await fs.lstat(at("dangling"))).isSymbolicLink(), true);
  await assert.rejects(fs.stat(at("dangling")), { kind: "notFound" });
  await assert.rejects(fs.lstat(at("none")), { kind: "notFound" });
  await assert.rejects(fs.readFile(at("link"), { followSymlinks: false }), { kind: "symlink" });
});

test("files of any size can be streamed", needsServer, async (context) => {
  const { fs, at } = await start(context);
  const size = 3 << 20;
  const source = new Blob([new Uint8Array(size).fill(7)]).stream();
  await source.pipeTo(fs.writeStream(at("big")));
  const bytes = new Uint8Array(await new Response(fs.readStream(at("big"))).arrayBuffer());
  assert.ok(bytes.length === size && bytes.every((byte) => byte === 7));
  const writer = fs.writeStream(at("big")).getWriter();
  await writer.write("half");
  await writer.abort();
  assert.equal((await fs.stat(at("big"))).size, size);
  const large = new Uint8Array(50 << 20).fill(1);
  await fs.writeFile(at("huge"), large);
  assert.equal(Buffer.compare(await fs.readFile(at("huge")), large), 0);
});

test("file requests obey their sandbox", needsServer, async (context) => {
  const { fs, at } = await start(context);
  await assert.rejects(fs.writeFile(at("x"), "", { sandbox: "read-only" }), (error) => {
    return ["sandboxDenied", "permissionDenied", "sandboxUnavailable"].includes(error.kind);
  });
  assert.equal(await fs.exists(at("x")), false);
});

test("search and glob find files and lines", needsServer, async (context) => {
  const { machine, fs, directory, at } = await start(context);
  await fs.writeFile(at("a.txt"), "hay\nneedle one\n");
  await fs.mkdir(at("sub"));
  await fs.writeFile(at("sub/b.md"), "Needle two\n");
  const search = machine.search("needle", directory, { ignoreCase: true, before: 1 });
  const found = [];
  for await (const match of search) found.push(match);
  found.sort((one, other) => (one.path < other.path ? -1 : 1));
  assert.deepEqual(
    found.map(({ path, lineNumber }) => [path, lineNumber]),
    [
      [at("a.txt"), 2],
      [at("sub/b.md"), 1],
    ],
  );
  assert.deepEqual(found[0].before, [{ lineNumber: 1, text: "hay" }]);
  const { matches, filesSearched, truncated } = await search.summary;
  assert.deepEqual(
    { matches, filesSearched, truncated },
    { matches: 2, filesSearched: 2, truncated: false },
  );
  assert.deepEqual(await fs.search("(", directory, { literal: true }).toArray(), []);
  await assert.rejects(fs.search("(", directory).toArray(), { kind: "badPattern" });
  await assert.rejects(fs.search("x", directory, { signal: AbortSignal.abort() }).toArray(), {
    name: "AbortError",
  });
  for await (const _ of fs.search("", directory)) break;
  const cancelled = fs.search("", directory);
  await cancelled.cancel();
  assert.equal(typeof (await cancelled.summary).cancelled, "boolean");
  assert.deepEqual(await machine.glob("**/*.md", directory), [at("sub/b.md")]);
  assert.deepEqual(await fs.glob(["*", "!*.md"], directory, { maxEntries: 1 }), [at("a.txt")]);
});

test("a watch reports changes until it is closed", needsServer, async (context) => {
  const { machine, fs, directory, at } = await start(context);
  const abort = new AbortController();
  const watch = await machine.watch(directory, { recursive: true, signal: abort.signal });
  await fs.writeFile(at("x"), "");
  const kinds = new Map();
  for await (const { changes, rescan } of watch) {
    assert.equal(rescan, false);
    for (const { path, kind, from } of changes) kinds.set(path, [kind, from]);
    if (kinds.has(at("x")) && !kinds.has(at("y"))) await fs.rename(at("x"), at("y"));
    if (kinds.has(at("y"))) abort.abort();
  }
  assert.deepEqual(kinds.get(at("y")), ["renamed", at("x")]);
  assert.equal(await watch.next(), null);
  const { signal } = new AbortController();
  await assert.rejects(fs.watch(at("none"), { signal }), { kind: "notFound" });
  assert.equal(getEventListeners(signal, "abort").length, 0);
  const late = new AbortController();
  const opening = fs.watch(directory, { signal: late.signal });
  late.abort();
  await assert.rejects(opening, { name: "AbortError" });
});
