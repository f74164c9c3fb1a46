import assert from "node:assert/strict";
import { test } from "node:test";

import { matcher } from "../src/text_match.ts";

const found = (query: string, texts: string[]): string[] => {
  const wanted = matcher(query);
  return texts
    .map((text) => ({ text, score: wanted.score(text) }))
    .filter((one) => one.score >= 0)
    .sort((one, other) => other.score - one.score)
    .map((one) => one.text);
};

const NAMES = ["loss", "eval/loss", "grad_norm", "learning_rate", "phase/forward", "gpu/0/memory_used_bytes"];

test("words match in any order, the start of a word best", () => {
  assert.deepEqual(found("loss", NAMES), ["loss", "eval/loss"]);
  assert.deepEqual(found("loss eval", NAMES), ["eval/loss"]);
  assert.equal(found("mem gpu", NAMES)[0], "gpu/0/memory_used_bytes");
});

test("letters with gaps match, but not letters from everywhere", () => {
  assert.equal(found("grdnrm", NAMES)[0], "grad_norm");
  assert.deepEqual(found("zzz", NAMES), []);
});

test("a query between slashes is a regular expression; an invalid one matches everything and reports why", () => {
  assert.deepEqual(found("/^(loss|grad)/", NAMES), ["loss", "grad_norm"]);
  const broken = matcher("/(/");
  assert.ok(broken.problem !== "");
  assert.equal(broken.score("loss"), 0);
});

test("an empty query matches everything", () => {
  assert.equal(found("  ", NAMES).length, NAMES.length);
});

test("a regular expression needs no slashes, and an incomplete one is matched by its letters", () => {
  assert.deepEqual(found("loss$|norm", NAMES), ["loss", "eval/loss", "grad_norm"]);
  assert.deepEqual(found("^eval/.*", NAMES), ["eval/loss"]);
  assert.deepEqual(found("accuracy (top 5)", ["accuracy (top 5)", "loss"]), ["accuracy (top 5)"]);
  assert.deepEqual(found("loss|(", NAMES), []);
});
