// The method table agrees with the schema.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

test("every method has its types", () => {
  const { methods } = JSON.parse(
    readFileSync(new URL("../../../docs/openrpc.json", import.meta.url)),
  );
  const typeOf = (schema) => schema.$ref.split("/")[3];
  const expected = methods.map(({ name, params: [first], result }) => {
    return [name, first ? typeOf(first.schema) : "Empty", typeOf(result.schema)];
  });
  const table = readFileSync(new URL("../src/methods.ts", import.meta.url), "utf8");
  const found = [...table.matchAll(/^  "?([\w/]+)"?: \[wire\.(\w+), wire\.(\w+)\];$/gm)].map(
    (match) => match.slice(1),
  );
  assert.deepEqual(found, expected);
});
